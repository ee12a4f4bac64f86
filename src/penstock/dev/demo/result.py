"""What the demo found out, and whether that is good."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from penstock.dev.demo.truth import TotalsVerdict, Truth
from penstock.testing.oracle import AtomicityVerdict, Observation, Verdict, epoch_atomicity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from penstock.dev.demo.job_process import JobConfig
    from penstock.dev.demo.plan import Progress
    from penstock.testing.atomicity import Commits, Sizes

#: Between two looks of the concurrent reader: several in every epoch would only slow the job down.
LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Outputs:
    """Everything both outputs hold, as an ordinary reader gets it, and how many rows each epoch put there."""

    payments: pa.Table  # id, account, amount
    totals: pa.Table  # account, n, total; the rows of one account in the order they were written
    sizes: Sizes
    looks: Sequence[Observation]  # what readers saw meanwhile


class Stage(Protocol):
    """Where the demo plays: what feeds the job and what reads its outputs."""

    config: JobConfig
    endless: bool  # whether the job has to be stopped

    def look(self) -> None:
        """Note what a reader sees of the outputs now."""

    def full(self) -> bool:
        """Whether the outputs of an endless job hold everything, going by the looks so far."""

    def outputs(self, progress: Progress) -> Outputs:
        """Read all of both outputs anew, once the job has ended."""

    def close(self) -> None:
        """End what was started."""


class Watcher(Thread):
    """Looks at the outputs while the job runs and is killed, as any consumer of them might."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__(name="demo-reader", daemon=True)
        self._look = look
        self._end = Flag()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._end.wait(LOOK_SECONDS):
                self._look()
        except Exception as error:  # raised in `end`: a reader that cannot read is a finding
            self._error = error

    def cancel(self) -> None:
        """No more looks."""
        self._end.set()
        self.join()

    def end(self) -> None:
        """One last look; raises what went wrong in any of them."""
        self.cancel()
        if self._error is not None:
            raise self._error
        self._look()


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's answer. `ok` is False if anything was lost, duplicated or wrong, or could not be found out."""

    mode: str
    rows_in: int
    seed: int
    kills: int = 0
    recovery_seconds: Sequence[float] = ()
    recovery_actions: Sequence[Sequence[str]] = ()
    killed_after: Sequence[str] = ()
    epochs: int = 0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    payments: Verdict | None = None
    totals: TotalsVerdict | None = None
    atomicity: AtomicityVerdict | None = None
    error: str = ""
    log_tail: Sequence[str] = field(default=(), repr=False)
    folder: str = ""

    @property
    def ok(self) -> bool:
        verdicts = (self.payments, self.totals, self.atomicity)
        return not self.error and all(verdict is not None and verdict.ok for verdict in verdicts)

    @property
    def status(self) -> int:
        """The exit status."""
        return 0 if self.ok else 1

    def lines(self) -> list[str]:
        """The verdict, for people."""
        parts = (("payments", self.payments), ("totals", self.totals), ("readers", self.atomicity))
        found = [f"{name}: {line}" for name, verdict in parts if verdict is not None for line in verdict.lines()]
        recovered = ", ".join(f"{seconds:.1f}" for seconds in self.recovery_seconds) or "none"
        found.append(
            f"{self.kills} kills, {len(self.recovery_seconds)} recoveries ({recovered} s), {self.epochs:,} epochs"
        )
        return [*found, *([self.error] if self.error else [])]

    def to_dict(self) -> dict[str, Any]:
        payments, totals, atomicity = self.payments, self.totals, self.atomicity
        return {
            "ok": self.ok,
            "mode": self.mode,
            "rows_in": self.rows_in,
            "rows_out": payments.found if payments else None,
            "lost": payments.lost if payments else None,
            "duplicated": payments.duplicated if payments else None,
            "unexpected": payments.unexpected if payments else None,
            "totals_accounts": totals.accounts if totals else None,
            "totals_wrong": totals.wrong + totals.unfinished if totals else None,
            "totals_duplicated": totals.repeated if totals else None,
            "kills": self.kills,
            "killed_after": list(self.killed_after),
            "recoveries": len(self.recovery_seconds),
            "recovery_seconds": [round(seconds, 3) for seconds in self.recovery_seconds],
            "recovery_actions": [list(actions) for actions in self.recovery_actions],
            "epochs": self.epochs,
            "seconds": round(self.seconds, 1),
            "rows_per_second": round(self.rows_per_second),
            "seed": self.seed,
            "payments": payments.to_dict() if payments else None,
            "totals": totals.to_dict() if totals else None,
            "atomicity": atomicity.to_dict() if atomicity else None,
            "error": self.error or None,
            "log_tail": list(self.log_tail),
            "folder": self.folder or None,
        }


def judge(rows: int, outputs: Outputs, commits: Commits) -> tuple[Verdict, TotalsVerdict, AtomicityVerdict]:
    """The three verdicts on a run of `rows` payments. `commits` says when the commit of each epoch was under way."""
    truth = Truth(rows)
    return (
        truth.judge_payments(outputs.payments),
        truth.judge_totals(outputs.totals),
        epoch_atomicity(outputs.looks, outputs.sizes, commits),
    )
