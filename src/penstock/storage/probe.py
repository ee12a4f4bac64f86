"""Several creates of one name at the same moment."""

from __future__ import annotations

import threading

from penstock.storage.storage import AlreadyExists, Storage

RACERS = 4
PROBES = 3


def race(storage: Storage, name: str) -> list[bytes]:
    """What those wrote whose create of `name` succeeded. Losers may fail in any way that storage under contention has;
    where nobody won, the first such error is raised."""
    start = threading.Barrier(RACERS)
    won: list[bytes] = []
    failed: list[Exception] = []

    def run(number: int) -> None:
        data = b"%d" % number
        start.wait()
        try:
            storage.create(name, data)
        except AlreadyExists:
            return
        except Exception as error:
            failed.append(error)
        else:
            won.append(data)

    threads = [threading.Thread(target=run, args=(number,), name="penstock-probe") for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not won and failed:
        raise failed[0]
    return won
