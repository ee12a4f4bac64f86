"""Histories that once went wrong, found by chance: each is run at every place where it could go wrong again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.support.simulation.schedule import Fault
from tests.support.simulation.shrink import told
from tests.support.simulation.world import Setup, World

Histories = Iterator[tuple[Setup, Sequence[Fault]]]


def _stands_still_in_its_first_start() -> Histories:
    """A driver that stood still in the recovery before the first epoch removed, when it woke, the state of the run that
    had taken over: it had asked whether it was the newest one long before."""
    for call in range(1, 60):
        yield Setup(("files",), stateful=True, rows=5), [Fault(1, call, "pause", size=10_000)]


def _two_notes_of_the_query() -> Histories:
    """Two drivers started at the same moment, and both wrote Spark's note of the query's id. The decisions of one were
    made under the id of the other's note, so the next start did not find them."""
    for sink in ("kafka", "files"):
        for still in range(66, 122, 8):
            for call in range(60, 150, 4):
                faults = [Fault(1, 1, "pause", "spark-metadata", still), Fault(2, call, "killed")]
                yield Setup((sink,), rows=5, quantum=1), faults


def _a_note_written_over_while_epochs_wait() -> Histories:
    """The other driver wrote its note only when the first had decided an epoch, or more. The next start found the
    barrier of an epoch that was not decided yet, so it believed the note, and looked for rows in a log of that name."""
    for sinks, mode in ((("staged",), "concurrent"), (("kafka",), "unaligned"), (("files",), "aligned")):
        for still in (20, 60, 100, 140):
            for call in range(90, 260, 10):
                note = Fault(1, 1, "pause", "spark-metadata", still)
                yield Setup(sinks, mode, rows=5, quantum=1), [note, Fault(2, call, "kill")]
    for call in range(200, 260):
        yield Setup(("kafka", "staged"), "concurrent", rows=5), [Fault(1, 81, "pause"), Fault(2, call, "kill")]


def _a_replica_that_lacks_the_sink() -> Histories:
    """A replica took over that lacked the first epoch, and with it the sink's own row: nothing there was older than the
    writers, so they counted as unknown, not as lost, and the job went on without their rows."""
    for sink in ("postgres", "staged"):
        for behind in (1, 2, 3, 4, 5, 6, 10, 30):
            for call in range(60, 130, 3):
                yield Setup((sink,), rows=5), [Fault(1, call, "failover", size=behind)]


def _rows_that_arrive_twice() -> Histories:
    """A COPY that was carried out a second time by a connection that had prepared by then. No connection does that: it
    was the world that was wrong."""
    for mode in ("aligned", "unaligned"):
        for copy in range(1, 5):
            yield Setup(("postgres",), mode, rows=5), [Fault(1, copy, "twice", "copy")]


def _dies_while_it_stands_still() -> Histories:
    """A driver ended itself while it stood still, and then met another fault, so that its supervisor started two in its
    place, and both held the lease. A supervisor starts one: it was the world that was wrong."""
    for kind in ("partition", "pause", "stall", "killed"):
        for nth in (2, 3):
            stall = Fault(1, nth, "stall", "create-lease", 3)
            yield Setup(("kafka",), lease=True, rows=5), [stall, Fault(1, nth, kind, "create-lease")]


def _opened_after_the_drainer_ended() -> Histories:
    """What a late request, or a driver that stood still, opened under the drainer's names was left there by every later
    start that had nothing to do: its drainer was stopped before it had looked."""
    for nth in range(1, 9):
        yield Setup(("s3",), mode="unaligned", rows=5), [Fault(1, nth, "late", "begin", 30)]
        for at in ("init", "produce", "confirm"):
            yield Setup(("kafka",), mode="unaligned", rows=5, quantum=3), [Fault(1, nth, "pause", at, 150)]


def _registered_while_it_starts_again() -> Histories:
    """A process asked which generations were its own, then whether another had come; one of its own came in between."""
    for late in range(1, 13):
        faults = [Fault(1, 1, "answer", "get"), Fault(1, 2, "answer", "create-generations")]
        yield Setup(("s3",), rows=5), [*faults, Fault(1, 3, "late", "create-generations", late)]


def _lost_after_the_log_was_removed() -> Histories:
    """A replica lacked the rows of an epoch whose log was removed when they were committed. The job ended, in every
    start, because of a log that was gone."""
    for call in range(30, 90):
        faults = [Fault(1, 2, "pause", "spark-commits"), Fault(2, call, "failover", size=2)]
        yield Setup(("staged",), mode="timeout", rows=5), faults


def _a_former_coordinator_answers() -> Histories:
    """The coordinators moved while the writers produced, and a driver died when it had committed. The next one is
    answered by the former coordinator, which knows of nothing since; what it does not know is not lost."""
    for size in (4, 20):
        for produce in (1, 2, 3, 4):
            for commit in range(1, 7):
                moved = Fault(1, produce, "failover", "produce", size)
                yield Setup(("kafka",), rows=8), [moved, Fault(1, commit, "killed", "commit")]


def _an_ending_that_was_sent_again() -> Histories:
    """librdkafka sent the end of a transaction again, which the first request reached later: in the next transaction
    of the same producer, whose rows were visible before they were decided. A producer that sent one again is not used
    again, which the world did not know; and a driver's connection sends none again."""
    for at, sizes in (("confirm", range(1, 8)), ("commit", range(10, 18))):
        for nth in range(1, 5):
            for late in sizes:
                yield Setup(("kafka",), rows=8), [Fault(1, nth, "twice", at, late)]


def _a_former_coordinator_is_sealed() -> Histories:
    """The coordinators moved while the drainer committed an epoch. Its producer was used again, and the seal of that
    epoch was answered by the former coordinator: it called the transaction before open, under the same producer id and
    epoch. Sealed with its start, the rows counted as committed when their own, later start was seen; a sweep aborted
    them."""
    for rows in (8, 12):
        for quantum in (3, 9):
            for commit in range(1, 7):
                for size in (3, 4):
                    moved = Fault(1, commit, "failover", "commit", size)
                    yield Setup(("kafka",), "concurrent", rows=rows, quantum=quantum), [moved]


def _a_drainer_that_outlives_its_driver() -> Histories:
    """A drainer stood still in a request for longer than its driver waited for it in the end. When it woke, it opened
    a new session in place of the one that was closed meanwhile, and left that open for as long as the process lived."""
    for sink in ("staged", "postgres"):
        for quantum in (1, 3):
            for at in ("fence", "connect", "sql"):
                for nth in range(1, 7):
                    done = Fault(1, 2, "killed", "spark-commits")
                    yield Setup((sink,), "timeout", rows=5, quantum=quantum), [done, Fault(2, nth, "stall", at, 30)]


def _state_written_over_before_the_power_fails() -> Histories:
    """A driver stood still before it wrote the state of an epoch, and woke up when the next one had decided that epoch.
    What it wrote over the synced state was not synced; the power took it, and no start came up again."""
    for sink in ("s3", "files"):
        for quantum in (1, 3):
            for still in range(116, 136, 4):
                for cut in range(130, 150, 2):
                    faults = [Fault(1, 1, "pause", "spark-state", still), Fault(2, cut, "power")]
                    yield Setup((sink,), stateful=True, rows=8, quantum=quantum), faults


def _aborted_while_it_waits_in_the_log() -> Histories:
    """A part of an epoch was lost, so the drainer aborted what the next ones had prepared, to write them later. Their
    producers were used again. After a takeover the broker named a later transaction of theirs, which counted as proof
    that the aborted one had been committed, and the log was removed."""
    for rows in (8, 12):
        for quantum in (7, 9, 11):
            for commit in (1, 2):
                for call in range(280, 350, 10):
                    faults = [Fault(1, commit, "lapse", "commit"), Fault(2, call, "pause")]
                    yield Setup(("postgres", "kafka"), "concurrent", rows=rows, quantum=quantum), faults


STORIES = {
    "a driver that stands still in its first start removes nothing of the next one": _stands_still_in_its_first_start,
    "a note of the query's id that was written over is recognised": _two_notes_of_the_query,
    "a note written over under a decided epoch is recognised": _a_note_written_over_while_epochs_wait,
    "a replica that does not know the sink has lost it": _a_replica_that_lacks_the_sink,
    "a connection repeats no request": _rows_that_arrive_twice,
    "a driver that dies while it stands still is replaced once": _dies_while_it_stands_still,
    "what a drainer opens late is swept by the next start": _opened_after_the_drainer_ended,
    "a late registration of its own is no newer run": _registered_while_it_starts_again,
    "rows that are lost after their log was removed have a name": _lost_after_the_log_was_removed,
    "what a former coordinator does not know is not lost": _a_former_coordinator_answers,
    "a drainer that is left behind closes what it opens": _a_drainer_that_outlives_its_driver,
    "state that a superseded driver wrote over is put back": _state_written_over_before_the_power_fails,
    "what waits in the log is not proven by a later transaction": _aborted_while_it_waits_in_the_log,
    "what a former coordinator calls open is not sealed": _a_former_coordinator_is_sealed,
    "a producer that sent an end again is not used again": _an_ending_that_was_sent_again,
}


def run_all() -> list[str]:
    """Those that go wrong, told."""
    failed = []
    for name, histories in STORIES.items():
        count = 0
        for setup, faults in histories():
            count += 1
            verdict = World(setup, faults, 1).run()
            if verdict.anomalies:
                failed.append(f"{name}\n{told(setup, faults, verdict)}")
                break
        print(f"{name}: {count} histories{', and it goes wrong' if failed and failed[-1].startswith(name) else ''}")
    return failed
