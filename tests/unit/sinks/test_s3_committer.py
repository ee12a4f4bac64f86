"""The S3 sink's table of proofs, row by row, in a bucket in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover, SinkScope, WriterScope
from penstock.deadline import Deadline
from penstock.errors import LedgerCorrupt, PenstockError, PreCommitFailed, SystemUnavailable
from penstock.failpoints import hooked
from penstock.sinks.files import s3 as module
from penstock.sinks.files.commit import KEPT_RECEIPTS
from penstock.sinks.files.s3 import UploadCommitter, UploadStream, UploadWriter, parse_name, start_of_names
from penstock.storage.s3 import Upload
from tests.support.fake_sleep import record_pauses
from tests.support.simulation.objects import Bucket, SimulatedFolder

SCOPE = SinkScope("a job", "out.1", 3)
START = "part-a%20job.out%2E1."
RECEIPTS = "_penstock/a%20job/out%2E1/receipts"


class Store(SimulatedFolder):
    """A bucket that refuses, or does something else first, when it is told to."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.before: dict[str, Callable[[], Any]] = {}
        self.asked: list[str] = []
        schedule: Any = SimpleNamespace(now=0.0, call=self._asked)
        super().__init__(self.bucket, schedule)

    def _asked(self, label: str, work: Callable[[], Any], lost: Callable[[], Any]) -> Any:
        self.asked.append(label)
        assert "None" not in label
        for start, action in self.before.items():
            if label.startswith(start):
                action()
        return work()

    def complete(self, name: str, upload: str, etags: Sequence[str]) -> bool:
        assert etags == [f"{upload}-{part}-{len(data)}" for part, data in self._parts_of(upload)] or upload not in self
        return super().complete(name, upload, etags)

    def __contains__(self, upload: str) -> bool:
        return upload in self.bucket.uploads

    def _parts_of(self, upload: str) -> list[tuple[int, bytes]]:
        return sorted(self.bucket.uploads[upload][2].items()) if upload in self else []

    def receipts(self) -> dict[str, set[str]]:
        committer = UploadCommitter(self, SCOPE)  # type: ignore[arg-type]
        return dict(committer._receipts.names())


def fails(times: int, error: PenstockError | None = None) -> Callable[[], None]:
    left = [1] * times

    def fail() -> None:
        if left:
            left.pop()
            raise error or SystemUnavailable("Slow down.")

    return fail


class Plain:
    """An encoder of texts."""

    def __init__(self, stream: UploadStream) -> None:
        self._stream, self.closed = stream, False

    def write(self, batch: Any) -> None:
        self._stream.write(batch)

    def close(self) -> None:
        self._stream.write(b"!")


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return record_pauses(monkeypatch, "penstock.sinks.files.s3")


def writer(store: Store, number: int, *, generation: int = 3, epoch: int = 7) -> UploadWriter:
    scope = WriterScope(SinkScope(SCOPE.job, SCOPE.uid, generation), epoch, 2, number, 9, {})
    return UploadWriter(store, scope, ".txt", Plain)  # type: ignore[arg-type]


def prepare(store: Store, number: int, *, generation: int = 3, epoch: int = 7) -> Committable:
    made = writer(store, number, generation=generation, epoch=epoch)
    made.write(f"rows {number}".encode())
    return Committable("out.1", number, 1, 0, made.pre_commit())


def committer(store: Store, generation: int = 3) -> UploadCommitter:
    return UploadCommitter(store, SinkScope(SCOPE.job, SCOPE.uid, generation))  # type: ignore[arg-type]


def soon() -> Deadline:
    return Deadline(60)


def ended(store: Store, one: Committable) -> None:
    """As a rule of the bucket does, or another program."""
    store.bucket.uploads.pop(one.payload["upload"])


# The writer


def test_a_writer_leaves_an_open_upload_whose_name_tells_run_epoch_and_writer(store: Store) -> None:
    one = prepare(store, 4)
    name, upload = one.payload["name"], one.payload["upload"]
    match = parse_name(name, SCOPE)
    assert match is not None
    assert name == f"{START}g00000003-e0000000007-a2-w00004-t9-{match['token']}.txt"
    assert store.bucket.uploads == {upload: (name, match["token"], {1: b"rows 4!"})}
    assert one.payload == {"name": name, "upload": upload, "etags": [f"{upload}-1-7"], "bytes": 7}
    assert store.bucket.objects == {}, "nothing is visible"
    assert prepare(store, 4).payload["name"] != name


def test_a_large_file_is_sent_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 4)
    one = prepare(store, 0)
    upload = one.payload["upload"]
    assert store.bucket.uploads[upload][2] == {1: b"rows", 2: b" 0!"}
    assert one.payload["etags"] == [f"{upload}-1-4", f"{upload}-2-3"]


def test_an_upload_that_ends_while_it_is_written_fails_the_task(store: Store) -> None:
    made = writer(store, 0)
    store.bucket.uploads.clear()
    with pytest.raises(PreCommitFailed, match=rf"The upload of {START}g00000003.* ended while it was written"):
        made.pre_commit()


def test_a_task_that_fails_ends_its_upload_if_it_can(store: Store) -> None:
    writer(store, 0).abort()
    assert store.bucket.uploads == {}
    store.before["abort"] = fails(1)
    writer(store, 1).abort()
    assert len(store.bucket.uploads) == 1, "the next sweep finds it"


@pytest.mark.parametrize(
    "name",
    [
        "g00000003-e0000000007-a1-w00000-t0-0123456789ab.txt",
        "part-other.out.g00000003-e0000000007-a1-w00000-t0-0123456789ab.txt",
        START,
        "x",
    ],
)
def test_other_names_are_not_the_sinks(name: str) -> None:
    assert parse_name(name, SCOPE) is None
    assert module.token_of(name, SCOPE) is None
    assert start_of_names(SCOPE) == START


# Before the decision


@pytest.mark.parametrize("count", [0, 1, 3])
def test_what_is_prepared_is_sealed(store: Store, count: int) -> None:
    ones = [prepare(store, number) for number in range(count)]
    assert committer(store).seal(ones, soon()) == ones


@pytest.mark.parametrize("count", [1, 3])
def test_an_upload_that_is_gone_or_another_is_not_sealed(store: Store, count: int) -> None:
    ones = [prepare(store, number) for number in range(count)]
    store.put_part(ones[-1].payload["name"], ones[-1].payload["upload"], 2, b"more")
    with pytest.raises(PreCommitFailed, match=rf"writer {count - 1} of sink 'out.1' is not as it was written: {START}"):
        committer(store).seal(ones, soon())
    with pytest.raises(PreCommitFailed, match="is not as it was written"):
        committer(store).seal([ones[-1].with_payload(etags=["u9-1-9", "u9-2-4"])], soon())
    ended(store, ones[-1])
    with pytest.raises(PreCommitFailed, match=rf"writer {count - 1} of sink 'out.1' is gone: {START}"):
        committer(store).seal(ones, soon())


# The commit


@pytest.mark.parametrize("count", [0, 1, 20])
def test_prepared_uploads_are_completed_once(store: Store, count: int) -> None:
    ones = [prepare(store, number) for number in range(count)]
    assert committer(store).commit(7, ones, soon()) == dict.fromkeys(range(count), Outcome.COMMITTED)
    assert store.bucket.visible() == [f"rows {number}!".encode() for number in range(count)]
    uploads = {one.payload["upload"] for one in ones}
    assert store.receipts() == ({"begun": uploads, "done": uploads} if count else {})
    store.bucket.completed.clear()
    again = committer(store, 4).commit(7, ones, soon())
    assert again == dict.fromkeys(range(count), Outcome.ALREADY_COMMITTED)


def test_no_upload_is_completed_before_it_is_noted_as_begun(store: Store) -> None:
    ones = [prepare(store, number) for number in range(2)]
    seen: list[set[str]] = []
    asked = store.asked
    store.before["commit"] = lambda: seen.append({label[:3] for label in asked if label.startswith("put _")})
    committer(store).commit(7, ones, soon())
    assert seen == [{"put"}] * 2


def test_uploads_are_completed_side_by_side(store: Store) -> None:
    ones = [prepare(store, number) for number in range(3)]
    together = threading.Barrier(3)
    store.before["commit"] = lambda: together.wait(30)
    assert committer(store).commit(7, ones, soon()) == dict.fromkeys(range(3), Outcome.COMMITTED)


def test_the_first_commit_of_several_may_be_the_last_of_a_driver(store: Store) -> None:
    passed: list[int] = []
    with hooked("commit.first", lambda: passed.append(1)):
        committer(store).commit(7, [prepare(store, 0)], soon())
    assert passed == [1]


def test_what_a_reader_has_moved_away_is_known_by_its_note(store: Store) -> None:
    one = prepare(store, 0)
    committer(store).commit(7, [one], soon())
    store.bucket.completed.clear()
    store.bucket.take_away()
    assert committer(store, 4).commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}


def test_without_a_note_of_the_end_what_is_gone_is_unknown(store: Store) -> None:
    one = prepare(store, 0)
    committer(store)._receipts.write(7, [one.payload["upload"]], "begun")
    ended(store, one)
    assert committer(store).commit(7, [one], soon()) == {0: Outcome.UNKNOWN}


def test_an_upload_that_ended_before_any_commit_is_lost(store: Store) -> None:
    one, other = prepare(store, 0), prepare(store, 1)
    ended(store, one)
    outcomes = committer(store).commit(7, [one, other], soon())
    assert outcomes == {0: Outcome.LOST, 1: Outcome.COMMITTED}
    assert store.receipts() == {"begun": {other.payload["upload"]}, "done": {other.payload["upload"]}}


@pytest.mark.parametrize("mark", ["", "0", "zzzz"])
def test_an_object_of_another_program_proves_nothing(store: Store, mark: str) -> None:
    one = prepare(store, 0)
    ended(store, one)
    store.bucket.objects[one.payload["name"]] = (b"theirs", mark)
    assert committer(store).commit(7, [one], soon()) == {0: Outcome.UNKNOWN}


@pytest.mark.parametrize("call", ["get parts", "put _penstock", "commit"])
def test_a_store_that_refuses_is_asked_again_until_the_deadline(store: Store, pauses: list[float], call: str) -> None:
    one = prepare(store, 0)
    store.before[call] = fails(8)
    assert committer(store).commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize("call", ["get parts", "commit"])
def test_a_store_that_stays_away_leaves_it_unknown_and_open(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    one, clock = prepare(store, 0), [0.0]
    name = one.payload["name"]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    store.before[call] = fails(1000)
    again = committer(store)
    assert again.commit(7, [one], Deadline(1.0, clock=lambda: clock[0])) == {0: Outcome.UNKNOWN}
    assert clock[0] == pytest.approx(1.0), "no pause goes beyond the deadline"
    store.before.clear()
    seen = f"the upload is open, the object {name} is not there; last refusal: Slow down."
    assert again.evidence([one], soon()) == {0: seen}
    assert again.commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert again.evidence([one], soon()) == {0: f"the upload is ended, the object {name} is ours"}


def test_a_note_of_the_end_that_cannot_be_written_changes_nothing(store: Store) -> None:
    one = prepare(store, 0)

    def refuse() -> None:
        if store.bucket.objects.keys() & {one.payload["name"]}:
            raise SystemUnavailable("Slow down.")

    store.before["put _penstock"] = refuse
    clock = iter(range(1000))
    deadline = Deadline(40, clock=lambda: float(next(clock)))
    assert committer(store).commit(7, [one], deadline) == {0: Outcome.COMMITTED}


def test_a_note_of_the_end_is_written_once(store: Store) -> None:
    committer(store).commit(7, [prepare(store, 0)], soon())
    assert len([label for label in store.asked if label.startswith("put _penstock")]) == 2, "as begun, and as done"
    assert UploadStream(lambda part: None).writable(), "as encoders ask"


def test_notes_are_kept_for_a_few_epochs(store: Store) -> None:
    for epoch in range(30):
        committer(store).commit(epoch, [prepare(store, 0, epoch=epoch)], soon())
    epochs = {int(name.removeprefix(f"{RECEIPTS}/e")[:10]) for name in store.bucket.objects if "receipts" in name}
    assert epochs == set(range(29 - KEPT_RECEIPTS, 30))


def test_a_name_that_is_not_the_sinks_is_never_touched(store: Store) -> None:
    one = prepare(store, 0)
    for name in ("other", f"../{one.payload['name']}", f"{START}/../x"):
        with pytest.raises(LedgerCorrupt):
            committer(store).seal([one.with_payload(name=name)], soon())


# Evidence


def test_what_is_seen_of_an_outcome_that_is_not_proven(store: Store) -> None:
    one, other = prepare(store, 0), prepare(store, 1)
    name = one.payload["name"]
    ended(store, one)
    for mark in ("", "0", "zzzz"):
        store.bucket.objects[name] = (b"theirs", mark)
        told = committer(store).evidence([one, other], soon())
        assert told[0] == f"the upload is ended, the object {name} is not ours"
    assert told[1] == f"the upload is open, the object {other.payload['name']} is not there"
    store.before["get"] = fails(1)
    assert committer(store).evidence([one], soon()) == {0: "S3 does not answer: Slow down."}


# Aborts and sweeps


def test_exactly_these_are_aborted(store: Store) -> None:
    one, other = prepare(store, 0), prepare(store, 1)
    committer(store).abort([one], soon())
    assert store.bucket.uploads.keys() == {other.payload["upload"]}
    committer(store).abort([one], soon())
    assert store.receipts() == {}


def test_an_abort_takes_uploads_off_the_note_before_it_ends_them(store: Store) -> None:
    """So its loss is proven: a commit had begun, and did not come to this upload."""
    one, other = prepare(store, 0), prepare(store, 1)
    both = [each.payload["upload"] for each in (one, other)]
    committer(store)._receipts.write(7, both, "begun")
    committer(store)._receipts.write(7, both, "done")
    seen: list[dict[str, set[str]]] = []
    store.before["abort"] = lambda: seen.append(store.receipts())
    committer(store).abort([one], soon())
    assert seen == [{"begun": {both[1]}, "done": set(both)}]


def test_a_sweep_takes_what_this_and_older_runs_left_and_spares_the_rest(store: Store) -> None:
    kept, older, own = prepare(store, 0), prepare(store, 1, generation=2), prepare(store, 2)
    newer = prepare(store, 3, generation=4)
    store.bucket.uploads["foreign"] = (f"{START}strange", "", {})
    assert committer(store).abort_dangling([kept], soon()) == 2
    assert store.bucket.uploads.keys() == {kept.payload["upload"], newer.payload["upload"], "foreign"}
    assert {older.payload["upload"], own.payload["upload"]}.isdisjoint(store.bucket.uploads)


def test_leftovers_are_told_as_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = prepare(store, 4, generation=2, epoch=5)
    prepare(store, 0, generation=4)
    asked: list[str] = []
    name, upload = one.payload["name"], one.payload["upload"]

    def uploads(start: str) -> list[Upload]:
        asked.append(start)
        return [Upload(name, upload, 12.5)]

    monkeypatch.setattr(store, "uploads", uploads)
    payload = {"name": name, "upload": upload}
    assert committer(store).leftovers(soon()) == [Leftover(name, 2, 5, 4, 12.5, payload)]
    assert asked == [START]
