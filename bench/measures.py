"""One round of each measure: a system is given a task on the broker, and watched from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kafka_load import FIRST_ID, create_topics, delete_topics, feed
from memory import PeakMemory
from neighbours import used_by
from penstock.testing.oracle import compare
from servers import Broker
from streams import Seen, helper, stream
from systems import Run, System, wait_until
from tasks import KEYS, Task
from topic_content import counts_in, ids_in
from visible import Step, VisibleRows, counted, window

PARTITIONS = 4
RATE = 2_000  # rows a second of a steady load
_ID = slice(len('{"id":'), len('{"id":') + 16)  # where JSON rows have theirs
_STILL = 4.0  # seconds without a new row after which all are there: longer than any interval between checkpoints
_LOOKS = 5
_LONGEST = 900.0


@dataclass(frozen=True)
class Place:
    """Where a round happens: topics and a folder that nothing else uses."""

    broker: Broker
    folder: Path
    name: str

    @property
    def servers(self) -> str:
        return self.broker.servers

    def task(self, work: str, source: str, **settings: Any) -> Task:
        return Task(work, self.servers, source, self.name, str(self.folder / self.name), **settings)

    @contextmanager
    def topics(self, *names: str) -> Iterator[None]:
        create_topics(self.servers, dict.fromkeys(names, PARTITIONS))
        try:
            yield
        finally:
            delete_topics(self.servers, names)


def throughput(
    system: System, place: Place, work: str, source: str, rows: int, epoch_rows: int, json_way: str
) -> dict[str, Any]:
    """`rows` JSON rows that are in topic `source`, as fast as it goes."""
    task = place.task(work, source, epoch_rows=epoch_rows, json_way=json_way)
    expected = {"bytes": rows, "json": rows // 2, "keys": KEYS}[work]
    with place.topics(place.name), system.start(task) as run:
        run.wait_for_start()
        with (
            VisibleRows(place.servers, place.name, PARTITIONS, lambda: _used(run, place)) as visible,
            PeakMemory(lambda: run.roots) as peak,
        ):
            for tries in range(_LOOKS):
                done = partial(_is_done, visible, expected, _STILL * (tries + 1))
                run.wait_until(done, _LONGEST, "not all rows are written")
                found = _content(place, work, rows, visible.steps)
                if not found["verdict"]["lost"]:
                    break  # how many counts are written is not known before; a slow system may only have paused
    total = rows // 2 if work == "json" else rows
    begin, end = window(found["steps"], total // 4)
    amount = (end.rows - begin.rows) * (2 if work == "json" else 1)  # of rows in, for what they cost
    own, broker = (after - before for before, after in zip(begin.told, end.told, strict=True))
    return {
        "rows_per_second": (end.rows - begin.rows) / (end.moment - begin.moment),
        "window_seconds": end.moment - begin.moment,
        "cpu_seconds_per_million_rows": own / amount * 1e6,
        "broker_cpu_seconds_per_million_rows": broker / amount * 1e6,
        "peak_megabytes": peak.megabytes,
        **found["verdict"],
    }


def _is_done(visible: VisibleRows, expected: int, still: float) -> bool:
    return visible.rows >= expected and visible.is_still(still)


def _used(run: Run, place: Place) -> tuple[float, ...]:
    return used_by(run.roots), used_by([place.broker.pid])


def _content(place: Place, work: str, rows: int, steps: list[Step]) -> dict[str, Any]:
    """The steps in rows, and whether every row is there once."""
    if work == "keys":
        steps, latest = counted(counts_in(place.servers, place.name), KEYS, steps)
        right = np.bincount(np.arange(FIRST_ID, FIRST_ID + rows) % KEYS, minlength=KEYS)
        lost, doubled = int(np.maximum(right - latest, 0).sum()), int(np.maximum(latest - right, 0).sum())
        return {"steps": steps, "verdict": {"lost": lost, "doubled": doubled}}
    wanted = range(FIRST_ID, FIRST_ID + rows, 2 if work == "json" else 1)
    return {"steps": steps, "verdict": _verdict(wanted, ids_in(place.servers, place.name, _ID))}


def _verdict(wanted: range, ids: Any) -> dict[str, Any]:
    verdict = compare(wanted, ids)
    return {"lost": verdict.lost, "doubled": verdict.duplicated + verdict.unexpected}


def latency(
    system: System, place: Place, interval: float, warm_up: float, seconds: float, rate: int = RATE
) -> dict[str, Any]:
    """From the moment that is written in a row until a reader has it. `first_…`: of the first minute, or of the
    warm-up if that is shorter."""
    with steady(system, place, interval, rate) as (run, finish):
        started = time.time()
        time.sleep(warm_up)
        begin, used = time.time(), _used(run, place)
        with PeakMemory(lambda: run.roots) as peak:
            time.sleep(seconds)
        end = time.time()
        own, broker = (after - before for before, after in zip(used, _used(run, place), strict=True))
        seen, verdict = finish()
    found, first = seen.latencies_ms(begin, end), seen.latencies_ms(started, min(started + 60, begin))
    return {
        **{f"p{percent}_ms": float(np.percentile(found, percent)) for percent in (50, 90, 99)},
        **{f"first_p{percent}_ms": float(np.percentile(first, percent)) for percent in (50, 99) if len(first)},
        "max_ms": float(found.max()),
        "rows": len(found),
        "cores": own / (end - begin),
        "broker_cores": broker / (end - begin),
        "peak_megabytes": peak.megabytes,
        **verdict,
    }


def growth(system: System, place: Place, interval: float, minutes: int) -> dict[str, Any]:
    """Latency and memory of each minute, to see whether either grows."""
    memory = []
    with steady(system, place, interval) as (run, finish):
        time.sleep(60)
        begin = time.time()
        for _ in range(minutes):
            with PeakMemory(lambda: run.roots) as peak:
                time.sleep(60)
            memory.append(peak.megabytes)
        seen, verdict = finish()
    parts = [seen.latencies_ms(begin + 60 * minute, begin + 60 * (minute + 1)) for minute in range(minutes)]
    by_minute = {f"p{percent}_ms": [float(np.percentile(part, percent)) for part in parts] for percent in (50, 99)}
    third = max(1, minutes // 3)
    ends = {
        f"{name}_growth": float(np.median(values[-third:]) / np.median(values[:third]))
        for name, values in (*by_minute.items(), ("memory", memory))
    }
    return {"minutes": {**by_minute, "megabytes": memory}, **ends, **verdict}


def silence(system: System, place: Place, interval: float, warm_up: float, after: float) -> dict[str, Any]:
    """How long a reader sees nothing when the process that works is killed; `after` seconds more are watched."""
    with steady(system, place, interval) as (run, finish):
        time.sleep(warm_up)
        killed = run.kill()
        with PeakMemory(lambda: run.roots) as peak:
            time.sleep(after)
        seen, verdict = finish()
    before = seen.longest_silence(killed - warm_up / 2, killed - 1)
    return {
        "silence_seconds": seen.longest_silence(killed, killed + after),
        "before_seconds": before,
        "peak_megabytes": peak.megabytes,
        **verdict,
    }


def start(system: System, place: Place, interval: float) -> dict[str, Any]:
    """From nothing to a started task, and to its first row. Rows come in all the while."""
    source = f"{place.name}-in"
    folder = place.folder / place.name
    folder.mkdir(parents=True)
    with place.topics(place.name, source), stream(place.servers, source, place.name, folder, RATE) as load:
        time.sleep(2)  # the load itself has to start
        began = time.time()
        with system.start(place.task("bytes", source, interval=interval)) as run:
            run.wait_for_start()
            started = time.time()
            wait_for_rows(place)
            seen = load.finish()
            verdict = _verdict(range(load.rows), seen.ids)
    return {"started_seconds": started - began, "first_row_seconds": seen.seen[0] / 1e9 - began, **verdict}


def saved(system: System, place: Place, interval: float, times: int) -> dict[str, Any]:
    """Savepoints of a job whose state has a million keys, while rows go on coming."""
    source = f"{place.name}-in"
    task = place.task("keys", source, interval=interval, epoch_rows=KEYS)
    took, still, sizes = [], [], []
    with place.topics(place.name, source):
        feed(place.servers, source, KEYS)
        with (
            system.start(task) as run,
            VisibleRows(place.servers, place.name, PARTITIONS, lambda: ()) as visible,
            helper("stream_load.py", servers=place.servers, topic=source, rate=RATE, rows="json", first=KEYS),
        ):
            run.wait_until(lambda: visible.rows >= KEYS, _LONGEST, "not all keys are counted")
            for number in range(times):
                time.sleep(3)
                folder, began = place.folder / f"{place.name}-saved-{number}", time.monotonic()
                took.append(run.save(folder))
                ended = time.monotonic()
                sizes.append(sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()))
                time.sleep(3)
                still.append(visible.longest_pause(began, ended))
    return {"savepoint_seconds": float(np.median(took)), "still_seconds": max(still), "bytes": sizes[-1], "all": took}


@contextmanager
def steady(system: System, place: Place, interval: float, rate: int = RATE) -> Iterator[Any]:
    """The system on a steady load, from its first row on; what ends it all gives what was seen and the verdict."""
    source = f"{place.name}-in"
    folder = place.folder / place.name
    folder.mkdir(parents=True)
    with (
        place.topics(place.name, source),
        stream(place.servers, source, place.name, folder, rate) as load,
        system.start(place.task("bytes", source, interval=interval)) as run,
    ):
        run.wait_for_start()
        wait_for_rows(place)

        def finish() -> tuple[Seen, dict[str, Any]]:
            seen = load.finish()
            return seen, _verdict(range(load.rows), seen.ids)

        yield run, finish


def wait_for_rows(place: Place) -> None:
    """Until the first is visible."""
    with VisibleRows(place.servers, place.name, PARTITIONS, lambda: ()) as visible:
        wait_until(lambda: visible.rows > 0, 120, "no row is visible")
