"""`WriteAheadSink`: a user's function as a sink; `commit` logs the rows and hands them over."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
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
    """Rows wait in the folder `log` until their epoch is decided; then the driver calls `write(rows, epoch_id)` once
    for each writer of the epoch, and removes the log.

    `epoch_id` is `job:uid:writer:epoch:token`: the same for every attempt, never used for other rows. All but the last
    two parts stay the same for a writer from epoch to epoch. `write` returns when the target has the rows, and raises
    otherwise; it is then called again, until the commit's time is up, and after a restart.

    The guarantee depends on the target when a write arrives twice because its answer was lost:

    * `marker` returns the ids the target holds, at least the last of each writer (a mapping's values count), and
      `write` stores the id in the same transaction as the rows, under a unique key: exactly once.
    * `idempotent=True` declares that the target ignores an id it has seen: exactly once.
    * neither: at least once.

    The driver calls the functions; in mode at_least_once tasks do, which must then be able to import them. The driver
    and all tasks must reach `log`: a folder, or an address that pyarrow opens.
    """

    write: Write
    log: str = field(kw_only=True)
    marker: Marker | None = field(default=None, kw_only=True)
    idempotent: bool = field(default=False, kw_only=True)
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        for what, function in (("write", self.write), ("marker", self.marker)):
            if function is not None and not callable(function):
                raise ConfigurationError(
                    f"WriteAheadSink's {what} is no function.", to_do=f"pass a function as {what}."
                )
        if self.log.startswith("memory:"):
            raise ConfigurationError(
                "A log in memory is gone with the process.", to_do="give WriteAheadSink the path of a folder."
            )
        if "://" not in self.log and not self.log.startswith("file:"):
            object.__setattr__(self, "log", os.path.abspath(self.log))  # tasks have other working directories

    def __repr__(self) -> str:
        return f"WriteAheadSink({self.describe()!r}, log={self.log!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        others: dict[str, Any] = {"log": self.log, "idempotent": self.idempotent, "name": self.describe()}
        return partial(WriteAheadSink, marker=carry(self.marker), **others), (carry(self.write),)

    @property
    def exact(self) -> bool:
        """Whether a second write of the same id has no effect."""
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
            "pass marker=… and keep the epoch's id in the target; or set idempotent=True if the target ignores an id "
            "it has seen; or set mode=at_least_once.",
        )

    def check(self, context: CheckContext, uid: str) -> Sequence[Finding]:
        from penstock.storage.local import folder_warnings, task_tree
        from penstock.storage.storage import local_path

        path = local_path(self.log)
        if path is None:
            task_tree(self.log).file_names("")
        if self.marker is not None:
            self.ids_in_target()
        return [] if path is None else [Finding(uid, text) for text in folder_warnings(path, "a folder of files")]

    def ids_in_target(self) -> set[str]:
        """The ids that `marker` returns; `SystemUnavailable` if it raises."""
        assert self.marker is not None
        try:
            ids = self.marker()
            return set(map(str, ids.values() if isinstance(ids, Mapping) else ids))
        except PenstockError:
            raise
        except Exception as error:
            raise SystemUnavailable(
                f"The marker of {self.describe()} could not be read: {type(error).__name__}: {error}.",
                safe="decided rows wait in the log, and nothing is written twice.",
                to_do="see that the target answers; the restart strategy retries.",
            ) from error

    def open_writer(self, scope: WriterScope) -> Writer:
        from penstock.sinks.write_ahead.commit import LoggingWriter

        return LoggingWriter(self.log, scope)

    def open_committer(self, scope: SinkScope) -> Committer:
        from penstock.sinks.write_ahead.commit import HandingCommitter

        return HandingCommitter(self, scope)


class CarriedFunction:
    """A user's function as bytes for a task, or the reason why there are none.

    Unpickled when it is first called: tasks, which write in mode at_least_once only, need neither its module nor its
    values. One that cannot be pickled, because it holds a connection, still works in the driver."""

    def __init__(self, data: bytes | None, why: str = "") -> None:
        self._data, self._why = data, why

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CarriedFunction, (self._data, self._why))

    @cached_property
    def _function(self) -> Callable[..., Any]:
        try:
            if self._data is not None:
                return pickle.loads(self._data)  # type: ignore[no-any-return]  # noqa: S301 - from our own driver
        except Exception as error:
            self._why = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"A function of WriteAheadSink cannot be sent to a task: {self._why}.",
            safe="nothing of this epoch was written by this task.",
            to_do="define it in a module that tasks can import, and open its connection inside; or use mode "
            "exactly_once, in which only the driver calls it.",
        )


def carry(function: Callable[..., Any] | None) -> CarriedFunction | None:
    """`function` in a form that can always be pickled."""
    if function is None or isinstance(function, CarriedFunction):
        return function
    from pyspark import cloudpickle

    try:
        return CarriedFunction(cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
    except Exception as error:
        return CarriedFunction(None, f"{type(error).__name__}: {error}")
