"""`penstock.testing.simulate` passes a sound sink, finds what is wrong with an unsound one, and tells how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, SinkScope, TwoPhaseSink, Writer, WriterScope
from penstock.deadline import Deadline
from penstock.testing import simulate
from penstock.testing.simulation import place
from tests.support.named_rows import NamedRows


class Store:
    """A fake client with places: staged rows, rows that readers see, and what proves a commit."""

    def __init__(self) -> None:
        self.staged: dict[str, tuple[int, list[Any]]] = {}
        self.rows: list[Any] = []
        self.proofs: set[str] = set()

    def publish(self, name: str) -> bool:
        place("publish")
        if name not in self.staged:
            return False
        self.rows += self.staged.pop(name)[1]
        self.proofs.add(name)
        return True


class StoreSink(TwoPhaseSink):
    def __init__(self, store: Store) -> None:
        self.store = store

    def open_writer(self, scope: WriterScope) -> Writer:
        return _Writer(self.store, scope)

    def open_committer(self, scope: SinkScope) -> Committer:
        return StoreCommitter(self.store, scope)


class _Writer(Writer):
    def __init__(self, store: Store, scope: WriterScope) -> None:
        self._store, self._generation, self._rows = store, scope.sink.generation, list[Any]()
        self._name = f"{scope.sink.prefix}-{scope.sink.generation}-{scope.epoch}-{scope.partition}-{scope.task_attempt}"

    def write(self, batch: Any) -> None:
        self._rows += [tuple(row.values()) for row in batch.to_pylist()]

    def pre_commit(self) -> Mapping[str, Any]:
        self._store.staged[self._name] = (self._generation, self._rows)
        return {"name": self._name}

    def abort(self) -> None:
        self._store.staged.pop(self._name, None)


class StoreCommitter(Committer):
    def __init__(self, store: Store, scope: SinkScope) -> None:
        self.store, self.scope = store, scope

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        return {one.writer: self.one(one.payload["name"]) for one in committables}

    def one(self, name: str) -> Outcome:
        if self.store.publish(name):
            return Outcome.COMMITTED
        return Outcome.ALREADY_COMMITTED if name in self.store.proofs else Outcome.LOST

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        for one in committables:
            self.store.staged.pop(one.payload["name"], None)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {one.payload["name"] for one in keep}
        older = [name for name, (run, _) in self.store.staged.items() if run <= self.scope.generation]
        for name in [name for name in older if name not in kept]:
            del self.store.staged[name]
        return 0


class StoreHarness(NamedRows):
    def __init__(self) -> None:
        self.store = Store()

    def make_sink(self) -> TwoPhaseSink:
        return StoreSink(self.store)

    def read_visible(self) -> list[Any]:
        return self.store.rows


def test_a_sound_sink_passes() -> None:
    done = simulate(StoreHarness, histories=200)
    assert done.histories == 200
    assert min(done.faults[kind] for kind in ("kill", "killed", "pause")) > 20


def test_the_same_seed_is_the_same_history() -> None:
    assert simulate(StoreHarness, histories=20, seed=7) == simulate(StoreHarness, histories=20, seed=7)


def _no_proof(self: StoreCommitter, name: str) -> Outcome:
    return Outcome.COMMITTED if self.store.publish(name) else Outcome.LOST


def _believes(self: StoreCommitter, name: str) -> Outcome:
    self.store.publish(name)
    return Outcome.COMMITTED


def _sweeps_all(self: StoreCommitter, keep: Any, deadline: Any) -> int:
    self.store.staged.clear()
    return 0


def _sweeps_nothing_older(self: StoreCommitter, keep: Any, deadline: Any) -> int:
    for name in [name for name, (run, _) in self.store.staged.items() if run == self.scope.generation]:
        del self.store.staged[name]
    return 0


def _publishes_in_two_steps(self: Store, name: str) -> bool:
    if name not in self.staged:
        return False
    self.rows += self.staged[name][1]
    place("between the rows and their proof")
    self.proofs.add(name)
    del self.staged[name]
    return True


@pytest.mark.parametrize(
    ("of", "name", "broken", "found"),
    [
        (StoreCommitter, "one", _no_proof, "duplicate"),
        (Store, "publish", _publishes_in_two_steps, "duplicate"),
        (_Writer, "pre_commit", lambda self: self._store.rows.extend(self._rows) or {"name": self._name}, "stuck"),
    ],
)
def test_an_unsound_sink_is_found(monkeypatch: pytest.MonkeyPatch, of: Any, name: str, broken: Any, found: str) -> None:
    monkeypatch.setattr(of, name, broken)
    with pytest.raises(AssertionError, match=found) as failure:
        simulate(StoreHarness, histories=600)
    story = str(failure.value)
    assert story.startswith("seed ")
    assert "driver 1 starts" in story
    assert story.count("✗") <= 10


def test_a_commit_that_is_believed_loses_rows_of_which_the_target_lost_track(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told as committed, though nothing was there to commit."""
    monkeypatch.setattr(StoreCommitter, "one", _believes)
    monkeypatch.setattr(StoreCommitter, "abort_dangling", _sweeps_all)
    with pytest.raises(AssertionError, match="lost write"):
        simulate(StoreHarness, histories=600)


def test_what_stays_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def leftovers(self: StoreCommitter, deadline: Any) -> Any:
        from penstock.contracts.sink import Leftover

        return [Leftover(name, run) for name, (run, _) in self.store.staged.items()]

    monkeypatch.setattr(StoreCommitter, "leftovers", leftovers, raising=False)
    simulate(StoreHarness, histories=50)
    monkeypatch.setattr(StoreCommitter, "abort_dangling", _sweeps_nothing_older)
    with pytest.raises(AssertionError, match="left open"):
        simulate(StoreHarness, histories=600)
