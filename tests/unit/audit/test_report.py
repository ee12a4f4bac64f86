"""Which decisions an audit compares: those of complete epochs, also of a history that a restore has ended."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.audit import report
from penstock.audit.compare import CHANGED, NOT_PROVABLE, Decided, Finding, Part, Visible
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
        found = Audit(JobLedgers.at(str(job.root)), sinks, {}).run()
        assert ([each.kind for each in found.findings], found.status) == ([NOT_PROVABLE], 3)


def test_the_report_counts_what_is_visible_of_each_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MemorySink()
    job = JobOnDisk(tmp_path, "job", sink)
    job.run(20)

    def read(sink: Any, decided: Sequence[Decided], *_: Any) -> Visible:
        """Epoch 1 has lost a row, epoch 2 has one too many, epoch 3 has left."""
        parts: dict[Hashable, Part] = {}
        for writer in decided:
            parts[key(writer)] = part = Part()
            part.rows = writer.rows + {(1, 0): -1, (2, 0): 1}.get((writer.epoch, writer.writer), 0)
        gone = {key(writer): "it has left" for writer in decided if writer.epoch == 3}
        return Visible({each: part for each, part in parts.items() if each not in gone}, gone=gone)

    def key(writer: Decided) -> Hashable:
        return writer.epoch, writer.generation, writer.writer

    monkeypatch.setitem(report._READERS, "MemorySink", read)
    audited = Audit(JobLedgers.at(str(job.root)), {"out": job.sink}, {}).run()
    rows = [each["decided"] for each in audited.epochs]
    counted = [(each["epoch"], each["visible"] - each["decided"], each["unaccounted"]) for each in audited.epochs]
    assert counted[:4] == [(0, 0, 0), (1, -1, 1), (2, 1, 1), (3, -rows[3], 0)]
    assert sum(rows) == len(sink.visible)
    assert json.loads(audited.to_json())["epochs"] == audited.epochs

    monkeypatch.setitem(report._READERS, "MemorySink", lambda *_: Visible(unprovable="it never shows that"))
    unprovable = Audit(JobLedgers.at(str(job.root)), {"out": job.sink}, {}).run()
    assert [(each["visible"], each["unaccounted"]) for each in unprovable.epochs] == [(None, 0)] * len(rows)


def test_the_report_shows_names_as_text() -> None:
    odd = Report("j<b>", findings=[Finding(CHANGED, "q", "s", 1, "a < b")])
    assert "<b>" not in page_of(odd)
    assert "a &lt; b" in page_of(odd)
    assert odd.status == 1
