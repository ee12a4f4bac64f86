"""`WriteAheadSink`: a function of yours as a sink."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.sink import CheckContext, Committer, Finding, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.errors import ConfigurationError, PenstockError, SystemUnavailable

if TYPE_CHECKING:
    import pyarrow as pa

    Write = Callable[[Iterator[pa.RecordBatch], str], None]
    Marker = Callable[[], Iterable[str] | Mapping[str, str]]


@dataclass(frozen=True, repr=False)
class WriteAheadSink(TwoPhaseSink):
    """Rows wait in the folder `log` until their epoch is decided; then `write(rows, epoch_id)` is called in the driver,
    once for each writer of the epoch, and the log is removed.

    `epoch_id` is `job:uid:writer:epoch:token`: the same for every try, never used for other rows. What is before the
    last two parts is the same for a writer from epoch to epoch. `write` returns when the target has the rows, and
    raises otherwise; it is then called again, until the commit's time is up, and after a restart.

    What this gives depends on what the target does when a write arrives twice, because its answer was lost:

    * `marker` returns the ids the target holds, at least the last of each writer (a mapping's values count), and
      `write` puts the id there in the same transaction as the rows, under a unique key: exactly once.
    * `idempotent=True` says that the target itself ignores an id it has seen: exactly once.
    * neither: at least once.

    The functions are called in the driver; in mode at_least_once in tasks, which must then be able to import them.
    `log` is reached from the driver and all tasks: a folder, or an address that pyarrow opens.
    """

    write: Write
    log: str = field(kw_only=True)
    marker: Marker | None = field(default=None, kw_only=True)
    idempotent: bool = field(default=False, kw_only=True)
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        for what, function in (("write", self.write), ("marker", self.marker)):
            if function is not None and not callable(function):
                raise _refused(f"WriteAheadSink's {what} is no function.", f"give {what} a function.")
        if self.log.startswith("memory:"):
            raise _refused("A log in memory is gone with the process.", "give WriteAheadSink the path of a folder.")
        if "://" not in self.log and not self.log.startswith("file:"):
            object.__setattr__(self, "log", os.path.abspath(self.log))  # tasks have folders of their own

    def __repr__(self) -> str:
        return f"WriteAheadSink({self.describe()!r}, log={self.log!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        functions = (carry(self.write), carry(self.marker))
        return (_rebuild, (*functions, self.log, self.idempotent, self.describe()))

    @property
    def exact(self) -> bool:
        """Whether a second write of the same id changes nothing."""
        return self.marker is not None or self.idempotent

    def describe(self) -> str:
        return self.name or f"{getattr(self.write, '__module__', '')}.{getattr(self.write, '__qualname__', 'write')}"

    def link(self, uid: str) -> Link:
        logged = f"rows in a log until they are decided, then written by {self.describe()}"
        if self.marker is not None:
            because = f"{logged}, which leaves the epoch's id in the target with them"
            return Link("sink", uid, Guarantee.EXACTLY_ONCE, because)
        if self.idempotent:
            return Link("sink", uid, Guarantee.EXACTLY_ONCE, f"{logged}; the target ignores an id it has seen")
        return Link(
            "sink",
            uid,
            Guarantee.AT_LEAST_ONCE,
            f"{logged}; where the answer to a write is lost, the rows are written again",
            "give marker=… and keep the epoch's id in the target; or say idempotent=True if the target ignores an id "
            "it has seen; or set mode=at_least_once.",
        )

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.sinks.files import FileSink
        from penstock.storage.open import task_tree
        from penstock.storage.storage import local_path

        path = local_path(self.log)
        found: list[Finding] = []
        if path is not None:
            found += FileSink(str(path)).check(context, uid)
        else:
            task_tree(self.log).file_names("")
        if self.marker is not None:
            self.ids_in_target()
        return found

    def ids_in_target(self) -> set[str]:
        """What `marker` says; `SystemUnavailable` where it raises."""
        assert self.marker is not None
        try:
            ids = self.marker()
            return {str(one) for one in (ids.values() if isinstance(ids, Mapping) else ids)}
        except PenstockError:
            raise
        except Exception as error:
            raise SystemUnavailable(
                f"The marker of {self.describe()} could not be read: {type(error).__name__}: {error}.",
                safe="rows that are decided wait in the log, and nothing is written twice.",
                to_do="see that the target answers; the job tries again by its restart strategy.",
            ) from error

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.write_ahead.commit import LoggingWriter

        return LoggingWriter(self.log, scope)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.write_ahead.commit import HandingCommitter

        return HandingCommitter(self, scope)


def _rebuild(write: Any, marker: Any, log: str, idempotent: bool, name: str) -> WriteAheadSink:
    return WriteAheadSink(write, log=log, marker=marker, idempotent=idempotent, name=name)


def _refused(happened: str, to_do: str) -> ConfigurationError:
    return ConfigurationError(happened, to_do=to_do)


class CarriedFunction:
    """A user's function on its way to a task, as bytes, or why there are none.

    Only the driver writes, except in mode at_least_once. So a function is unpickled where it is first called, not
    before: tasks need neither its module nor what it has captured. One that cannot be pickled at all, because it holds
    a connection, still works in the driver.
    """

    def __init__(self, data: bytes | None, why: str = "") -> None:
        self._data, self._why = data, why
        self._function: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self._function is None:
            self._function = self._load()
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CarriedFunction, (self._data, self._why))

    def _load(self) -> Callable[..., Any]:
        try:
            if self._data is not None:
                return pickle.loads(self._data)  # type: ignore[no-any-return]  # noqa: S301 - from our own driver
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"A function of WriteAheadSink cannot be brought to a task: {self._why}.",
            safe="nothing of this epoch was written by this task.",
            to_do="define it in a module that tasks can import, let it open its connection itself; or use mode "
            "exactly_once, in which only the driver calls it.",
        )


def carry(function: Callable[..., Any] | None) -> CarriedFunction | None:
    """`function`, ready to be pickled whatever it holds."""
    if function is None or isinstance(function, CarriedFunction):
        return function
    from pyspark import cloudpickle

    try:
        return CarriedFunction(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    except Exception as error:
        return CarriedFunction(None, f"{type(error).__name__}: {error}")
