"""Whether Spark still calls back, checked from outside the epochs: a query that waits for a call that never comes
raises no error, and has no epoch whose time could run out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from penstock.errors import CheckpointExpired, PenstockError, SparkUnresponsive

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STOP_SECONDS = 60.0  # for Spark to stop a query that runs no epoch; it cancels tasks, which end within seconds
_LOOKS = 20  # at the log, within the checkpoint timeout; each may cost a request to an object store
_NEW_PROCESS = "nothing; a supervisor starts the driver again. Without one (`python JOB.py`), start it again."
_SAFE = "what is decided is carried out at the next start; what is not replays."


class Liveness:
    """Watches one start of one query. `next_epoch` gives the epoch that comes next, and whether Spark has written its
    barrier: then Spark runs its plan, and has called us, or is about to."""

    def __init__(
        self,
        uid: str,
        server: Callable[[], Any],
        next_epoch: Callable[[], tuple[int, bool]],
        seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uid, self._server, self._next_epoch = uid, server, next_epoch
        self._seconds, self._now = seconds, now
        self._looked = now()
        self._due: tuple[int, float] | None = None  # an epoch that has not begun, and since when that is known

    def fault(self, *, busy: bool) -> PenstockError | None:
        """The error, if there is one. `busy`: an epoch is under way, and its own watchdog watches it."""
        if (server := self._server()) is not None and not (server.thread and server.thread.is_alive()):
            with contextlib.suppress(Exception):  # refuse waiting calls, so that Spark's threads do not wait for them
                server.server_socket.close()
            return SparkUnresponsive(
                f"Spark cannot call query {self._uid!r} any more: py4j's callback server in the driver has ended, as it"
                " does where the process has no file descriptor or thread left.",
                safe=_SAFE,
                to_do=f"{_NEW_PROCESS} If it comes again, raise the limits of the process (`ulimit -n`, `ulimit -u`).",
            )
        now = self._now()
        if busy:
            self._due = None
        elif now - self._looked >= self._seconds / _LOOKS:
            self._looked = now
            return self._overdue(now)
        return None

    def _overdue(self, now: float) -> CheckpointExpired | None:
        try:
            epoch, begun = self._next_epoch()
        except Exception:  # the next epoch reports what is wrong with the storage
            return None
        if not begun:
            self._due = None
        elif self._due is None or self._due[0] != epoch:
            self._due = (epoch, now)
        elif now - self._due[1] >= self._seconds:
            return CheckpointExpired(
                f"Spark has cut epoch {epoch} of query {self._uid!r} and not handed it over in {self._seconds:g} s.",
                safe="nothing of it was written; it replays from the same positions.",
                to_do="see what Spark does before it hands rows over (stages of adaptive execution, a source that does"
                " not answer); raise the checkpoint timeout, or limit the rows per epoch at the source.",
            )
        return None


def callback_server(spark: SparkSession) -> Any:
    """py4j's server for Spark's calls, None before the first query has started."""
    gateway = spark.sparkContext._gateway
    return None if gateway is None else gateway.get_callback_server()


def stop(query: StreamingQuery, uid: str) -> None:
    """Stop a query that runs no epoch. `SparkUnresponsive` where Spark does not: it would wait for ever for one of its
    threads that waits for an answer."""
    ended: Future[None] = Future()

    def work() -> None:
        try:
            query.stop()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=work, name=f"penstock-stop-{uid}", daemon=True).start()
    try:
        ended.result(STOP_SECONDS)
    except TimeoutError:
        raise SparkUnresponsive(
            f"Spark has not stopped query {uid!r} within {STOP_SECONDS:g} s.", safe=_SAFE, to_do=_NEW_PROCESS
        ) from None
