"""Ledger and Spark's log after a power cut, or beside an older copy: restored, or refused, never begun anew."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Claim, Committable, Decision, DecisionId, StateIds, honoured, next_epoch
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.log_repair import (
    completed,
    keep_state,
    look,
    query_of,
    refuse_lost_state,
    restore,
    restore_barrier,
)
from penstock.checkpoint.spark_files import lost_state
from penstock.checkpoint.spark_log import Commit, SparkLog
from penstock.engine.preparation import EpochOutputs
from penstock.engine.restarts import ErrorClass, classify
from penstock.errors import CheckpointBehind, LedgerCorrupt, StateLost, Superseded
from penstock.failpoints import hooked
from penstock.storage.local import LocalStorage
from tests.support.memory_sink import MemorySink
from tests.support.memory_storage import MemoryStorage
from tests.support.power import Disk, PowerCut, fails
from tests.support.small_spark import SmallSpark

QUERY = "6a1c"


class World:
    """A query after some complete epochs."""

    def __init__(self, epochs: int = 6, watermark: int | None = 70, ids: StateIds | None = None) -> None:
        self.files, self.kept = MemoryStorage("file:/jobs/shop/out/spark"), MemoryStorage()
        self.ledger, self.watermark = Ledger(self.kept), watermark
        self.ids = ids
        self.offset = '{{"t":{{"0":{}}}}}'
        self.files.create("metadata", json.dumps({"id": QUERY}).encode())
        self.ledger.register({"history": "spark"})
        self.ledger.claim(Claim(1, 0, None), None)
        for epoch in range(epochs):
            self.cut(epoch)
            self.decide(epoch)
            self.files.create(f"commits/{epoch}", Commit(watermark or 0, ids).text().encode())

    @property
    def log(self) -> SparkLog:
        return SparkLog(self.files)

    def cut(self, epoch: int, end: int | None = None) -> None:
        metadata = json.dumps({"batchWatermarkMs": self.watermark or 55, "conf": {}})
        offset = self.offset.format(10 * epoch if end is None else end)
        self.files.create(f"offsets/{epoch}", f"v1\n{metadata}\n{offset}".encode())

    def decide(self, epoch: int, generation: int = 1, stateful: bool = False) -> None:
        barrier = self.log.barrier(epoch)
        assert barrier is not None
        one = Committable("out", 0, 10, epoch, {"name": f"{epoch}/{generation}"})
        self.ledger.decide(
            Decision(DecisionId(epoch, generation), (one,), self.watermark, state_ids=self.ids),
            query=QUERY,
            barrier=barrier.digest,
            offsets=barrier.text,
            history="spark",
            stateful=stateful,
        )

    def lose(self, *names: str) -> None:
        for name in names:
            self.files.delete(name)

    def restored(self) -> bool:
        found = look(self.ledger, self.log)
        decision = honoured(found)
        return restore(self.ledger, self.log, next_epoch(found), decision.id if decision else None) is not None

    def mended(self) -> bool:
        """Restored, if a look gives the protocol a reason to."""
        found = look(self.ledger, self.log)
        behind = next_epoch(found) > found.epoch or (honoured(found) is not None and not found.barrier)
        return self.restored() if found.damaged or behind else True


def picture(*tables: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        named = [{"localFileName": name, "dfsSstFileName": name} for name in tables]
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": named}))
    return written.getvalue()


def everything(storage: MemoryStorage) -> dict[str, bytes]:
    return dict(storage._files)


LOSSES = {
    "the newest barrier": ["offsets/5", "commits/5"],
    "three epochs": ["offsets/3", "offsets/4", "offsets/5", "commits/2", "commits/3", "commits/4", "commits/5"],
    "every barrier": [f"offsets/{n}" for n in range(6)],
    "every commit": [f"commits/{n}" for n in range(6)],
    "all of the log": [f"{folder}/{n}" for folder in ("offsets", "commits") for n in range(6)],
    "all of it, and the query's id": ["metadata", *(f"{f}/{n}" for f in ("offsets", "commits") for n in range(6))],
    "a barrier in the middle of nothing": ["offsets/4"],
}


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("torn", [False, True])
def test_what_is_decided_is_never_begun_anew(lost: str, torn: bool) -> None:
    world = World()
    before = everything(world.files)
    for name in LOSSES[lost]:
        world.lose(name)
        if torn and name.endswith(("5", "metadata")):
            world.files.create(name, b"")
    found = look(world.ledger, world.log)
    assert next_epoch(found) >= 5, "epochs up to 5 are decided"
    if lost == "a barrier in the middle of nothing":
        return  # Spark asks for the newest and the one before it only
    assert world.restored()
    assert not world.log.damaged()
    assert world.log.query_id() == QUERY
    epoch, pending = world.log.next_epoch()
    assert (epoch, pending) in ((5, True), (6, False))
    for name in ("offsets/5", "offsets/4" if pending else "commits/5"):
        assert world.files.read(name) == before[name], name


def test_a_commit_whose_barrier_is_lost() -> None:
    """Spark would take the newest barrier it has for one that was not committed, and run it again."""
    world = World()
    world.lose("offsets/5")
    assert look(world.ledger, world.log).damaged
    assert world.restored()
    assert world.log.next_epoch() == (6, False)


def test_a_run_that_has_decided_nothing_yet_knows_what_was_complete() -> None:
    world = World()
    world.ledger.register({"history": "spark"})
    world.ledger.claim(Claim(2, 6, None), QUERY)
    world.lose(*LOSSES["three epochs"])
    found = look(world.ledger, world.log)
    assert (found.epoch, next_epoch(found), honoured(found)) == (2, 6, None)
    assert world.restored()
    assert world.log.next_epoch() == (6, False)


def test_a_torn_barrier_that_nobody_decided_on_is_cut_anew() -> None:
    world = World()
    world.files.create("offsets/6", b"")
    world.files.create("offsets/.6.crc", b"of another content")
    assert look(world.ledger, world.log).damaged
    assert world.restored()
    assert world.log.next_epoch() == (6, False)
    assert world.files.list("offsets")[-1] == "5"
    assert world.files.read("offsets/.6.crc") is None


def test_a_barrier_that_ends_before_the_position_of_its_last_source_is_cut_anew() -> None:
    """The power failed when the disk had the file up to the end of a line. Spark stops at it in every start."""
    world = World(0)
    world.offset = '{{"t":{{"0":{}}}}}\n{{"u":{{"0":1}}}}'
    for epoch in range(2):
        world.cut(epoch)
        world.decide(epoch)
        world.files.create(f"commits/{epoch}", b'v1\n{"nextBatchWatermarkMs":70}')
    world.offset = '{{"t":{{"0":{}}}}}'
    world.cut(2)
    found = look(world.ledger, world.log)
    assert (found.epoch, found.barrier, found.damaged) == (2, False, True)
    assert world.restored()
    assert world.log.next_epoch() == (2, False)
    assert world.files.list("offsets") == ["0", "1"]


def test_a_barrier_that_was_lost_and_cut_anew_is_no_fault_where_the_decision_is_void() -> None:
    """Generation 1 decided when generation 2 had registered; the power failed; Spark has cut epoch 6 anew."""
    world = World()
    world.cut(6)
    world.decide(6)
    world.ledger.register({"history": "spark"})
    world.ledger.claim(Claim(2, 6, None), QUERY)
    world.lose("offsets/6")
    world.cut(6, end=63)
    found = look(world.ledger, world.log)
    assert (found.epoch, found.barrier, honoured(found)) == (6, True, None)


@pytest.mark.parametrize("epoch", [5, 6])
def test_a_barrier_that_another_driver_has_written_over_is_restored(epoch: int) -> None:
    world = World()
    world.cut(6)
    world.decide(6)
    before = everything(world.files)
    world.lose(f"offsets/{epoch}")
    world.cut(epoch, end=999)
    world.files.create(f"offsets/.{epoch}.crc", b"of the other content")
    assert look(world.ledger, world.log).damaged
    assert world.restored()
    assert everything(world.files) == before
    assert not look(world.ledger, world.log).damaged


@pytest.mark.parametrize("lost", ["commits/5", "offsets/5", "nothing"])
def test_the_files_that_a_position_stands_for_are_restored_with_it(lost: str) -> None:
    world = World(5)
    world.offset = '{{"logOffset":{}}}'
    world.files.create("sources/0/50", b"v1\nours")
    world.cut(5)
    barrier = world.log.barrier(5)
    assert barrier is not None
    decision = Decision(DecisionId(5, 1), (Committable("out", 0, 10, 5, {}),), 70)
    notes = world.log.notes(barrier)
    world.ledger.decide(decision, query=QUERY, barrier=barrier.digest, offsets=barrier.text, notes=notes)
    world.files.create("commits/5", b'v1\n{"nextBatchWatermarkMs":70}')
    before = everything(world.files)
    assert not look(world.ledger, world.log).damaged
    world.lose("sources/0/50", lost)
    world.files.create("sources/0/50", b"v1\nof another driver")
    assert look(world.ledger, world.log).damaged
    assert world.restored()
    if lost == "commits/5":
        before.pop(lost)  # the epoch is decided, and its recovery completes the log
    assert everything(world.files) == before


@pytest.mark.parametrize("epoch", [4, 7])
def test_barriers_that_spark_does_not_go_by_are_not_compared(epoch: int) -> None:
    """Older ones are read by nothing, and of an epoch that is not decided any barrier will do."""
    world = World(7)
    world.lose(f"offsets/{epoch}")
    world.cut(epoch, end=999)
    assert not look(world.ledger, world.log).damaged


def test_a_barrier_that_was_overwritten_and_is_not_in_the_ledger_stops_the_job() -> None:
    world = World(4)
    decision = Decision(DecisionId(4, 1), (Committable("out", 0, 10, 4, {}),), 70)
    world.ledger.decide(decision, query=QUERY, barrier="0" * 64)
    world.cut(4)
    with pytest.raises(LedgerCorrupt, match="offsets/4 is not the file epoch 4 was decided on"):
        look(world.ledger, world.log)


def test_the_decision_of_a_run_that_was_superseded_is_no_measure_for_a_complete_epoch() -> None:
    """Generation 3 claimed epoch 5 and ran it at least once, without a decision; generation 2 decided when it woke."""
    world = World(5)
    world.cut(5, end=999)
    world.decide(5, generation=2)
    world.ledger.claim(Claim(3, 5, None), QUERY)
    world.lose("offsets/5")
    world.cut(5)
    world.files.create("commits/5", b'v1\n{"nextBatchWatermarkMs":70}')
    assert completed(world.ledger, 5, QUERY) is None
    assert not look(world.ledger, world.log).damaged
    world.ledger.claim(Claim(4, 6, None), QUERY)
    assert completed(world.ledger, 5, QUERY) is None, "a claim for a later epoch says nothing of this one"
    assert completed(world.ledger, 4, QUERY) is not None
    assert completed(world.ledger, 4, None) is None
    assert completed(world.ledger, -1, QUERY) is None


def test_a_decision_that_the_newer_run_honoured_is_the_one_that_was_carried_out() -> None:
    world = World(5)
    world.cut(5)
    world.decide(5)
    world.lose("offsets/5")
    world.cut(5, end=999)
    world.decide(5, generation=2)
    world.ledger.claim(Claim(3, 5, DecisionId(5, 1)), QUERY)
    found = completed(world.ledger, 5, QUERY)
    assert found is not None
    assert found.decision.id == DecisionId(5, 1)


def test_a_decision_that_is_not_there_restores_nothing() -> None:
    world = World()
    before = everything(world.files)
    assert restore(world.ledger, world.log, 6, DecisionId(6, 9)) is None
    assert everything(world.files) == before


def test_a_copy_for_a_savepoint_gets_the_barrier_that_was_decided() -> None:
    """The driver that was superseded has renamed its own over it while the newer run goes on by its memory."""
    world = World()
    before = everything(world.files)
    restore_barrier(world.ledger, world.log, 5)
    assert everything(world.files) == before
    world.lose("offsets/5")
    world.cut(5, end=999)
    restore_barrier(world.ledger, world.log, 5)
    assert everything(world.files) == before


def test_watermarks_come_from_the_decision_or_from_the_barrier_after_it() -> None:
    known, handed_on = World(), World(watermark=None)
    for world, watermark in ((known, 70), (handed_on, 55)):
        world.lose(*LOSSES["three epochs"])
        assert world.restored()
        assert world.log.committed_watermark(4) == watermark


# What cannot be restored


def unrestorable(world: World, *lost: str) -> None:
    world.lose(*(lost or LOSSES["three epochs"]))
    before = everything(world.files)
    assert not world.restored()
    assert everything(world.files) == before, "refused, but changed"


def test_a_decision_of_an_earlier_version_has_no_barrier_in_it() -> None:
    world = World(epochs=4)
    world.cut(4)
    barrier = world.log.barrier(4)
    assert barrier is not None
    decision = Decision(DecisionId(4, 1), (Committable("out", 0, 10, 4, {}),), 70)
    world.ledger.decide(decision, query=QUERY, barrier=barrier.digest)
    unrestorable(world, "offsets/4")


@pytest.mark.parametrize("digest", ["0", "~"])
def test_a_barrier_in_the_ledger_that_is_not_the_decided_one_is_not_believed(digest: str) -> None:
    world = World(epochs=4)
    decision = Decision(DecisionId(4, 1), (Committable("out", 0, 10, 4, {}),), 70)
    world.ledger.decide(decision, query=QUERY, barrier=digest, offsets="v1\n{}\n{}", history="spark")
    unrestorable(world, "offsets/9")


@pytest.mark.parametrize("query", ["0", "~"])
def test_barriers_of_another_query_are_not_taken_for_its_own(query: str) -> None:
    world = World()
    before = everything(world.files)
    text = "v1\n{}\n{}"
    decision = Decision(DecisionId(4, 9), (Committable("out", 0, 10, 4, {}),), 99)
    digest = hashlib.sha256(text.encode()).hexdigest()
    world.ledger.decide(decision, query=query, barrier=digest, offsets=text, history="spark")
    world.lose("offsets/4", "offsets/5", "commits/4", "commits/5")
    assert world.restored()
    assert world.files.read("offsets/4") == before["offsets/4"]
    assert world.log.committed_watermark(4) == 70


def test_a_commit_whose_own_decision_is_forgotten_comes_from_the_barrier_after_it() -> None:
    world = World(watermark=None)
    world.kept.delete("epochs/0000000004.g00000001.json")
    world.lose("commits/4", "commits/5", "offsets/5")
    assert world.restored()
    assert world.log.committed_watermark(4) == 55


IDS = {"0": [["0f3a"], ["9b10"]]}


def test_a_commit_that_lists_state_ids_comes_from_its_decision() -> None:
    world = World(ids=IDS)
    before = world.files.read("commits/4")
    world.lose("commits/4", "commits/5", "offsets/5")
    for name in ("0/6_0f3a.zip", "1/6_9b10.changelog"):
        world.files.create(f"state/0/{name}", b"")
    assert world.restored()
    assert world.files.read("commits/4") == before
    assert before is not None
    assert b'"stateUniqueIds":{"0":[["0f3a"],["9b10"]]}' in before


def test_a_commit_that_lists_state_ids_is_not_guessed() -> None:
    world = World(ids=IDS)
    world.kept.delete("epochs/0000000004.g00000001.json")
    world.lose("commits/4", "commits/5", "offsets/5")
    assert not world.restored()


def test_state_of_another_attempt_than_the_decided_one() -> None:
    world = World(ids=IDS)
    for name in ("0/6_0f3a.zip", "1/6_77c0.zip", "1/5_9b10.zip"):
        world.files.create(f"state/0/{name}", b"")
    unrestorable(world)


def test_state_that_is_older_than_the_decision() -> None:
    world = World()
    for version in range(1, 5):
        world.files.create(f"state/0/0/{version}.delta", b"")
    unrestorable(world)
    for version in (5, 6):
        world.files.create(f"state/0/0/{version}.delta", b"")
    world.files.create("state/0/1/left/6.zip", b"")
    world.files.create("state/0/_metadata/metadata", b"")
    assert world.restored()


def test_one_store_of_several_that_is_older() -> None:
    world = World()
    world.files.create("state/0/0/left/6_0f3a.zip", b"")
    world.files.create("state/0/0/right/5.changelog", b"")
    unrestorable(world)


def test_state_that_is_gone() -> None:
    world = World(epochs=4)
    world.cut(4)
    world.decide(4, stateful=True)
    unrestorable(world, "offsets/4")


def test_a_file_source_whose_own_log_is_older() -> None:
    world = World(epochs=0)
    world.offset = '{{"logOffset":{}}}'
    for epoch in range(3):
        world.cut(epoch, end=epoch)
        world.decide(epoch)
    world.files.create("sources/0/1", b"v1\n{}")
    unrestorable(world, "offsets/2")
    world.files.create("sources/0/2.compact", b"v1\n{}")
    assert world.restored()


# What an attempt has left that nobody decided on


def test_a_first_epoch_that_was_never_completed_leaves_nothing_that_spark_refuses() -> None:
    """Spark begins only where offsets, commits and state hold nothing, not even a hidden file."""
    for barrier in (None, b"", b"v1\n{"):
        world = World(0)
        left = ["state/0/0/1.delta", "state/0/_metadata/metadata", "offsets/.0.6f1d.tmp", "commits/.0.crc"]
        for name in left:
            world.files.create(name, b"x")
        if barrier is not None:
            world.files.create("offsets/0", barrier)
        world.files.create("sources/0/0", b"v1\n{}")
        assert world.mended()
        assert sorted(everything(world.files)) == ["metadata", "sources/0/0"], "where the source begins is kept"


def test_a_first_epoch_whose_barrier_is_whole_is_replayed_without_its_half_written_state() -> None:
    world = World(0)
    world.cut(0)
    world.files.create("state/0/_metadata/metadata", b"")
    world.files.create("state/0/0/1.delta", b"x")
    assert world.mended()
    assert sorted(everything(world.files)) == ["metadata", "offsets/0"]


def test_a_start_of_which_even_the_querys_id_is_torn_begins_anew() -> None:
    world = World(0)
    world.lose("metadata")
    for name in ("metadata", "offsets/0", "state/0/0/1.delta", "sources/0/0"):
        world.files.create(name, b"")
    assert world.mended()
    assert not everything(world.files)


def test_state_of_a_decided_first_epoch_is_never_removed() -> None:
    world = World(0)
    world.cut(0)
    world.decide(0, stateful=True)
    world.files.create("state/0/0/1.delta", b"x")
    world.lose("offsets/0")
    assert world.mended()
    assert world.files.read("state/0/0/1.delta") == b"x"


def test_state_of_a_void_decision_is_removed() -> None:
    """Its author was superseded when it decided, so it has committed nothing."""
    world = World(0)
    world.cut(0)
    world.decide(0, stateful=True)
    world.ledger.register({"history": "spark"})
    world.ledger.claim(Claim(2, 0, None), QUERY)
    world.files.create("state/0/0/1.delta", b"x")
    world.lose("offsets/0")
    assert world.mended()
    assert world.files.sizes("state") == {}


@pytest.mark.parametrize("name", ["state/0/0/2.delta", "state/0/0/left/7_0f3a.zip"])
def test_state_that_tells_of_complete_epochs_is_never_removed(name: str) -> None:
    """Without decisions, at least once, only the state itself knows that there were epochs."""
    world = World(0)
    world.files.create(name, b"x")
    unrestorable(world, "offsets/0")


def test_state_that_an_undecided_second_epoch_has_left_is_in_nobodys_way() -> None:
    world = World(1)
    for version in (1, 2):
        world.files.create(f"state/0/0/{version}.delta", b"x")
    world.files.create("offsets/1", b"")
    before = everything(world.files)
    assert restore(world.ledger, world.log, 1, None) == ["offsets/1"]
    assert everything(world.files) == {name: data for name, data in before.items() if name != "offsets/1"}


def test_what_is_removed_is_told() -> None:
    world = World(0)
    world.offset = '{{"logOffset":{}}}'
    world.cut(0)
    world.files.create("state/0/0/1.delta", b"x")
    assert restore(world.ledger, world.log, 0, None) == ["offsets/0", "state"]
    assert restore(world.ledger, world.log, 0, None) == []
    later = World(3)
    later.offset = '{{"logOffset":{}}}'
    later.cut(3)
    later.files.create("state/0/0/3.delta", b"x")
    assert restore(later.ledger, later.log, 3, None) == ["offsets/3"]
    assert later.files.read("state/0/0/3.delta") == b"x"


def refused(world: World) -> StateLost | None:
    try:
        refuse_lost_state(world.ledger, world.log, look(world.ledger, world.log), "out")
    except StateLost as error:
        return error
    return None


def test_state_that_is_gone_altogether_is_missed_where_the_decision_knows_of_it() -> None:
    for stateful, query in ((False, QUERY), (True, "0"), (True, "~")):
        world = World(2)
        world.cut(2)
        barrier = world.log.barrier(2)
        assert barrier is not None
        decision = Decision(DecisionId(2, 1), (), 70)
        world.ledger.decide(decision, query=query, barrier=None, offsets=barrier.text, stateful=stateful)
        world.files.create("commits/2", b'v1\n{"nextBatchWatermarkMs":70}')
        assert refused(world) is None
    world = World(2)
    world.cut(2)
    world.decide(2, stateful=True)
    world.files.create("commits/2", b'v1\n{"nextBatchWatermarkMs":70}')
    error = refused(world)
    assert error is not None
    assert "state, all of it" in str(error)
    assert "chk-1, from" in error.to_do, "which had none, as far as is known"


def test_a_log_that_is_behind_says_nothing_of_state() -> None:
    """Versions that belong to its end may be forgotten: those that the ledger knows of count."""
    world = World(6)
    world.files.create("state/0/0/6.snapshot", b"x")
    assert refused(world) is None
    world.lose(*LOSSES["three epochs"])
    assert refused(world) is None


def test_the_checkpoint_to_go_on_from_is_the_newest_complete_one_whose_state_is_whole() -> None:
    world = World(6)
    for version in (1, 2):
        world.files.create(f"state/0/0/{version}.snapshot", b"x")
    error = refused(world)
    assert error is not None
    assert "go on from file:/jobs/shop/out/checkpoints/chk-1, from a savepoint" in error.to_do
    world.lose("commits/1")
    error = refused(world)
    assert error is not None
    assert "checkpoints/chk-0," in error.to_do
    world.lose("state/0/0/1.snapshot")
    error = refused(world)
    assert error is not None
    assert "or go on from a savepoint or under" in error.to_do


def test_a_picture_whose_tables_are_lost_is_lost() -> None:
    world = World(1)
    world.files.create("state/0/0/1.zip", picture("a.sst"))
    error = refused(world)
    assert error is not None
    assert "version 1 of state/0/0" in str(error)
    world.files.create("state/0/0/SSTs/a.sst", b"x")
    assert refused(world) is None


def test_what_spark_has_begun_already_is_no_leftover() -> None:
    world = World(0)
    world.cut(0)
    world.files.create("state/0/0/1.delta", b"x")
    assert not look(world.ledger, world.log, running=True).damaged


@pytest.mark.parametrize("note", [None, b""])
@pytest.mark.parametrize("decided", [False, True])
def test_a_barrier_whose_source_has_lost_its_note_of_the_files(note: bytes | None, decided: bool) -> None:
    world = World(0)
    world.offset = '{{"logOffset":{}}}'
    for epoch in range(2):
        world.cut(epoch, end=epoch)
        world.decide(epoch)
        world.files.create(f"commits/{epoch}", b'v1\n{"nextBatchWatermarkMs":70}')
        world.files.create(f"sources/0/{epoch}", b"v1\n{}")
    world.cut(2, end=2)
    if note is not None:
        world.files.create("sources/0/2", note)
    if decided:
        world.decide(2)
        found = look(world.ledger, world.log)
        assert found.damaged is (note is not None), "only what is torn is removed"
        assert world.files.read("offsets/2"), "a decided barrier stays"
        return
    assert world.mended()
    assert world.log.next_epoch() == (2, False), "Spark cuts it anew"
    assert world.files.list("sources/0") == ["0", "1"]


def test_a_stream_that_a_plan_holds_twice_has_one_folder() -> None:
    world = World(1)
    world.files.create("sources/0/1", b"v1\n{}")
    metadata = json.dumps({"batchWatermarkMs": 70, "conf": {}})
    both = '{"logOffset":1}\n{"logOffset":1}'
    world.files.create("offsets/1", f"v1\n{metadata}\n{both}".encode())
    assert world.mended()
    assert world.log.next_epoch() == (1, True)


# Whose query it was


def test_the_querys_id_is_known_from_the_newest_run_on_this_history() -> None:
    world = World()
    world.lose("metadata")
    assert query_of(world.ledger, world.log) == QUERY
    elsewhere = SparkLog(MemoryStorage("file:/jobs/shop/out/spark-2"))
    assert query_of(world.ledger, elsewhere) is None, "a restored checkpoint begins with an id of its own"
    assert query_of(Ledger(MemoryStorage()), world.log) is None


def test_decisions_of_another_query_say_nothing() -> None:
    world = World()
    world.lose("metadata", *LOSSES["all of the log"])
    world.files.create("metadata", b'{"id":"another"}')
    found = look(world.ledger, world.log)
    assert (next_epoch(found), honoured(found)) == (0, None)
    before = everything(world.files)
    assert world.restored()
    assert everything(world.files) == before


# From a process that died before its sync, on a real disk


def test_a_decision_that_was_never_synced_is_synced_before_it_is_honoured(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    with disk.watched():
        ledger = Ledger(LocalStorage(disk.root / "ledger"))
        ledger.register({})
        for folder in ("epochs", "claims"):
            (disk.root / "ledger" / folder).mkdir()
        os.sync()
        disk.sync_all()
        aside = disk.root / "ledger" / "aside"
        aside.write_bytes(b"synced")
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.link(aside, disk.root / "ledger" / "epochs" / "0000000007.g00000001.json")  # and the process dies
        ledger.settle()
        disk.cut()
    assert (disk.root / "ledger" / "epochs" / "0000000007.g00000001.json").read_bytes() == b"synced"


# The whole way, with Spark's part played


def numbers(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, last), pa.int64())})


def test_a_query_whose_log_is_gone_goes_on_where_it_was(tmp_path: Path) -> None:
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop")
    query.run(30)
    for name in [*(tmp_path / "spark/offsets").iterdir(), *(tmp_path / "spark/commits").iterdir()]:
        name.unlink()
    query.run(60)
    assert sorted(query.sink.visible) == list(range(60))  # type: ignore[attr-defined]
    assert [one["event"] for one in query.events].count("log_restored") == 1


def test_a_query_that_runs_on_a_lost_log_already_is_refused(tmp_path: Path) -> None:
    """The drop-in that was not told of its checkpoint learns of it when Spark has cut the first epoch anew."""
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop")
    query.run(30)
    for name in [*(tmp_path / "spark/offsets").iterdir(), *(tmp_path / "spark/commits").iterdir()]:
        name.unlink()
    metadata = json.dumps({"batchWatermarkMs": 0, "conf": {}})
    query.write("offsets/0", f'v1\n{metadata}\n{{"t":{{"0":3}}}}')
    coordinator = query.coordinator()
    with pytest.raises(CheckpointBehind, match="goes on with epoch 0, its ledger with epoch"):
        coordinator.recover(query_running=True)
    coordinator.close()
    query.run(60)  # told of it, before Spark starts
    assert sorted(query.sink.visible) == list(range(60))  # type: ignore[attr-defined]


def test_a_power_cut_in_the_first_epoch_of_a_query_with_state(tmp_path: Path) -> None:
    """Spark syncs neither barrier nor state: of the one the name is left, of the other all."""
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop", stateful=True)
    with pytest.raises(PowerCut), hooked("epoch.sealed", fails):
        query.run(30)
    (tmp_path / "spark/offsets/0").write_bytes(b"")
    assert (tmp_path / "spark/state/0/0/1.delta").exists()
    query.run(30)
    assert sorted(query.sink.visible) == list(range(30))  # type: ignore[attr-defined]


def lose_state(query: SmallSpark, version: int) -> None:
    (query.spark / f"state/0/0/{version}.delta").write_bytes(b"")


def test_state_that_a_power_cut_has_taken_is_named_and_nothing_is_begun(tmp_path: Path) -> None:
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop", stateful=True)
    query.run(30)
    newest = query.log.next_epoch()[0] - 1
    visible = sorted(query.sink.visible)  # type: ignore[attr-defined]
    lose_state(query, newest + 1)
    with pytest.raises(StateLost, match=rf"after epoch {newest}.* version {newest + 1} of state/0/0") as refused:
        query.run(60)
    assert classify(refused.value) is ErrorClass.FATAL
    assert "another query uid" in refused.value.to_do
    assert f"checkpoints/chk-{newest - 1}," in refused.value.to_do
    assert sorted(query.sink.visible) == visible  # type: ignore[attr-defined]


def test_the_newest_checkpoint_whose_state_is_whole_is_named(tmp_path: Path) -> None:
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop", stateful=True)
    query.run(30)
    newest = query.log.next_epoch()[0] - 1
    lose_state(query, newest)
    lose_state(query, newest + 1)
    with pytest.raises(StateLost, match=f"checkpoints/chk-{newest - 2},"):
        query.run(60)


def of_two_runs(folder: Path, rows: int = 30) -> tuple[SmallSpark, int]:
    """A query, and the first epoch of its second run."""
    query = SmallSpark(folder, MemorySink(), numbers, job="shop", stateful=True)
    query.run(12)
    first = query.log.next_epoch()[0]
    query.run(rows)
    return query, first


def overwrite(query: SmallSpark, version: int, text: str = "") -> None:
    """As a superseded run does, by a rename; a power cut may take what it wrote."""
    query.write(f"state/0/0/{version}.delta", text)


@pytest.mark.parametrize("rows", [13, 30], ids=["the newest one", "an older one"])
def test_state_that_a_superseded_run_wrote_over_is_put_back(tmp_path: Path, rows: int) -> None:
    """It was in one epoch when the newer run registered: the first of that run."""
    query, first = of_two_runs(tmp_path, rows)
    kept = (query.spark / f"state/0/0/{first + 1}.delta").read_text()
    overwrite(query, first + 1)
    query.run(60)
    assert sorted(query.sink.visible) == list(range(60))  # type: ignore[attr-defined]
    assert (query.spark / f"state/0/0/{first + 1}.delta").read_text() == kept


def test_state_is_kept_in_the_first_epoch_of_each_run_with_its_checksum(tmp_path: Path) -> None:
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop", stateful=True)
    body = query._body

    def with_checksum(_: Any, outputs: EpochOutputs) -> None:
        body(_, outputs)
        query.write(f"state/0/0/.{outputs.epoch + 1}.delta.crc", "crc")
        query.write(f"state/0/0/{outputs.epoch + 1}.other", "no state")

    query._body = with_checksum  # type: ignore[method-assign]
    query.run(12)
    first = query.log.next_epoch()[0]
    query.run(30)
    storage = LocalStorage(query.spark / "_penstock/state")
    assert sorted(storage.sizes()) == [
        f"{version:010}.g{generation:08}/state+0+0+{name}"
        for version, generation in ((1, 1), (first + 1, 2))
        for name in (f".{version}.delta.crc", f"{version}.delta")
    ]


def test_what_is_kept_goes_with_the_state_that_spark_removes(tmp_path: Path) -> None:
    query, first = of_two_runs(tmp_path)
    newest = query.log.next_epoch()[0]
    for version in range(1, first + 1):
        (query.spark / f"state/0/0/{version}.delta").unlink()
    (query.spark / f"state/0/0/{newest}.snapshot").write_text("x")
    query.run(36)
    kept = LocalStorage(query.spark / "_penstock/state").list("")
    assert kept == [f"{first + 1:010}.g00000002", f"{newest + 1:010}.g00000003"]


def test_without_state_nothing_is_kept(tmp_path: Path) -> None:
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop")
    query.run(12)
    assert not (query.spark / "_penstock").exists()


def kept_twice() -> World:
    """Of one epoch by two runs: the first was superseded before its decision counted."""
    world = World(2)
    for number, data in ((9, b"of generation 9"), (10, b"of generation 10")):
        world.files.delete("state/0/0/2.delta")
        world.files.create("state/0/0/2.delta", data)
        keep_state(world.log, 2, number)
    world.files.create("state/0/0/1.delta", b"x")
    world.files.delete("state/0/0/2.delta")
    world.files.create("state/0/0/2.delta", b"")
    return world


def test_of_one_epoch_what_the_newest_run_kept_is_put_back() -> None:
    world = kept_twice()
    assert refused(world) is None
    assert world.files.read("state/0/0/2.delta") == b"of generation 10"


def test_a_run_that_was_superseded_puts_nothing_back() -> None:
    def fence() -> None:
        raise Superseded("Generation 1 has been superseded by generation 2.")

    world = kept_twice()
    with pytest.raises(Superseded):
        refuse_lost_state(world.ledger, world.log, look(world.ledger, world.log), "out", fence)
    assert world.files.read("state/0/0/2.delta") == b""


def test_where_no_state_is_lost_nothing_is_put_back() -> None:
    world = kept_twice()
    world.files.delete("state/0/0/2.delta")
    world.files.create("state/0/0/2.delta", b"whole")
    assert refused(world) is None
    assert world.files.read("state/0/0/2.delta") == b"whole"


@pytest.mark.parametrize("epochs", [0, 2])
def test_state_of_a_decided_epoch_that_is_lost_is_made_again_with_proof(tmp_path: Path, epochs: int) -> None:
    """The epoch before has left all that is needed for it."""
    query = SmallSpark(tmp_path, MemorySink(), numbers, job="shop", stateful=True)
    if epochs:
        query.run(4 * epochs)
    with pytest.raises(PowerCut), hooked("epoch.committed", fails):
        query.run(40)
    epoch, pending = query.log.next_epoch()
    assert pending
    lose_state(query, epoch + 1)
    (query.spark / "state/0/0/_metadata").mkdir()
    (query.spark / "state/0/0/_metadata/schema").write_bytes(b"" if epoch == 0 else b"x")
    query.run(40)
    assert query.actions[-1] == "verify"
    assert sorted(query.sink.visible) == list(range(40))  # type: ignore[attr-defined]


STATE_FILES: dict[str, tuple[dict[str, bytes], str | None]] = {
    "changes from the beginning": ({"1.delta": b"x", "2.delta": b"x", "3.delta": b"x"}, None),
    "a picture and changes": ({"2.snapshot": b"x", "2.delta": b"", "3.delta": b"x"}, None),
    "an older picture where the newest is torn": ({"1.zip": b"x", "2.changelog": b"x", "3.changelog": b"x"}, None),
    "a torn picture beside its changes": ({"1.delta": b"x", "2.delta": b"x", "3.delta": b"x", "3.snapshot": b""}, None),
    "another attempt's torn file": ({"3_aa.zip": b"", "3_bb.zip": b"x"}, None),
    "what a later attempt left": ({"3.zip": b"x", "4.zip": b""}, None),
    "no store at all": ({"notes.txt": b""}, None),
    "the newest is gone": ({"1.delta": b"x", "2.delta": b"x"}, "version 3 of state/0/0"),
    "the newest is torn": ({"2.zip": b"x", "3.zip": b""}, "version 3 of state/0/0"),
    "one in the middle is gone": ({"1.delta": b"x", "3.delta": b"x"}, "version 3 of state/0/0"),
    "the first is gone": ({"2.delta": b"x", "3.delta": b"x"}, "version 3 of state/0/0"),
    "a torn schema": ({"3.zip": b"x", "_metadata/schema": b""}, "state/0/0/_metadata/schema"),
    "a torn schema of a later epoch": ({"3.zip": b"x", "_stateSchema/default/3_0f": b""}, None),
    "a torn schema of this epoch": (
        {"3.zip": b"x", "_stateSchema/default/2_0f": b""},
        "state/0/0/_stateSchema/default/2_0f",
    ),
}


@pytest.mark.parametrize("name", STATE_FILES)
def test_which_state_is_whole(name: str) -> None:
    files, lost = STATE_FILES[name]
    storage = MemoryStorage()
    for file, content in files.items():
        storage.create(f"state/0/0/{file}", content)
    storage.create("state/0/1/3.snapshot", b"x")
    assert lost_state(storage, 2, storage.sizes("state")) == lost


@pytest.mark.parametrize(
    ("tables", "whole"),
    [({"a.sst": b"x", "b.sst": b"x"}, True), ({"a.sst": b"x", "b.sst": b""}, False), ({"a.sst": b"x"}, False)],
)
def test_a_picture_is_as_whole_as_the_tables_it_names(tables: dict[str, bytes], whole: bool) -> None:
    storage = MemoryStorage()
    storage.create("state/0/0/1.zip", picture("a.sst", "b.sst"))
    for name, content in tables.items():
        storage.create(f"state/0/0/SSTs/{name}", content)
    assert (lost_state(storage, 0, storage.sizes("state")) is None) is whole


# Step by step


def test_a_look_makes_the_ledger_durable_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world, steps = World(), []
    monkeypatch.setattr(Ledger, "settle", lambda ledger: steps.append("settled"))
    monkeypatch.setattr(Ledger, "decisions_since", lambda *_: steps.append("read") or ())
    look(world.ledger, world.log)
    assert steps == ["settled", "read"]


@pytest.mark.parametrize("torn", [False, True])
def test_a_query_that_nobody_knows_is_found_as_it_is(torn: bool) -> None:
    """The drop-in beside a checkpoint of its own: no decision, no id in the ledger."""
    files = MemoryStorage("file:/jobs/shop/out/spark")
    files.create("offsets/0", b"v1\n{}\n7")
    if torn:
        files.create("offsets/1", b"")
    found = look(Ledger(MemoryStorage()), SparkLog(files), running=True)
    assert (found.epoch, found.barrier, found.damaged) == (0, True, torn)


@pytest.mark.parametrize("other", [1, 3])
def test_the_barrier_must_be_that_of_the_very_decision_that_is_honoured(other: int) -> None:
    """Another decision for the epoch, void, was made on the file that stands there."""
    world = World(2)
    world.cut(2, end=7)
    world.decide(2, generation=2)
    world.lose("offsets/2")
    world.cut(2, end=9)
    world.decide(2, generation=other)
    world.ledger.claim(Claim(4, 2, DecisionId(2, 2)), QUERY)
    assert look(world.ledger, world.log).damaged
    assert world.restored()
    assert (world.files.read("offsets/2") or b"").endswith(b'{"t":{"0":7}}'), "the file of the decision that counts"


@pytest.mark.parametrize("query", ["0000", "ffff"])
def test_manifests_of_another_query_restore_nothing(query: str) -> None:
    world = World(2)
    barrier = world.log.barrier(1)
    assert barrier is not None
    text = barrier.text.replace('{"0":10}', '{"0":99}')
    digest = world.log.parse_barrier(1, text.encode()).digest
    theirs = Decision(DecisionId(1, 9), (), 70)
    world.ledger.decide(theirs, query=query, barrier=digest, offsets=text, history="another")
    world.lose("offsets/1", "commits/1")
    assert world.restored()
    assert (world.files.read("offsets/1") or b"").endswith(b'{"t":{"0":10}}')


def test_of_several_decisions_for_a_complete_epoch_the_newest_is_restored() -> None:
    world = World(3)
    before = everything(world.files)
    world.lose("offsets/1")
    world.cut(1, end=5)
    world.decide(1, generation=2)
    for generation, end in ((4, 15), (3, 25)):
        world.lose("offsets/1")
        world.cut(1, end=end)
        world.decide(1, generation=generation)
    world.lose("offsets/1", "offsets/2", "commits/1", "commits/2")
    world.files.create("offsets/2", before["offsets/2"])
    assert restore(world.ledger, world.log, 2, DecisionId(2, 1))
    assert (world.files.read("offsets/1") or b"").endswith(b'{"t":{"0":15}}')


@pytest.mark.parametrize("lost", [["offsets/0"], ["commits/0"], ["offsets/0", "commits/0"]])
def test_the_very_first_epoch_is_restored_like_any_other(lost: list[str]) -> None:
    world = World(1)
    world.cut(1)
    world.decide(1)
    before = everything(world.files)
    world.lose(*lost)
    assert world.restored()
    assert everything(world.files) == before


def test_a_first_epoch_that_is_decided_and_lost_is_restored_alone() -> None:
    world = World(0)
    world.cut(0)
    world.decide(0)
    before = everything(world.files)
    world.lose("offsets/0", "metadata")
    assert world.restored()
    assert world.files.read("offsets/0") == before["offsets/0"]
    assert world.files.read("metadata") == b'{"id":"6a1c"}', "as Spark spells it"


def test_a_whole_log_is_left_as_it_is() -> None:
    world = World(3)
    before = everything(world.files)
    assert world.restored()
    assert everything(world.files) == before


def test_the_next_epoch_that_nobody_decided_is_not_looked_for() -> None:
    """State of the last complete epoch is what must be there, no more."""
    world = World(2)
    world.lose("commits/1")
    world.files.create("state/0/0/2.delta", b"")
    assert restore(world.ledger, world.log, 2, None)
    assert world.log.next_epoch() == (2, False)
    world.lose("commits/1", "state/0/0/2.delta")
    world.files.create("state/0/0/1.delta", b"")
    assert restore(world.ledger, world.log, 2, None) is None


def test_state_that_only_the_epoch_before_tells_of() -> None:
    world = World(1)
    world.cut(1)
    world.decide(1, stateful=True)
    world.files.create("commits/1", b'v1\n{"nextBatchWatermarkMs":70}')
    world.lose("commits/1")
    assert restore(world.ledger, world.log, 2, None) is None, "its state is not there"
    world.files.create("state/0/0/2.delta", b"")
    assert restore(world.ledger, world.log, 2, None)


def test_state_of_the_very_first_epoch_must_be_there() -> None:
    world = World(0)
    world.cut(0)
    world.decide(0, stateful=True)
    world.lose("offsets/0")
    assert not world.restored()
    world.files.create("state/0/0/1.delta", b"")
    assert world.restored()


def test_a_version_that_nobody_knows_is_not_guessed() -> None:
    world = World(2)
    world.lose("commits/0", "commits/1")
    world.files.create("commits/0", b'v4\n{"nextBatchWatermarkMs":70}')
    assert restore(world.ledger, world.log, 2, None) is None


def test_without_any_watermark_a_commit_is_not_guessed() -> None:
    world = World(2, watermark=None)
    world.lose("commits/1")
    assert restore(world.ledger, world.log, 2, None) is None
    assert world.files.read("commits/1") is None


def test_a_decisions_own_watermark_goes_before_that_of_the_next_barrier() -> None:
    world = World(2, watermark=70)
    world.watermark = 99
    world.cut(2)
    world.decide(2)
    world.lose("commits/1")
    assert restore(world.ledger, world.log, 2, DecisionId(2, 1))
    assert world.log.committed_watermark(1) == 70


@pytest.mark.parametrize(
    ("offset", "names", "whole"),
    [
        ('{{"logOffset":0}}', [], False),
        ('{{"logOffset":0}}', ["0"], True),
        ('{{"logOffset":1}}', ["0"], False),
        ('{{"logOffset":1}}', ["0.compact", "1"], True),
        ('{{"logOffset":0,"more":1}}', [], True),
        ("{{}}", [], True),
        ("7", [], True),
    ],
)
def test_a_source_that_reads_files_needs_its_own_log(offset: str, names: list[str], whole: bool) -> None:
    world = World(1)
    world.offset = offset
    world.cut(1)
    world.decide(1)
    for name in names:
        world.files.create(f"sources/0/{name}", b"v1\n{}")
    world.lose("offsets/1")
    assert world.restored() is whole


def test_stores_below_a_partition_count_and_other_folders_do_not() -> None:
    world = World(0)
    world.cut(0)
    world.decide(0, stateful=True)
    world.lose("offsets/0")
    for name in ("_metadata/metadata", "0/left/1.delta", "0/right/1.zip", "0/1.delta", "0/.1.delta.crc"):
        world.files.create(f"state/0/{name}", b"")
    world.files.create("state/0/_metadata/9.delta", b"")
    assert world.restored()
    world.lose("offsets/0", "state/0/0/right/1.zip")
    world.files.create("state/0/0/right/9.zip", b"")
    assert not world.restored()


class TestDrains:
    """The barrier at the end of time counts once it is decided on, and not before."""

    def after_restore(self, world: World) -> tuple[int, bool]:
        found = look(world.ledger, world.log)
        decision = honoured(found)
        if found.damaged:
            assert restore(world.ledger, world.log, next_epoch(found), decision.id if decision else None)
        return world.log.next_epoch()

    def test_undecided_it_is_not_there_and_goes(self) -> None:
        world = World(6)
        world.log.end_of_time(6)
        world.files.create("offsets/.6.crc", b"Spark's checksum")
        found = look(world.ledger, world.log)
        assert (found.epoch, found.barrier, found.damaged) == (6, False, True)
        assert self.after_restore(world) == (6, False)
        assert world.files.read("offsets/.6.crc") is None
        assert not look(world.ledger, world.log).damaged

    def test_it_stays_where_a_newer_run_has_registered(self) -> None:
        """By now it may be that run's own."""
        world = World(6)
        world.log.end_of_time(6)
        before = everything(world.files)

        def superseded() -> None:
            raise Superseded("A newer run has registered.")

        with pytest.raises(Superseded):
            restore(world.ledger, world.log, 6, None, fence=superseded)
        assert everything(world.files) == before

    def test_decided_it_is_a_barrier_like_any_other(self) -> None:
        world = World(6)
        world.log.end_of_time(6)
        world.decide(6)
        found = look(world.ledger, world.log)
        assert (found.epoch, found.barrier, found.damaged) == (6, True, False)
        world.files.create("commits/6", b'v1\n{"nextBatchWatermarkMs":7}')
        assert not look(world.ledger, world.log).damaged
        assert world.log.drained(6)

    def test_decided_and_lost_it_is_written_again(self) -> None:
        world = World(6)
        world.log.end_of_time(6)
        world.decide(6)
        world.files.delete("offsets/6")
        assert restore(world.ledger, world.log, 6, DecisionId(6, 1))
        assert world.log.drained(6)

    def test_a_decision_that_does_not_count_decides_no_drain(self) -> None:
        world = World(6)
        world.log.end_of_time(6)
        world.decide(6)
        world.ledger.claim(Claim(2, 6, None), QUERY)
        assert self.after_restore(world) == (6, False)

    def test_in_place_of_the_barrier_that_was_decided_on_it_gives_way_to_it(self) -> None:
        world = World(6)
        world.cut(6)
        world.decide(6)
        decided = world.files.read("offsets/6")
        world.log.end_of_time(6)
        assert self.after_restore(world) == (6, True)
        assert world.files.read("offsets/6") == decided

    def test_over_a_complete_epoch_it_gives_way_to_what_was_decided(self) -> None:
        world = World(6)
        decided = world.files.read("offsets/5")
        world.log.end_of_time(5)
        assert look(world.ledger, world.log).damaged
        assert self.after_restore(world) == (6, False)
        assert world.files.read("offsets/5") == decided

    def test_complete_without_a_decision_it_stays(self) -> None:
        """At least once decides nothing."""
        world = World(6)
        world.log.end_of_time(6)
        world.files.create("commits/6", b'v1\n{"nextBatchWatermarkMs":7}')
        assert not look(world.ledger, world.log).damaged
        assert world.log.drained(6)

    @pytest.mark.parametrize("other", ["0000", "ffff"])
    def test_complete_without_a_decision_it_stays_whatever_another_query_decided(self, other: str) -> None:
        """And whatever else is restored."""
        world = World(6)
        world.log.end_of_time(6)
        world.files.create("commits/6", b'v1\n{"nextBatchWatermarkMs":7}')
        world.ledger.decide(
            Decision(DecisionId(6, 3), (), 7), query=other, barrier="x", offsets=None, history="spark", stateful=False
        )
        world.files.create("offsets/7", b"")
        assert self.after_restore(world) == (7, False)
        assert world.log.drained(6)

    def test_decided_it_is_left_as_it_is_though_the_manifest_does_not_hold_it(self) -> None:
        world = World(6)
        world.log.end_of_time(6)
        barrier = world.log.barrier(6)
        assert barrier is not None
        decision = Decision(DecisionId(6, 1), (), 7)
        world.ledger.decide(
            decision, query=QUERY, barrier=barrier.digest, offsets=None, history="spark", stateful=False
        )
        assert restore(world.ledger, world.log, 6, decision.id) is not None
        assert world.log.drained(6)

    @pytest.mark.parametrize("begun_by", [QUERY, "another"])
    def test_at_most_once_it_counts_once_it_is_begun(self, begun_by: str) -> None:
        world = World(6)
        world.log.end_of_time(6)
        assert world.ledger.begin(6, begun_by)
        assert self.after_restore(world) == (6, begun_by == QUERY)

    def test_that_of_another_query_is_none(self) -> None:
        """A restored copy: the mark bears the id of the query that it was copied from."""
        world = World(6)
        world.log.end_of_time(6)
        text = (world.files.read("offsets/6") or b"").replace(QUERY.encode(), b"other")
        world.files.delete("offsets/6")
        world.files.create("offsets/6", text)
        found = look(world.ledger, world.log)
        assert (found.barrier, found.damaged) == (True, False)
        assert not world.log.drained(6)

    def test_it_is_known_although_the_note_of_the_querys_id_is_lost(self) -> None:
        world = World(6)
        world.log.end_of_time(6)
        world.files.delete("metadata")
        assert self.after_restore(world) == (6, False)
        assert world.log.query_id() == QUERY


@pytest.mark.parametrize("epochs", [1, 6])
@pytest.mark.parametrize("begun", [False, True])
def test_a_note_of_another_driver_is_not_believed_beside_barriers_that_were_decided(epochs: int, begun: bool) -> None:
    """Two drivers began the checkpoint, and the superseded one wrote its note last. Whether or not the next epoch has a
    barrier already, which nothing decided, the ids of the decisions are those of the barriers before it."""
    world = World(epochs)
    if begun:
        world.cut(epochs)
    world.files.delete("metadata")
    world.files.create("metadata", b'{"id":"other"}')
    assert query_of(world.ledger, world.log) == QUERY
    found = look(world.ledger, world.log)
    assert (found.epoch, found.barrier, found.damaged) == (epochs, begun, True)
    assert world.mended()
    assert json.loads(world.files.read("metadata") or b"") == {"id": QUERY}
    assert not look(world.ledger, world.log).damaged


def test_the_note_of_a_checkpoint_that_was_begun_anew_is_believed() -> None:
    world = World(2)
    world.lose("metadata", *(f"{folder}/{n}" for folder in ("offsets", "commits") for n in range(2)))
    world.files.create("metadata", b'{"id":"other"}')
    world.cut(0, end=99)
    assert query_of(world.ledger, world.log) == "other"
