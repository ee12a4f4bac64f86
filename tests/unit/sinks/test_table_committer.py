"""The table sinks' proof, row by row, against a table in memory: each commit is made against the state before it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import SinkScope
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed, StorageFull, SystemUnavailable
from penstock.sinks.tables.committer import TableCommitter
from penstock.sinks.tables.target import Change, History, Known, Target, Written, marker_name, private_folder, types_of
from penstock.storage.tree import Tree
from tests.support.fake_sleep import record_pauses, sleeping
from tests.support.memory_files import MemoryFiles

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
SCOPE = SinkScope("job", "out", 3)


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), sink)
    return bytes(sink.getvalue())


ROWS = _parquet()
OPEN = private_folder(SCOPE)


class Table(Target):
    """`log` is the table's history; what is older than `expired` is no longer told."""

    where = "table of tests"

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.log: list[Change] = []
        self.schema = SCHEMA
        self.partition_by: tuple[str, ...] = ("day",)
        self.there, self.expired, self.quiet = True, 0, False
        self.held: set[str] = set()
        self.before: Callable[[Change], None] = lambda change: None
        self.after: Callable[[Change], None] = lambda change: None
        self.looks = self.histories = 0
        self._seen = -1
        self._inside = 0

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        self._inside += 1
        try:
            yield
        except ConnectionError as error:
            raise SystemUnavailable(str(error)) from error
        finally:
            self._inside -= 1

    def look(self) -> Known | None:
        self.looks += 1
        self._seen = len(self.log)
        return Known(self.schema, self.partition_by, {"version": len(self.log)}) if self.there else None

    def create(self, schema: pa.Schema) -> None:
        raise NotImplementedError

    def storage(self, known: Known) -> Tree:
        assert isinstance(known, Known)
        return self.files

    def describe(self, known: Known, file: Written) -> Mapping[str, Any]:
        by = dict(zip(known.partition_by, file.values, strict=True))
        return {"name": file.name, "bytes": file.size, "rows": file.metadata.num_rows, "by": by}

    def history(self, since: Mapping[str, Any]) -> History:
        assert self._inside, "what the library raises must become an error of ours"
        self.histories += 1
        first = since.get("version", 0)
        part = self.log[first : self._seen]
        return History(
            frozenset(token for change in part for token in change.added),
            frozenset(token for change in part for token in change.swept),
            first >= self.expired,
            self.quiet,
        )

    def holds(self, names: Collection[str]) -> bool:
        return set(names) <= self.held

    def append(self, change: Change) -> bool:
        assert self._inside
        self.before(change)
        if len(self.log) != self._seen:
            return False
        self.log.append(change)
        self.after(change)
        return True


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return record_pauses(monkeypatch, "penstock.sinks.tables.committer")


def soon() -> Deadline:
    return Deadline(60)


def committer(table: Table, generation: int = 3) -> TableCommitter:
    return TableCommitter(table, SinkScope("job", "out", generation))


def prepare(
    table: Table, writer: int, *, generation: int = 3, files: int = 1, position: int | None = None, marker: bool = True
) -> Committable:
    token = f"{writer:010x}{generation:010x}"
    names = [f"e0000000007-a1-p{writer:05d}-out-{token}-{n}.parquet" for n in range(files)]
    at = {"version": len(table.log) if position is None else position}
    for name in names:
        table.files.contents[name] = ROWS
        if marker:
            place = marker_name(SinkScope("job", "out", generation), name)
            table.files.contents[place] = json.dumps({"position": at, "values": ["monday"]}).encode()
    payload = {
        "token": token,
        "generation": generation,
        "position": at,
        "partition_by": ["day"],
        "columns": types_of(SCHEMA),
        "files": [{"name": name, "bytes": len(ROWS)} for name in names],
    }
    return Committable("out", writer, 5, 0, payload)


def token(one: Committable) -> str:
    return str(one.payload["token"])


def names(*ones: Committable) -> list[str]:
    return [file["name"] for one in ones for file in one.payload["files"]]


def markers(table: Table) -> list[str]:
    return table.files.file_names(OPEN)


def fails(times: int, error: BaseException) -> Callable[[Change], None]:
    left = [error] * times

    def fail(change: Change) -> None:
        if left:
            raise left.pop()

    return fail


def noise(table: Table) -> None:
    """Somebody else writes."""
    table.log.append(Change("somebody else's"))


# Hints and sealing


def test_writers_are_told_the_table(table: Table) -> None:
    noise(table)
    hints = committer(table).hints()
    assert Known.from_json(hints["table"]).position == {"version": 1}
    table.there = False
    assert committer(table).hints() == {}


def test_what_fits_and_is_there_whole_is_sealed(table: Table) -> None:
    ones = [prepare(table, 0, files=2), prepare(table, 1)]
    assert committer(table).seal(ones, soon()) == ones
    looks = table.looks
    assert committer(table).seal([], soon()) == []
    assert table.looks == looks, "where nothing was written nothing is asked"


def test_a_proof_begins_where_an_epoch_was_sealed_however_long_its_writers_took(table: Table) -> None:
    ones = [prepare(table, 0), prepare(table, 1)]
    noise(table)
    sealed = committer(table).seal(ones, soon())
    assert [one.payload["position"] for one in sealed] == [{"version": 1}, {"version": 1}]
    assert [{**one.payload, "position": {"version": 0}} for one in sealed] == [one.payload for one in ones]
    table.expired = 1
    assert committer(table).commit(7, sealed, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}


@pytest.mark.parametrize(
    ("expired", "quiet", "said"),
    [(0, True, "a newer run has given it up"), (1, False, "the table's history was cut off since it was written")],
)
def test_what_a_newer_run_may_be_removing_is_not_sealed(table: Table, expired: int, quiet: bool, said: str) -> None:
    ones = [prepare(table, 0), prepare(table, 1)]
    table.log.append(Change("", swept=[token(ones[1])]) if not expired else Change(""))
    table.expired, table.quiet = expired, quiet
    with pytest.raises(PreCommitFailed, match=rf"cannot be committed: {said}\."):
        committer(table).seal(ones, soon())


def test_a_history_cut_off_is_no_obstacle_where_nothing_was_given_up(table: Table) -> None:
    one = prepare(table, 0)
    noise(table)
    table.expired, table.quiet = 1, True
    assert committer(table).seal([one], soon()) == [one.with_payload(position={"version": 1})]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda table, one: table.files.contents.pop(names(one)[1]), "is gone"),
        (lambda table, one: table.files.contents.update({names(one)[1]: b"row"}), "is not as it was written"),
        (lambda table, one: table.files.contents.update({names(one)[1]: b"rows!"}), "is not as it was written"),
        (lambda table, one: setattr(table, "partition_by", ()), "partitioned otherwise"),
        (lambda table, one: setattr(table, "schema", SCHEMA.remove(0)), "id"),
        (lambda table, one: setattr(table, "there", False), "the table is gone"),
    ],
)
def test_what_cannot_be_committed_is_not_sealed(table: Table, harm: Callable[..., Any], said: str) -> None:
    ones = [prepare(table, 0), prepare(table, 1, files=2)]
    harm(table, ones[1])
    with pytest.raises(PreCommitFailed, match=f"table of tests cannot be committed: .*{said}"):
        committer(table).seal(ones, soon())


@pytest.mark.parametrize("harm", ["files", "partition_by"])
def test_what_cannot_be_committed_is_not_added_later_either(table: Table, harm: str) -> None:
    """It is kept as it is: a person may put the table right."""
    good, bad = prepare(table, 0), prepare(table, 1)
    if harm == "files":
        table.files.contents[names(bad)[0]] = b"row"
    else:
        bad = bad.with_payload(partition_by=["other"])
    assert committer(table).commit(7, [good, bad], soon()) == {0: Outcome.COMMITTED, 1: Outcome.UNKNOWN}
    assert [change.added for change in table.log] == [[token(good)]]
    assert names(bad)[0] in table.files.contents


# Committing


def test_an_epoch_is_one_commit_of_the_table(table: Table) -> None:
    ones = [prepare(table, 0, files=2), prepare(table, 1)]
    assert committer(table).commit(7, ones, soon()) == {0: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    [change] = table.log
    assert change.note == f"{SCOPE.prefix} generation 3 epoch 7"
    assert [file["name"] for file in change.files] == names(*ones)
    assert change.added == [token(one) for one in ones]
    assert change.swept == ()
    assert markers(table) == [], "what is in the table is nobody's leftover"
    assert set(names(*ones)) <= table.files.contents.keys()


def test_an_epoch_without_rows_asks_nothing(table: Table) -> None:
    assert committer(table).commit(7, [], soon()) == {}
    committer(table).abort([], soon())
    assert table.looks == 0


def test_a_commit_that_is_asked_again_is_proven_by_the_log(table: Table) -> None:
    ones = [prepare(table, 0), prepare(table, 1)]
    committer(table).commit(7, ones, soon())
    table.files.contents.clear()
    noise(table)
    again = committer(table, 4).commit(7, ones, soon())
    assert again == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.ALREADY_COMMITTED}
    assert len(table.log) == 2


def test_a_commit_whose_answer_was_lost_is_found_in_the_log(table: Table, pauses: list[float]) -> None:
    one = prepare(table, 0)
    table.after = fails(1, ConnectionError("cut"))
    assert committer(table).commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert len(table.log) == 1
    assert pauses == [0.02]


def test_a_lost_race_is_run_again_against_the_new_state(table: Table, pauses: list[float]) -> None:
    one, races = prepare(table, 0), [0]

    def other_first(change: Change) -> None:
        if races[0] < 8:
            races[0] += 1
            noise(table)

    table.before = other_first
    assert committer(table).commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert [change.added for change in table.log if change.added] == [[token(one)]]


def test_a_table_that_stays_away_leaves_it_unknown(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.tables.committer", lambda s: now.__setitem__(0, now[0] + max(s, 1e-3)))
    one = prepare(table, 0)
    table.before = fails(1_000, ConnectionError("away"))
    assert committer(table).commit(7, [one], Deadline(3, clock=lambda: now[0])) == {0: Outcome.UNKNOWN}
    assert now[0] < 3.1, "no pause goes beyond the deadline"
    assert markers(table), "it is still prepared"


def test_after_the_deadline_nothing_is_added(table: Table) -> None:
    one = prepare(table, 0)
    assert committer(table).commit(7, [one], Deadline(0)) == {0: Outcome.UNKNOWN}
    assert table.log == []
    table.log.append(Change("", added=[token(one)]))
    assert committer(table).commit(7, [one], Deadline(0)) == {0: Outcome.ALREADY_COMMITTED}, "a proof needs no time"


def test_a_full_storage_is_no_outcome(table: Table) -> None:
    table.before = fails(1, StorageFull("No space is left."))
    with pytest.raises(StorageFull):
        committer(table).commit(7, [prepare(table, 0)], soon())


def test_a_table_that_takes_an_epoch_and_does_not_show_it_is_not_believed(table: Table) -> None:
    table.after = lambda change: table.log.__setitem__(-1, Change("somebody dropped it"))
    assert committer(table).commit(7, [prepare(table, 0)], soon()) == {0: Outcome.UNKNOWN}
    assert len(table.log) == 1


def test_what_a_newer_run_gave_up_is_lost(table: Table) -> None:
    one = prepare(table, 0)
    table.log.append(Change("", swept=[token(one)]))
    assert committer(table).commit(7, [one], soon()) == {0: Outcome.LOST}
    assert len(table.log) == 1


def test_a_file_that_is_gone_without_a_word_is_lost(table: Table) -> None:
    ones = [prepare(table, 0, files=2), prepare(table, 1)]
    del table.files.contents[names(ones[0])[1]]
    assert committer(table).commit(7, ones, soon()) == {0: Outcome.LOST, 1: Outcome.COMMITTED}
    assert [change.added for change in table.log] == [[token(ones[1])]]


@pytest.mark.parametrize(("held", "outcome"), [(True, Outcome.ALREADY_COMMITTED), (False, Outcome.UNKNOWN)])
def test_where_the_history_no_longer_reaches_back_the_table_tells(table: Table, held: bool, outcome: Outcome) -> None:
    one = prepare(table, 0, files=2)
    noise(table)
    table.expired = 1
    if held:
        table.held = set(names(one))
    assert committer(table).commit(7, [one], soon()) == {0: outcome}
    assert len(table.log) == 1


def test_a_table_that_is_gone_proves_nothing(table: Table) -> None:
    one = prepare(table, 0)
    table.there = False
    assert committer(table).commit(7, [one], soon()) == {0: Outcome.UNKNOWN}
    assert markers(table)
    committer(table).abort([one], soon())
    assert committer(table).abort_dangling([], soon()) == 0
    assert names(one)[0] in table.files.contents


def test_a_marker_that_cannot_be_removed_is_left_to_the_sweep(table: Table) -> None:
    one = prepare(table, 0)

    def refuse(what: str, name: str) -> None:
        raise PermissionError(name)

    table.files.before = refuse
    assert committer(table).commit(7, [one], soon()) == {0: Outcome.COMMITTED}
    table.files.before = lambda what, name: None
    assert committer(table).abort_dangling([], soon()) == 0
    assert markers(table) == []
    assert names(one)[0] in table.files.contents


def test_markers_of_what_is_not_in_the_table_stay(table: Table) -> None:
    lost, good = prepare(table, 0), prepare(table, 1)
    del table.files.contents[names(lost)[0]]
    committer(table).commit(7, [lost, good], soon())
    assert markers(table) == [f"g00000003-{names(lost)[0]}"]


def test_history_is_read_once_a_position(table: Table) -> None:
    ones = [prepare(table, n, position=0) for n in range(3)]
    table.log.append(Change("", added=[token(one) for one in ones]))
    committer(table).commit(7, ones, soon())
    assert table.histories == 1


# Aborting


def test_exactly_these_are_aborted_unless_they_are_in_the_table(table: Table) -> None:
    gone, taken, other = prepare(table, 0, files=2), prepare(table, 1, position=0), prepare(table, 2)
    table.log.append(Change("", added=[token(taken)]))
    committer(table).abort([gone, taken], soon())
    assert sorted(name for name in table.files.contents if "/" not in name) == sorted(names(taken, other))
    assert len(markers(table)) == 2
    assert len(table.log) == 1, "what is this run's own need not be said in the log"


def test_what_the_history_no_longer_tells_is_not_aborted(table: Table) -> None:
    one = prepare(table, 0)
    noise(table)
    table.expired = 1
    committer(table).abort([one], soon())
    assert names(one)[0] in table.files.contents


def test_a_file_that_its_writer_completed_while_it_was_removed_goes_too(table: Table) -> None:
    one = prepare(table, 0)

    def complete(what: str, name: str) -> None:
        if name.startswith(OPEN):
            table.files.contents[names(one)[0]] = ROWS

    table.files.before = complete
    committer(table).abort([one], soon())
    assert table.files.contents == {}


# Sweeping


def test_a_sweep_takes_what_older_runs_left_and_spares_the_rest(table: Table) -> None:
    kept, own, newer = prepare(table, 0), prepare(table, 1, files=2), prepare(table, 2, generation=4)
    older = [prepare(table, 3 + n, generation=2) for n in range(2)]
    table.files.contents[f"{OPEN}/readme.txt"] = b"theirs"
    assert committer(table).abort_dangling([kept], soon()) == 3
    left = sorted(name for name in table.files.contents if "/" not in name)
    assert left == sorted(names(kept, newer))
    assert len(markers(table)) == 3
    assert names(own)[0] not in left
    [change] = table.log
    assert change.swept == sorted(token(one) for one in older), "older runs are told before their files go"
    assert change.note == f"{SCOPE.prefix} generation 3 gives up files of older runs"
    assert (change.files, change.added) == ((), ())


def test_older_runs_are_told_before_their_files_go(table: Table) -> None:
    one = prepare(table, 0, generation=2)
    present: list[bool] = []
    table.before = lambda change: present.append(names(one)[0] in table.files.contents)
    committer(table).abort_dangling([], soon())
    assert present == [True]
    assert committer(table, 2).commit(7, [one], soon()) == {0: Outcome.LOST}


def test_an_older_run_is_told_once(table: Table) -> None:
    one = prepare(table, 0, generation=2, position=0)
    table.log.append(Change("", swept=[token(one)]))
    assert committer(table).abort_dangling([], soon()) == 1
    assert len(table.log) == 1
    assert table.files.contents == {}


def test_an_older_run_that_commits_at_the_last_moment_wins(table: Table) -> None:
    """Both write against the state they saw: the sweep has lost the race, looks again, and leaves the file alone."""
    one = prepare(table, 0, generation=2)

    def commit_first(change: Change) -> None:
        if not table.log:
            table.log.append(Change("", added=[token(one)]))

    table.before = commit_first
    assert committer(table).abort_dangling([], soon()) == 0
    assert names(one)[0] in table.files.contents
    assert markers(table) == [], "only the marker was left"


def test_a_sweep_that_cannot_tell_in_time_removes_nothing(table: Table) -> None:
    prepare(table, 0, generation=2)
    before = dict(table.files.contents)
    table.before = lambda change: noise(table)
    assert committer(table).abort_dangling([], Deadline(0)) == 0
    assert table.files.contents == before


def test_a_table_that_goes_away_while_it_is_swept_keeps_its_files(table: Table) -> None:
    prepare(table, 0, generation=2)
    before = dict(table.files.contents)
    table.after = lambda change: setattr(table, "there", False)
    assert committer(table).abort_dangling([], soon()) == 0
    assert table.files.contents == before


def test_nothing_to_sweep_asks_for_no_history(table: Table) -> None:
    assert committer(table).abort_dangling([], soon()) == 0
    assert table.histories == 0


@pytest.mark.parametrize("body", [b"", b"{half", b"{}", b'{"other":1}'])
def test_a_marker_cut_short_is_proven_from_the_beginning(table: Table, body: bytes) -> None:
    one = prepare(table, 0)
    taken = prepare(table, 1, marker=False)
    for done in (one, taken):
        table.files.contents[marker_name(SCOPE, names(done)[0])] = body
    noise(table)
    table.log.insert(0, Change("", added=[token(taken)]))
    assert committer(table).abort_dangling([], soon()) == 1
    assert sorted(table.files.contents) == names(taken)


def test_a_marker_that_goes_while_it_is_read_is_no_obstacle(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    one = prepare(table, 0)

    def gone(name: str) -> bytes:
        raise FileNotFoundError(name)

    monkeypatch.setattr(table.files, "read", gone)
    assert committer(table).abort_dangling([], soon()) == 1
    assert names(one)[0] not in table.files.contents


def test_each_writer_is_looked_for_since_it_began(table: Table) -> None:
    """One history must not be taken for another: the earlier one's commit lies before the later one's position."""
    early = prepare(table, 0, position=0)
    table.log.append(Change("", added=[token(early)]))
    late = prepare(table, 1)
    assert committer(table).commit(7, [late, early], soon())[1] is Outcome.COMMITTED
    again = committer(table).commit(7, [late, early], soon())
    assert again == {0: Outcome.ALREADY_COMMITTED, 1: Outcome.ALREADY_COMMITTED}
    assert [change.added for change in table.log] == [[token(early)], [token(late)]]


def test_a_sweep_looks_since_the_position_in_the_marker(table: Table) -> None:
    noise(table)
    table.expired = 1
    one = prepare(table, 0)
    assert committer(table).abort_dangling([], soon()) == 1
    assert names(one)[0] not in table.files.contents


def test_a_file_goes_before_its_marker(table: Table) -> None:
    """Should the driver die in between, the next sweep still finds the file."""
    one = prepare(table, 0)
    committer(table).abort([one], soon())
    removed = [name for what, name in table.files.did if what == "remove"]
    assert removed == [names(one)[0], marker_name(SCOPE, names(one)[0]), names(one)[0]]


def test_a_table_that_cannot_be_looked_at_leaves_all_unknown(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.tables.committer", lambda s: now.__setitem__(0, now[0] + 1))

    def away() -> Known | None:
        raise ConnectionError("away")

    ones = [prepare(table, 0), prepare(table, 1)]
    monkeypatch.setattr(table, "look", away)
    outcomes = committer(table).commit(7, ones, Deadline(3, clock=lambda: now[0]))
    assert outcomes == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}


@pytest.mark.parametrize("partition_by", [("aaa",), ("zzz",), ("day", "id"), ()])
def test_any_other_partitioning_does_not_fit(table: Table, partition_by: tuple[str, ...]) -> None:
    one = prepare(table, 0)
    table.partition_by = partition_by
    with pytest.raises(PreCommitFailed, match="partitioned otherwise than when the rows were written"):
        committer(table).seal([one], soon())


# What a power cut must not take back


def test_what_is_sealed_is_secured_with_its_marker(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    secured: list[str] = []
    monkeypatch.setattr(table.files, "secure", secured.append)
    ones = [prepare(table, 0, files=2), prepare(table, 1)]
    committer(table).seal(ones, soon())
    assert secured == [place for name in names(*ones) for place in (name, marker_name(SCOPE, name))]
    secured.clear()
    table.files.contents[names(ones[1])[0]] = b"row"
    with pytest.raises(PreCommitFailed):
        committer(table).seal(ones, soon())
    assert secured == []


@pytest.mark.parametrize("held", [False, True])
def test_what_counts_as_committed_is_settled_whoever_committed_it(
    table: Table, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    settled: list[Mapping[str, Any]] = []
    one = prepare(table, 0)
    table.log.append(Change("" if held else "theirs", added=[] if held else [token(one)]))
    if held:
        table.expired, table.held = 1, set(names(one))
    monkeypatch.setattr(table, "make_durable", settled.append)
    assert committer(table).commit(7, [one], soon()) == {0: Outcome.ALREADY_COMMITTED}
    assert settled == [one.payload["position"]]
    table.held = set()
    settled.clear()
    if held:
        assert committer(table).commit(7, [one], soon()) == {0: Outcome.UNKNOWN}
        assert settled == []


def test_what_the_log_says_of_a_file_comes_from_its_footer_and_its_marker(table: Table) -> None:
    one = prepare(table, 0)
    committer(table).commit(7, [one], soon())
    [change] = table.log
    told = {"name": names(one)[0], "bytes": len(ROWS), "rows": 2, "by": {"day": "monday"}}
    assert list(change.files) == [told]


def test_a_look_for_hints_keeps_no_process_alive(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    look = table.look

    def note() -> Known | None:
        threads.append(threading.current_thread())
        return look()

    monkeypatch.setattr(table, "look", note)
    committer(table).hints()
    assert [thread.daemon for thread in threads] == [True]
