"""The Redis sink's table of outcomes, against a model of what its scripts do inside the server."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import redis

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.errors import AccessDenied, OutcomeUnknown, PreCommitFailed, SystemUnavailable
from penstock.sinks.redis.client import ABORT, APPLY, Layout
from penstock.sinks.redis.committer import KEPT_EPOCHS, NothingToCommit, RedisCommitter
from tests.support.fake_sleep import record_pauses, sleeping

URL = "redis://alice:s3cret@db.example:6380/2"
BASE = Layout("penstock:job:out")


class Server:
    """Lists by key, hashes and the set of proofs; applies elements in parts, as the script does."""

    def __init__(self) -> None:
        self.lists: dict[str, list[int]] = {}
        self.open: dict[str, dict[str, str]] = {}
        self.begun: dict[str, dict[str, int]] = {}
        self.done: dict[str, dict[str, int]] = {}
        self.applied: list[tuple[str, int]] = []
        self.commands = 0
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.closed = False
        self.replicas = 0
        self.waited: list[tuple[str, str]] = []  # what was written before a wait
        self.waits: list[tuple[int, int]] = []  # for so many replicas, so many milliseconds
        self.when_waiting: Callable[[], None] = lambda: None

    def execute_command(self, command: str, digest: str, count: int, *rest: Any) -> Any:
        assert command == "EVALSHA"
        self.commands += 1
        self.before()
        keys, arguments = list(rest[:count]), list(rest[count:])
        answer = {APPLY._digest: self._apply, ABORT._digest: self._abort}[digest](keys, arguments)
        self.after()
        return answer

    def _apply(self, keys: list[str], arguments: list[Any]) -> list[bytes]:
        rows, opened, begun, done = keys
        name, epoch, elements, at_once, oldest = arguments
        if name in self.done.get(done, {}):
            return [b"already"]
        head, left = self.open.get(opened, {}).get(name), self.begun.get(begun, {}).get(name)
        length = len(self.lists.get(rows, []))
        if left is None:
            if head is None or not length:
                return [b"lost"]
            if length != elements + 1:
                return [b"refused", b"its prepared rows are not as they were written"]
            self.lists[rows].pop(0)
        elif head is None or length != left:
            return [b"refused", b"part of it is applied, \xff"]
        part = self.lists[rows][:at_once]
        self.applied += [(name, element) for element in part]
        del self.lists[rows][:at_once]
        if self.lists[rows]:
            self.begun.setdefault(begun, {})[name] = len(self.lists[rows])
            return [b"more"]
        del self.open[opened][name]
        self.begun.get(begun, {}).pop(name, None)
        proofs = self.done.setdefault(done, {})
        proofs[name] = epoch
        for old in [one for one, number in proofs.items() if number < oldest]:
            del proofs[old]
        return [b"done"]

    def _abort(self, keys: list[str], names: list[str]) -> int:
        opened, begun, *rows = keys
        assert len(rows) == len(names)
        aborted = 0
        for name, key in zip(names, rows, strict=True):
            if name not in self.begun.get(begun, {}) and self.open.get(opened, {}).pop(name, None) is not None:
                self.lists.pop(key, None)
                aborted += 1
        return aborted

    def hkeys(self, key: str) -> list[bytes]:
        self.before()
        return [name.encode() for name in self.open.get(key, {})]

    def zscore(self, key: str, name: str) -> int | None:
        self.before()
        return self.done.get(key, {}).get(name)

    def wait(self, replicas: int, milliseconds: int) -> int:
        self.when_waiting()
        self.waits.append((replicas, milliseconds))
        return self.replicas

    def pipeline(self, *, transaction: bool) -> Pipeline:
        assert not transaction
        return Pipeline(self)

    def close(self) -> None:
        self.closed = True


class Pipeline:
    def __init__(self, server: Server) -> None:
        self._server, self._asked = server, list[Callable[[], Any]]()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def llen(self, key: str) -> None:
        self._asked.append(lambda: len(self._server.lists.get(key, [])))

    def set(self, key: str, value: str) -> None:
        self._asked.append(lambda: self._server.waited.append((key, value)))

    def zscore(self, key: str, name: str) -> None:
        self._asked.append(lambda: self._server.done.get(key, {}).get(name))

    def execute_command(self, command: str, replicas: int, milliseconds: int) -> None:
        assert command == "WAIT"
        assert milliseconds > 0
        self._asked.append(lambda: self._server.wait(replicas, milliseconds))

    def execute(self) -> list[Any]:
        self._server.before()
        self._server.commands += 1
        return [ask() for ask in self._asked]


class Target:
    url, prefix = URL, "totals:"

    def __init__(self, server: Server, replicas: int = 0) -> None:
        self._server, self.replicas = server, replicas

    def connect(self) -> Server:
        return self._server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits in these tests."""
    return record_pauses(monkeypatch, "penstock.sinks.redis.committer")


def committer(server: Server, generation: int = 3, replicas: int = 0) -> RedisCommitter:
    return RedisCommitter(Target(server, replicas), SinkScope("job", "out", generation))  # type: ignore[arg-type]


def prepare(server: Server, writer: int, *, generation: int = 3, base: Layout = BASE, elements: int = 5) -> Committable:
    name = f"g{generation}-e7-a0-p{writer}-t0-{writer:06x}{generation}"
    server.lists[base.rows(name)] = [-1, *range(elements)]
    server.open.setdefault(base.open, {})[name] = "head"
    payload = {"base": base.base, "name": name, "elements": elements, "at_once": 2}
    return Committable("out", writer, elements, 0, payload)


def name_of(one: Committable) -> str:
    return str(one.payload["name"])


def fails(times: int, error: Exception) -> Callable[[], None]:
    left = [error] * times

    def fail() -> None:
        if left:
            raise left.pop()

    return fail


EMPTY = Committable("out", 9, 0, 0)


# Replicas, and servers that have lost something


@pytest.mark.parametrize("there", [0, 1, 2])
def test_an_epoch_counts_when_enough_replicas_have_it(server: Server, there: int) -> None:
    one, own = prepare(server, 0), committer(server, replicas=1)
    server.replicas = there
    if there:
        own.seal([one, EMPTY], Deadline(1))
    else:
        with pytest.raises(SystemUnavailable, match="Fewer than 1 replicas"):
            own.seal([one, EMPTY], Deadline(0.05))
    expected = Outcome.COMMITTED if there else Outcome.UNKNOWN
    assert own.commit(7, [one, EMPTY], Deadline(1 if there else 0.05)) == {0: expected, 9: Outcome.COMMITTED}
    assert set(server.waited) == {(BASE.synced, name_of(one))}
    server.replicas = 1
    assert own.commit(7, [one], Deadline(1)) == {0: Outcome.ALREADY_COMMITTED}


def test_replicas_of_a_server_that_has_not_the_proof_do_not_count(server: Server) -> None:
    """A failover came in between: another server answers for its own replicas."""
    one, own = prepare(server, 0), committer(server, replicas=1)
    server.replicas = 1
    server.after = lambda: server.done.clear()
    assert own.commit(7, [one], Deadline(1))[0] is Outcome.UNKNOWN


@pytest.mark.parametrize(("left", "milliseconds"), [(60.0, 5000), (2.5, 2500), (0.0001, 1)])
def test_replicas_are_waited_for_up_to_the_deadline_and_not_for_ever(
    server: Server, left: float, milliseconds: int
) -> None:
    server.replicas = 3
    committer(server, replicas=2).seal([prepare(server, 0)], Deadline(left, clock=lambda: 0.0))
    assert server.waits == [(2, milliseconds)]


def test_a_server_that_is_away_while_its_replicas_are_waited_for_is_asked_again(
    server: Server, pauses: list[float]
) -> None:
    one, server.replicas = prepare(server, 0), 1
    server.when_waiting = fails(3, redis.exceptions.ConnectionError("reset"))
    assert committer(server, replicas=1).commit(7, [one], Deadline(60, clock=lambda: 0.0)) == {0: Outcome.COMMITTED}
    assert pauses == [0.1, 0.1, 0.1]
    server.when_waiting = fails(1, OSError("reset"))
    committer(server, replicas=1).commit(7, [one], Deadline(0.05, clock=lambda: 0.0))
    assert pauses[3:] == [0.05], "no pause goes beyond the deadline"


def test_a_server_that_refuses_to_wait_for_replicas_is_an_error(server: Server, pauses: list[float]) -> None:
    one = prepare(server, 0)
    server.when_waiting = fails(1, redis.exceptions.NoPermissionError("NOPERM this user"))
    with pytest.raises(AccessDenied, match=r"db\.example:6380/2 refused: NOPERM this user") as refused:
        committer(server, replicas=1).seal([one], Deadline(1))
    assert isinstance(refused.value.__cause__, redis.exceptions.NoPermissionError)
    assert pauses == []


def test_without_replicas_nobody_is_waited_for(server: Server) -> None:
    one, own = prepare(server, 0), committer(server)
    own.seal([one], Deadline(1))
    own.commit(7, [one], Deadline(1))
    assert server.waited == []


def test_a_server_that_has_lost_what_was_committed_last_seals_nothing(server: Server) -> None:
    ones, own = [prepare(server, 0), prepare(server, 1)], committer(server)
    own.commit(7, [EMPTY, ones[0]], Deadline(1))
    own.seal([ones[1]], Deadline(1))
    server.done.clear()
    with pytest.raises(PreCommitFailed, match=f"last commit to Redis at db.example:6380/2 .*{name_of(ones[0])}"):
        own.seal([ones[1]], Deadline(1))


def test_what_a_replica_lacks_is_told_and_what_it_has_prepared_is_applied(server: Server) -> None:
    ones, own = [prepare(server, n) for n in range(3)], committer(server)
    own.commit(7, ones[:1], Deadline(1))
    del server.open[BASE.open][name_of(ones[2])]
    told = own.missing(7, [*ones, EMPTY], Deadline(1))
    assert told == {2: f"ZADD {BASE.done} 7 {name_of(ones[2])}"}
    assert [name for name, _ in server.applied].count(name_of(ones[1])) == 5
    server.done.clear()
    with pytest.raises(PreCommitFailed, match=f"last commit to Redis .*{name_of(ones[1])}"):
        own.seal([], Deadline(1))


def test_a_sweep_that_finds_nothing_or_all_of_it_lost_leaves_what_was_committed_last(server: Server) -> None:
    ones, own = [prepare(server, n) for n in range(2)], committer(server)
    own.commit(7, ones[:1], Deadline(1))
    server.open.clear()
    assert own.missing(8, [EMPTY], Deadline(1)) == {}
    assert list(own.missing(8, ones[1:], Deadline(1))) == [1]
    server.done.clear()
    with pytest.raises(PreCommitFailed, match=f"last commit to Redis .*{name_of(ones[0])}"):
        own.seal([], Deadline(1))


def test_what_is_prepared_again_and_cannot_be_applied_now_is_not_left_to_the_sweep(server: Server) -> None:
    one, own = prepare(server, 0), committer(server)
    with pytest.raises(OutcomeUnknown, match="could not be applied again") as unknown:
        own.missing(7, [one], Deadline(0))
    assert unknown.value.retryable
    assert own.missing(7, [one], Deadline(1)) == {}


# Sealing


def test_what_is_there_whole_is_sealed(server: Server) -> None:
    ones = [prepare(server, 0), EMPTY, prepare(server, 1)]
    assert committer(server).seal(ones, Deadline(1)) == ones


@pytest.mark.parametrize(
    ("left", "said"), [(0, "gone"), (5, "not as they were written"), (7, "not as they were written")]
)
def test_what_is_gone_or_changed_is_not_sealed(server: Server, left: int, said: str) -> None:
    ones = [prepare(server, 0), prepare(server, 1)]
    server.lists[BASE.rows(name_of(ones[1]))] = [0] * left
    with pytest.raises(PreCommitFailed, match=f"writer 1 of sink 'out' .*{said}: {name_of(ones[1])}"):
        committer(server).seal(ones, Deadline(1))


def test_many_are_asked_for_in_parts_and_each_is_looked_at(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.redis.committer._AT_ONCE", 2)
    ones = [prepare(server, n) for n in range(5)]
    committer(server).seal(ones, Deadline(1))
    assert server.commands == 3
    server.lists[BASE.rows(name_of(ones[4]))] = []
    with pytest.raises(PreCommitFailed):
        committer(server).seal(ones, Deadline(1))


def test_a_server_that_is_away_is_named_without_its_password(server: Server) -> None:
    one = prepare(server, 0)
    server.before = fails(9, redis.exceptions.ConnectionError("refused"))
    calls: list[Callable[[], Any]] = [
        lambda: committer(server).seal([one], Deadline(1)),
        lambda: committer(server).missing(7, [one], Deadline(1)),
        lambda: committer(server).abort([one], Deadline(1)),
        lambda: committer(server).abort_dangling([], Deadline(1)),
        lambda: committer(server).leftovers(Deadline(1)),
    ]
    for call in calls:
        with pytest.raises(SystemUnavailable, match=r"db\.example:6380/2") as raised:
            call()
        assert "s3cret" not in str(raised.value)


# Committing


def test_prepared_rows_are_applied_once_in_parts(server: Server) -> None:
    ones = [prepare(server, 0), EMPTY, prepare(server, 1)]
    outcomes = committer(server).commit(7, ones, Deadline(1))
    assert outcomes == {0: Outcome.COMMITTED, 9: Outcome.COMMITTED, 1: Outcome.COMMITTED}
    assert server.applied == [(name_of(one), element) for one in (ones[0], ones[2]) for element in range(5)]
    assert server.done[BASE.done] == {name_of(ones[0]): 7, name_of(ones[2]): 7}
    assert committer(server, 4).commit(7, ones[:1], Deadline(1)) == {0: Outcome.ALREADY_COMMITTED}
    assert len(server.applied) == 10


def test_a_commit_cut_short_goes_on_where_it_was(server: Server) -> None:
    one = prepare(server, 0)
    server.after = fails(1, KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        committer(server).commit(7, [one], Deadline(1))
    assert len(server.applied) == 2
    assert committer(server, 4).commit(7, [one], Deadline(1)) == {0: Outcome.COMMITTED}
    assert [element for _, element in server.applied] == list(range(5))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "error", [redis.exceptions.TimeoutError("late"), OSError("reset"), redis.exceptions.ResponseError("LOADING")]
)
def test_a_lost_answer_is_asked_for_again_and_nothing_is_applied_twice(
    server: Server, pauses: list[float], when: str, error: Exception
) -> None:
    one = prepare(server, 0)
    setattr(server, when, fails(6, error))
    assert committer(server).commit(7, [one], Deadline(60))[0].visible
    assert [element for _, element in server.applied] == list(range(5))
    assert pauses == [0.02, 0.1, 0.5, 1.0, 1.0, 1.0], "less and less often"


@pytest.mark.parametrize("times", [1, 3])
def test_a_server_that_does_not_answer_is_told_of_once(
    server: Server, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    server.before = fails(times, redis.exceptions.ConnectionError(f"no way to {URL}"))
    committer(server).commit(7, [prepare(server, 0)], Deadline(60))
    (record,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "db.example:6380/2 does not answer a commit, retrying: no way to redis" in record
    assert "s3cret" not in record


def test_a_server_that_stays_away_leaves_it_unknown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sleeping(monkeypatch, "penstock.sinks.redis.committer", lambda s: now.__setitem__(0, now[0] + max(s, 0.001)))
    one = prepare(server, 0)
    server.before = fails(10_000, redis.exceptions.ConnectionError("refused"))
    assert committer(server).commit(7, [one], Deadline(3, clock=lambda: now[0])) == {0: Outcome.UNKNOWN}
    assert server.commands < 12
    assert now[0] < 4, "no pause goes beyond the deadline"


def test_after_the_deadline_nothing_is_applied(server: Server) -> None:
    one = prepare(server, 0)
    assert committer(server).commit(7, [one], Deadline(0)) == {0: Outcome.UNKNOWN}
    assert server.commands == 0


def test_a_server_that_refuses_for_good_is_an_error(server: Server) -> None:
    one = prepare(server, 0)
    server.before = fails(1, redis.exceptions.NoPermissionError("NOPERM this user"))
    with pytest.raises(AccessDenied, match=r"db\.example:6380/2") as refused:
        committer(server).commit(7, [one], Deadline(1))
    assert isinstance(refused.value.__cause__, redis.exceptions.NoPermissionError)


@pytest.mark.parametrize("moment", ["commit", "seal"])
def test_a_refusal_that_repeats_the_password_does_not_reach_a_traceback(server: Server, moment: str) -> None:
    one, secret = prepare(server, 0), "s3cret"
    assert secret in URL
    refusal = fails(1, redis.exceptions.NoPermissionError(f"NOPERM {secret}"))
    with pytest.raises(AccessDenied) as refused:
        if moment == "commit":
            server.before = refusal
            committer(server).commit(7, [one], Deadline(1))
        else:
            server.when_waiting = refusal
            committer(server, replicas=1).seal([one], Deadline(1))
    assert refused.value.__cause__ is None
    assert secret not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("gone", ["rows", "open"])
def test_what_was_removed_before_any_row_was_applied_is_lost(server: Server, gone: str) -> None:
    one = prepare(server, 0)
    if gone == "rows":
        server.lists.clear()
    else:
        server.open.clear()
    assert committer(server).commit(7, [one], Deadline(1)) == {0: Outcome.LOST}


def test_what_was_changed_is_for_a_person_and_stays(server: Server) -> None:
    ones = [prepare(server, 0), prepare(server, 1)]
    server.lists[BASE.rows(name_of(ones[0]))].append(7)
    server.begun[BASE.begun] = {name_of(ones[1]): 2}
    outcomes = committer(server).commit(7, ones, Deadline(60))
    assert outcomes == {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}
    assert server.commands == 2, "asking again would not help"
    assert server.applied == []


def test_proofs_of_the_last_epochs_are_kept(server: Server) -> None:
    ones = [prepare(server, n) for n in range(3)]
    for epoch, one in zip((7, 8, 8 + KEPT_EPOCHS), ones, strict=True):
        committer(server).commit(epoch, [one], Deadline(1))
    assert server.done[BASE.done] == {name_of(ones[1]): 8, name_of(ones[2]): 8 + KEPT_EPOCHS}


def test_what_an_earlier_prefix_prepared_is_found_under_its_own_names(server: Server) -> None:
    one = prepare(server, 0, base=Layout("{t}penstock:job:out"))
    other = committer(server)
    other.seal([one], Deadline(1))
    assert other.commit(7, [one], Deadline(1)) == {0: Outcome.COMMITTED}
    two = prepare(server, 1, base=Layout("{t}penstock:job:out"))
    other.abort([two], Deadline(1))
    assert other.commit(7, [two], Deadline(1)) == {1: Outcome.LOST}


# Aborting


def test_exactly_these_are_aborted_and_what_has_begun_stays(server: Server) -> None:
    ones = [prepare(server, n) for n in range(3)]
    server.begun[BASE.begun] = {name_of(ones[1]): 6}
    committer(server).abort([ones[0], ones[1], EMPTY], Deadline(1))
    assert list(server.open[BASE.open]) == [name_of(ones[1]), name_of(ones[2])]
    assert BASE.rows(name_of(ones[0])) not in server.lists


def test_a_sweep_takes_what_older_runs_left_and_spares_the_rest(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.redis.committer._AT_ONCE", 2)
    kept, own, newer = prepare(server, 0), prepare(server, 1), prepare(server, 2, generation=4)
    older = [prepare(server, 3 + n, generation=2) for n in range(4)]
    server.open[BASE.open]["not one of ours"] = ""
    assert committer(server).abort_dangling([kept, EMPTY], Deadline(1)) == 5
    assert list(server.open[BASE.open]) == [name_of(kept), name_of(newer), "not one of ours"]
    assert not [one for one in (own, *older) if BASE.rows(name_of(one)) in server.lists]
    assert committer(server).abort_dangling([kept], Deadline(1)) == 0


def test_leftovers_are_told_as_they_are(server: Server) -> None:
    late, early = prepare(server, 2), prepare(server, 1)
    prepare(server, 3, generation=4)
    server.open[BASE.open]["not one of ours"] = ""
    assert committer(server).leftovers(Deadline(1)) == [
        Leftover(name_of(one), 3, 7, partition, payload={"base": BASE.base, "name": name_of(one)})
        for one, partition in ((early, 1), (late, 2))
    ]


def test_closing_closes_the_client(server: Server) -> None:
    committer(server).close()
    assert server.closed


def test_writers_that_wrote_the_keys_themselves_leave_nothing_to_do() -> None:
    nothing = NothingToCommit()
    assert nothing.commit(7, [EMPTY], Deadline(0)) == {9: Outcome.COMMITTED}
    nothing.abort([EMPTY], Deadline(0))
    assert nothing.abort_dangling([], Deadline(0)) == 0
