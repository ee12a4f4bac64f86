"""One mapper from a driver's errors to Penstock's, over a table of rules that each dialect brings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock import errors

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
