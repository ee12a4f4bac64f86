"""A restore and a plain start of the same job that overlap: one of them ends, and nothing is doubled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.config.operations import Recovery
from penstock.engine.restore_point import RestorePoint
from penstock.errors import SavepointError, Superseded
from penstock.storage.local import LocalStorage
from tests.support.job_on_disk import SPARK, JobOnDisk
from tests.support.memory_sink import MemorySink


class At:
    """Does something else before the `number`-th time that histories or generations are listed or created."""

    def __init__(self, number: int, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
        self.left, self._meanwhile = number, meanwhile
        for name in ("create", "list"):
            real = getattr(LocalStorage, name)
            monkeypatch.setattr(LocalStorage, name, lambda *given, real=real: self._call(real, *given))

    def _call(self, real: Any, storage: LocalStorage, name: str, *more: Any) -> Any:
        if name.partition("/")[0] in ("restores", "restoring", "generations"):
            self.left -= 1
            if self.left == 0:
                self._meanwhile()
        return real(storage, name, *more)

    @property
    def reached(self) -> bool:
        return self.left <= 0


class Race:
    """A restore of the job's own checkpoint and a plain start; each then runs the job, unless it is refused."""

    def __init__(self, folder: Path) -> None:
        self.sink = MemorySink()
        self.job = JobOnDisk(folder, "payments", self.sink)
        self.job.run(20)
        self.ended: list[str] = []

    def restore(self) -> None:
        try:
            self.job.restore(self.job.root)
            self.start()
        except (SavepointError, Superseded) as refused:
            self.ended.append(f"restore: {refused.happened}")

    def start(self) -> None:
        settings = cast("Any", SimpleNamespace(recovery=Recovery()))
        point = RestorePoint("payments", {}, settings, LocalStorage(self.job.root), SPARK, False)
        point._current = self.job.histories.current()
        run = self.job.coordinator()
        try:
            run.recover()
            point.refuse_replaced()
            self.job._query(run, 30)
        except Superseded as refused:
            self.ended.append(f"start: {refused.happened}")
        finally:
            run.close()


@pytest.mark.parametrize("interrupted", ["restore", "start"])
def test_a_restore_and_a_start_that_overlap_at_any_step_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    for number in itertools.count(1):
        race = Race(tmp_path / str(number))
        first, second = (race.restore, race.start) if interrupted == "restore" else (race.start, race.restore)
        with monkeypatch.context() as patched:
            at = At(number, patched, second)
            first()
        if not at.reached:
            break
        current = race.job.histories.current()
        assert {"metadata"} <= {path.name for path in (race.job.folder / current).iterdir()}, f"call {number}"
        race.job.run(60)
        assert sorted(race.sink.visible) == list(range(60)), f"call {number}, {race.ended}"
    assert number > 10
