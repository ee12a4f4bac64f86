"""Which decisions an audit compares: those of complete epochs, also of a history that a restore has ended."""

from __future__ import annotations

from pathlib import Path

from penstock.audit.compare import CHANGED, NOT_PROVABLE, Finding
from penstock.audit.report import Audit, Report, decided_of
from penstock.cli.audit import page_of
from penstock.engine.settlement import JobLedgers
from tests.support.job_on_disk import JobOnDisk
from tests.support.memory_sink import MemorySink


def epochs(job: JobOnDisk) -> tuple[list[int], list[int]]:
    [query] = JobLedgers.at(str(job.root)).queries
    complete, under_way = decided_of(query)
    return sorted({each.epoch for each in complete}), sorted({each.epoch for each in under_way})


def test_an_epoch_that_is_decided_and_not_complete_is_not_compared(tmp_path: Path) -> None:
    job = JobOnDisk(tmp_path, "job", MemorySink())
    job.run(3)
    done, open_epochs = epochs(job)
    assert (len(done), open_epochs) == (job.complete + 1, [])
    job.dies_at("epoch.decided", 4)
    assert epochs(job) == (done, [done[-1] + 1])
    job.run(5)
    assert epochs(job)[1] == []


def test_rows_of_a_history_that_a_restore_has_ended_are_still_accounted_for(tmp_path: Path) -> None:
    sink = MemorySink()
    job = JobOnDisk(tmp_path, "job", sink)
    job.run(8)
    last = job.complete
    job.restore(job.root)
    job.run(20)
    [query] = JobLedgers.at(str(job.root)).queries
    complete, under_way = decided_of(query)
    assert {each.epoch for each in under_way} == {last}, "whether the last epoch before the restore was completed"
    assert sum(each.rows for each in (*complete, *under_way)) == len(sink.visible)


def test_a_kind_of_sink_without_a_reader_is_not_provable(tmp_path: Path) -> None:
    job = JobOnDisk(tmp_path, "job", MemorySink())
    job.run(3)
    for sinks in ({"out": job.sink}, {}):
        report = Audit(JobLedgers.at(str(job.root)), sinks, {}).run()
        assert ([each.kind for each in report.findings], report.status) == ([NOT_PROVABLE], 3)


def test_the_report_shows_names_as_text() -> None:
    report = Report("j<b>", findings=[Finding(CHANGED, "q", "s", 1, "a < b")])
    assert "<b>" not in page_of(report)
    assert "a &lt; b" in page_of(report)
    assert report.status == 1
