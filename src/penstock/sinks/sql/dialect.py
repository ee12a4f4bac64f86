"""What one SQL database must be able to do for an exactly-once sink, and what its answers prove.

A commit is proven by a marker row, written in the very transaction that makes a writer's rows visible:

| in the database | means |
|---|---|
| the marker | committed, whatever else is there |
| no marker, and the writer's transaction or staging table is there | prepared: commit it now |
| neither, and the writer is younger than `pruned` | lost: it was rolled back, and nothing of it is visible |
| neither, and it is not younger | unknown: its marker may have been pruned long ago |

`at` is the server's time at which the writer began; its committable carries it too. `pruned` is the largest `at` of all
markers ever pruned for this sink, at first the time when its row was created: if these tables are dropped, they are
created again, and earlier writers are unknown, not lost.

`fence` counts the sweeps of a sink. A sweep raises it before it ends sessions and looks for leftovers; a writer
compares it, as its last step before it prepares, with the one its driver read. So the sweep ends a writer that was
already connected, and a later one fails by itself. An older run does not raise the fence of a newer `generation`.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from penstock import errors
from penstock.checkpoint.decision import Committable
from penstock.contracts.sink import Leftover, WriterScope
from penstock.deadline import Deadline
from penstock.sinks.sql.tables import is_staging

MARKERS = "penstock_markers"
SINKS = "penstock_sinks"
NOTHING_VISIBLE = "nothing of this epoch is visible."
#: In a rule's codes: the driver gave none, as where no server was reached.
NO_CODE = "none"

#: What is safe, where it is more than `NOTHING_VISIBLE`.
_SAFE: dict[type[errors.PenstockError], str] = {
    errors.SystemUnavailable: "what was committed stays committed, what was prepared stays prepared; nothing else is "
    "visible.",
    errors.StorageFull: "what was committed stays committed; nothing else is visible.",
}
# What happened, what to do.
_WORDS: dict[type[errors.PenstockError], tuple[str, str]] = {
    errors.SystemUnavailable: (
        "{system} at {where} does not answer: {text}",
        "check that the address is right and the server runs; the job tries again by its restart strategy.",
    ),
    errors.AccessDenied: (
        "{system} at {where} refused: {text}",
        "check user, password and the rights on the table and its schema.",
    ),
    errors.TableMissing: ("The {system} table {table} does not exist.", "create it, or say create=True."),
    errors.ConstraintViolated: (
        "Rows for the {system} table {table} break one of its rules: {text}",
        "correct the rows in the query, or the table's rule, and start the job again.",
    ),
    errors.SchemaMismatch: (
        "Rows do not fit into the {system} table {table}: {text}",
        "if the table was altered, alter it back or change the query; then start the job again.",
    ),
    errors.DataError: (
        "A row cannot be stored in the {system} table {table}: {text}",
        "correct or filter such rows in the query, and start the job again.",
    ),
    errors.ValueTooLarge: ("A row is too large for the {system} table {table}: {text}", ""),
    errors.StorageFull: (
        "{system} at {where} has no space left: {text}",
        "free some space on the database's disk; the job tries again by its restart strategy.",
    ),
    errors.PreCommitFailed: ("{system} failed while {doing} for {table}: {text}", "nothing: the epoch replays."),
}


class Connection(Protocol):
    """A connection of the driver's, used by one thread at a time."""

    deadline: Deadline  # of what is under way

    @property
    def open(self) -> bool: ...

    def limit(self, deadline: Deadline) -> None:
        """From now on an answer that comes after the deadline counts as lost."""

    def close(self) -> None:
        """What is neither committed nor prepared is rolled back."""


C = TypeVar("C", bound=Connection)


@dataclass(frozen=True, slots=True)
class Proof:
    """Writers with a marker, and open ones of other sessions. Without `pruned` a missing marker proves nothing."""

    marked: Set[str]
    pruned: Any
    open: Set[str] = frozenset()
    has_markers: bool = True  # whether the sink has any: a commit leaves one, and a prune keeps the newest


class Dialect(ABC, Generic[C]):
    """One sink in one database. Verbs raise the client's errors, and never wait beyond their connection's deadline."""

    generation: int
    mapper: ErrorMapper
    #: Whether a permanent error ends the job although the epoch is decided; otherwise it is logged, the outcome stays
    #: unknown, and the next recovery retries.
    raises_what_stays = True
    #: Whether committed writers are looked up again: the server may have been replaced by one that lacks them.
    looks_back = False

    @abstractmethod
    def connect(self, deadline: Deadline) -> C:
        """A new connection of the driver's."""

    def acknowledge(self, committable: Committable, epoch: int) -> str:
        """Where the sink looks back: the statement by which an operator accepts that a committed writer was lost."""
        raise NotImplementedError

    def elsewhere(self, payload: Mapping[str, Any]) -> Dialect[C] | None:
        """The dialect for a committable of another table, where that is another sink's; None for this one."""
        return None

    # The sink's own tables

    @abstractmethod
    def mode(self, connection: C) -> str:
        """`two_phase` or `staged`, chosen by the user or else by what the server supports."""

    @abstractmethod
    def set_up(self, connection: C) -> None:
        """Create the marker tables and this sink's row, where they are missing."""

    @abstractmethod
    def read_fence(self, connection: C) -> int | None:
        """How often this sink was swept; None where it has no row."""

    @abstractmethod
    def fence(self, connection: C) -> int:
        """Raise the fence, unless a newer run has, and end sessions that could still prepare; how many."""

    @abstractmethod
    def prove(self, connection: C, writers: Collection[str]) -> Proof:
        """What the markers prove about these writers."""

    @abstractmethod
    def prune(self, connection: C, before: int) -> None:
        """Delete markers of epochs `before` this one, of this and older generations, and record the youngest `at`."""

    # Prepared transactions

    @abstractmethod
    def prepare(self, writer: str) -> Sequence[str]:
        """The statements that leave the transaction of a writer's connection prepared, marker and rows in it."""

    @abstractmethod
    def prepared(self, connection: C, writers: Collection[str]) -> set[str]:
        """Those of `writers` whose transactions are prepared now."""

    @abstractmethod
    def commit(self, connection: C, writer: str) -> bool:
        """Commit a prepared transaction. False where the server did not: it may have ended, and its marker decides."""

    @abstractmethod
    def rollback(self, connection: C, prepared: Collection[str], staged: Collection[str]) -> None:
        """Roll back transactions and drop staging tables; those that are gone already are fine."""

    @abstractmethod
    def recover(self, connection: C) -> Sequence[Leftover]:
        """All of this sink's writers that are prepared, staged or still writing, of all generations."""

    # Staging tables

    @abstractmethod
    def begin(self, connection: C, writers: Collection[str], *, decided: bool) -> set[str]:
        """Begin a transaction in which staging tables are moved; those of `writers` that have one and are not
        committed. Where they are `decided`, other drivers that hold a move of them are ended first."""

    @abstractmethod
    def mark(self, connection: C, committable: Committable, epoch: int) -> None:
        """Insert the marker into the open transaction, before any row: a second mover conflicts here."""

    @abstractmethod
    def move(self, connection: C, committable: Committable) -> int:
        """Insert, or insert-or-update by key, all rows of a staging table into the target; how many."""

    def check_rules(self, connection: C) -> None:
        """Check now what the server would defer to COMMIT, which comes after the decision: too late."""

    @abstractmethod
    def count(self, connection: C, writer: str) -> int:
        """Rows in a staging table."""

    @abstractmethod
    def finish(self, connection: C, writers: Collection[str]) -> None:
        """Commit the open transaction. The staging tables go with it, or after it."""


def name_of(committable: Committable) -> str:
    """The prepared transaction or staging table of a committable; nothing, if its writer had no rows."""
    return str(committable.payload.get("writer") or "")


def split(committables: Collection[Committable]) -> tuple[list[Committable], list[Committable]]:
    """Prepared transactions and staging tables, told apart by their names alone, in the order of their writers."""
    there = sorted((each for each in committables if name_of(each)), key=lambda each: each.writer)
    prepared = [each for each in there if not is_staging(name_of(each))]
    return prepared, [each for each in there if is_staging(name_of(each))]


def leftovers(began: Mapping[str, float | None], numbers_in: Callable[[str], dict[str, Any] | None]) -> list[Leftover]:
    """Those of the writers that a server lists, and when they began, whose names are of the sink."""
    numbered = ((name, numbers_in(name), since) for name, since in began.items())
    return [Leftover(name, **numbers, started=since) for name, numbers, since in numbered if numbers is not None]


def payload_of(
    scope: WriterScope,
    writer: str,
    at: Any,
    rows: int,
    target: Sequence[str],
    columns: Sequence[str],
    key: Sequence[str],
) -> dict[str, Any]:
    """What a commit needs to know about a writer. `target` is schema and table."""
    shared = {"writer": writer, "at": at, "epoch": scope.epoch, "rows": rows, "target": list(target)}
    if not is_staging(writer):
        return {"kind": "prepared", **shared}
    return {"kind": "staged", **shared, "columns": list(columns), "key": list(key)}


#: The payload of a writer that had no rows.
NOTHING: Mapping[str, Any] = {"writer": None}


# A driver's errors as Penstock's, by the rules that each dialect brings


@dataclass(frozen=True, slots=True)
class Fault:
    """A server's or network's error, without secrets; `context` in the server's work; `lost`: unusable connection."""

    code: str
    text: str
    context: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """Faults whose code begins with one of `codes` (any code, if there are none) are errors of `kind`; where given,
    also `match` (a pattern in the text), `context` (a part of it), `doing` and `lost` must fit."""

    kind: type[errors.PenstockError]
    codes: tuple[str, ...] = ()
    match: str = ""
    context: str = ""
    doing: str = ""
    lost: bool = False
    say: str = "{text}"  # in the place of the fault's text
    happened: str = ""  # instead of the first sentence of `_WORDS`
    to_do: str = ""

    def fits(self, fault: Fault, doing: str) -> bool:
        return (
            (not self.codes or (fault.code or NO_CODE).startswith(self.codes))
            and bool(re.search(self.match, fault.text, re.IGNORECASE))
            and self.context in fault.context
            and self.doing in ("", doing)
            and fault.lost >= self.lost
        )


@dataclass(frozen=True)
class ErrorMapper:
    """The errors of one sink. `drivers` are those of its client libraries, and `read` makes a fault of one."""

    system: str
    where: str
    table: str
    rules: Sequence[Rule]
    drivers: tuple[type[Exception], ...]
    read: Callable[[Exception], Fault]

    def error(
        self, kind: type[errors.PenstockError], text: str = "", *, doing: str = "", happened: str = "", to_do: str = ""
    ) -> errors.PenstockError:
        """An error of `kind`, by default in the words that all SQL sinks share."""
        words, usual = _WORDS.get(kind, ("", ""))
        names = {"system": self.system, "where": self.where, "table": self.table, "text": text, "doing": doing}
        return kind((happened or words).format(**names), safe=_SAFE.get(kind, NOTHING_VISIBLE), to_do=to_do or usual)

    def explain(self, fault: Fault, doing: str) -> errors.PenstockError:
        """The error for a fault while `doing` something; a retryable one where no rule fits."""
        rule = next((each for each in self.rules if each.fits(fault, doing)), Rule(errors.PreCommitFailed))
        text = rule.say.format(text=fault.text, code=fault.code)
        to_do = rule.to_do.format(text=fault.text)
        return self.error(rule.kind, text, doing=doing, happened=rule.happened, to_do=to_do)

    def is_away(self, error: Exception) -> bool:
        """Whether a client's error means that the server cannot be reached on this connection any more."""
        return isinstance(self.explain(self.read(error), ""), errors.SystemUnavailable)

    @contextlib.contextmanager
    def mapped(self, doing: str, known: Callable[[Fault], errors.PenstockError | None] | None = None) -> Iterator[None]:
        """The client's errors inside become Penstock's; `known` comes before the rules."""
        try:
            yield
        except self.drivers as error:
            fault = self.read(error)
            raise (known(fault) if known else None) or self.explain(fault, doing) from error

    def not_all(self, sent: int, there: int) -> errors.PenstockError:
        """The server accepted rows without an error, and did not store all of them."""
        return self.error(
            errors.ConstraintViolated,
            f"{sent} were sent, and by the server's count {there} are there.",
            to_do="find the trigger or rule of the table that drops or redirects rows; do that in the query, and start "
            "the job again.",
        )

    def fenced(self, writer: str) -> errors.PenstockError:
        return errors.PreCommitFailed(
            f"The {self.system} writer {writer} is fenced: its driver, or a newer run, swept before it prepared.",
            safe="its rows are rolled back; nothing of them is visible.",
            to_do="nothing: the run that swept continues in its place.",
        )
