"""How a transaction ended: the whole table, and what a committer does with a cluster that answers as told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from penstock import failpoints
from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.errors import PreCommitFailed, SystemUnavailable
from penstock.kafka import errors
from penstock.sinks.kafka import KafkaSink, transactions
from penstock.sinks.kafka.committer import KafkaCommitter, judge, leftover
from penstock.sinks.kafka.transactions import SILENT, Described, Ended, Ending, TransactionClient
from tests.support.fake_sleep import sleeping

P, E, S = 7, 3, 1000
OURS = {"producer_id": P, "producer_epoch": E, "started": S}
FENCED, BAD_STATE = 90, 48


def committable(writer: int, generation: int = 1, sequence: int = 1, **payload: Any) -> Committable:
    name = f"job-u-g{generation:06d}-{writer:012x}"
    return Committable("u", writer, 10, 0, {"transactional_id": name, "sequence": sequence, **payload})


@pytest.fixture(autouse=True)
def nothing_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names repeat between these tests, as they never do in life."""
    monkeypatch.setattr(transactions.UNSURE, "_ids", {})


class Fake(TransactionClient):
    """A cluster: states by id, and answers to EndTxn in order (the last one repeats)."""

    def __init__(self, states: Mapping[str, Described] | None = None) -> None:
        self.states = dict(states or {})
        self.answers: dict[str, list[Ended]] = {}
        self.ended: list[tuple[str, bool]] = []
        self.endings: list[Ending] = []
        self.closed = False
        self.fenced: list[str] = []
        self.since: Mapping[str, int] = {}  # of the last fence
        self.unfenced: set[str] = set()

    def describe(
        self, ids: Iterable[str], deadline: Deadline, since: Mapping[str, int] = MappingProxyType({})
    ) -> Mapping[str, Described]:
        assert isinstance(deadline, Deadline), "every request ends with the step it belongs to"
        named = {name: self.states[name] for name in ids if name in self.states}
        return {name: state for name, state in named.items() if state.started >= since.get(name, -1)}

    def end(self, endings: Sequence[Ending], commit: bool, deadline: Deadline) -> Mapping[str, Ended]:
        assert isinstance(deadline, Deadline)
        self.ended += [(ending.transactional_id, commit) for ending in endings]
        self.endings += endings
        told = {}
        for ending in endings:
            queue = self.answers.get(ending.transactional_id, [Ended(0, True)])
            told[ending.transactional_id] = queue.pop(0) if len(queue) > 1 else queue[0]
        return told

    def list_open(self, prefix: str, deadline: Deadline) -> Sequence[str]:
        assert isinstance(deadline, Deadline)
        return sorted(name for name, state in self.states.items() if state.open and name.startswith(prefix))

    def fence(
        self, ids: Collection[str], deadline: Deadline, since: Mapping[str, int] = MappingProxyType({})
    ) -> Collection[str]:
        assert isinstance(deadline, Deadline)
        self.fenced += sorted(ids)
        self.since = since
        return self.unfenced

    def evidence(self, committable: Committable, deadline: Deadline) -> str:
        assert isinstance(deadline, Deadline)
        return f"of writer {committable.writer}"

    def close(self) -> None:
        self.closed = True


def opened(*committables: Committable) -> Fake:
    return Fake({c.payload["transactional_id"]: Described("Ongoing", P + c.writer, E, S) for c in committables})


def sealed(fake: Fake, *committables: Committable) -> tuple[KafkaCommitter, Sequence[Committable]]:
    committer = KafkaCommitter(fake, "job-u", 1)
    return committer, committer.seal(committables, Deadline(1))


@pytest.mark.parametrize(
    ("state", "pid", "epoch", "started", "outcome"),
    [
        ("Ongoing", P, E, S, None),
        ("PrepareCommit", P, E, S, None),
        ("CompleteCommit", P, E, S, Outcome.ALREADY_COMMITTED),
        ("PrepareAbort", P, E, S, Outcome.LOST),
        ("CompleteAbort", P, E, S, Outcome.LOST),
        ("PrepareEpochFence", P, E + 1, S, Outcome.LOST),
        ("PrepareAbort", P, E + 1, S, Outcome.LOST),
        ("CompleteAbort", P, E + 1, S, Outcome.LOST),
        ("CompleteCommit", P, E + 1, S, Outcome.UNKNOWN),
        ("Ongoing", P, E + 1, S, Outcome.UNKNOWN),
        ("CompleteAbort", P, E - 1, S, Outcome.UNKNOWN),
        ("Ongoing", P, E, S + 5, Outcome.ALREADY_COMMITTED),
        ("CompleteCommit", P, E, S + 5, Outcome.ALREADY_COMMITTED),
        ("CompleteAbort", P, E, S + 5, Outcome.ALREADY_COMMITTED),
        ("CompleteAbort", P, E + 1, S + 5, Outcome.ALREADY_COMMITTED),
        ("CompleteCommit", P, E + 1, S + 5, Outcome.UNKNOWN),
        ("Ongoing", P, E + 2, S + 5, Outcome.UNKNOWN),
        ("Empty", P, E, S, Outcome.UNKNOWN),
        ("Empty", P, E + 1, -1, Outcome.UNKNOWN),
        ("Dead", P, E, S, Outcome.UNKNOWN),
        ("CompleteAbort", P + 1, 0, S, Outcome.UNKNOWN),
        ("CompleteCommit", P + 1, E, S, Outcome.UNKNOWN),
        ("CompleteCommit", P - 1, E, S, Outcome.UNKNOWN),
        ("CompleteCommit", P, E - 1, S, Outcome.UNKNOWN),
        ("Ongoing", P, E - 1, S, Outcome.UNKNOWN),
        ("Ongoing", P, E - 1, S + 5, Outcome.UNKNOWN),
        ("CompleteAbort", P, E - 1, S + 5, Outcome.UNKNOWN),
        ("CompleteAbort", P, E + 2, S + 5, Outcome.UNKNOWN),
        ("Empty", P, E, S + 5, Outcome.UNKNOWN),
        ("Dead", P, E, S + 5, Outcome.UNKNOWN),
        ("NotFound", P, E, S + 5, Outcome.UNKNOWN),
        ("BrandNew", P, E, S, Outcome.UNKNOWN),
        ("NotFound", -1, -1, -1, Outcome.UNKNOWN),
        ("SomethingNew", P, E, S, Outcome.UNKNOWN),
    ],
)
def test_the_table(state: str, pid: int, epoch: int, started: int, outcome: Outcome | None) -> None:
    assert judge(OURS, Described(state, pid, epoch, started)) is outcome


STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence", "CompleteCommit", "CompleteAbort")


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("started", [S - 1, 0, -1])
def test_an_earlier_transaction_proves_nothing_of_ours(state: str, ahead: int, started: int) -> None:
    """A coordinator that was deposed remembers what came before ours, and may still be asked."""
    assert judge(OURS, Described(state, P, E + ahead, started)) is Outcome.UNKNOWN


def test_sealed_and_committed() -> None:
    parts = [committable(n) for n in range(3)]
    fake = opened(*parts)
    committer, ready = sealed(fake, *parts)
    assert ready[1].payload["producer_id"] == P + 1
    assert committer.commit(5, ready, Deadline(1)) == dict.fromkeys(range(3), Outcome.COMMITTED)
    assert committer.hints()["committed"] == {c.payload["transactional_id"]: 1 for c in parts}
    fake.ended.clear()
    assert committer.commit(5, ready, Deadline(1)) == dict.fromkeys(range(3), Outcome.ALREADY_COMMITTED)
    assert fake.ended == []


def test_a_writer_without_rows_has_nothing_to_commit() -> None:
    empty = Committable("u", 0, 0, 0, {"transactional_id": None})
    committer, ready = sealed(Fake(), empty)
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.COMMITTED}
    committer.abort(ready, Deadline(1))


@pytest.mark.parametrize("state", ["CompleteAbort", "Empty", "NotFound", "CompleteCommit"])
def test_only_open_transactions_are_sealed(state: str) -> None:
    part = committable(0)
    with pytest.raises(PreCommitFailed, match=state):
        sealed(Fake({part.payload["transactional_id"]: Described(state, P, E, S)}), part)


def test_silence_is_not_a_seal() -> None:
    with pytest.raises(SystemUnavailable, match="1 of 1"):
        sealed(Fake(), committable(0))


@pytest.mark.parametrize("code", [FENCED, BAD_STATE, errors.CONCURRENT_TRANSACTIONS, SILENT])
@pytest.mark.parametrize(
    ("state", "epoch", "outcome"),
    [
        ("CompleteCommit", E, Outcome.ALREADY_COMMITTED),
        ("CompleteAbort", E + 1, Outcome.LOST),
        ("Empty", E + 1, Outcome.UNKNOWN),
        ("NotFound", -1, Outcome.UNKNOWN),
    ],
)
def test_no_answer_but_success_is_believed(code: int, state: str, epoch: int, outcome: Outcome) -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    name = part.payload["transactional_id"]
    fake.answers[name] = [Ended(code, True)]
    fake.states[name] = Described(state, P, epoch, S)
    assert committer.commit(1, ready, Deadline(1)) == {0: outcome}
    assert committer.hints()["committed"] == {}  # not proven by a clean answer, so its producer is not reused


def test_markers_on_their_way_are_waited_for() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    name = part.payload["transactional_id"]
    fake.states[name] = Described("PrepareCommit", P, E, S)
    fake.answers[name] = [Ended(BAD_STATE, True), Ended(0, True)]
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.COMMITTED}


def test_a_lost_answer_keeps_the_producer_from_being_reused() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    fake.answers[part.payload["transactional_id"]] = [Ended(0, False)]
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.COMMITTED}
    assert committer.hints()["committed"] == {}


def test_nothing_by_the_deadline_is_unknown() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    fake.answers[part.payload["transactional_id"]] = [Ended(SILENT, False)]
    fake.states.clear()
    assert committer.commit(1, ready, Deadline(0.02)) == {0: Outcome.UNKNOWN}
    fake.answers.clear()
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.COMMITTED}
    assert committer.hints()["committed"] == {}  # the request without an answer may still be on its way


@pytest.mark.parametrize("commit", [True, False])
def test_what_one_committer_is_unsure_of_no_other_lets_a_writer_use(commit: bool) -> None:
    """The drainer has a committer of its own, and so has every start of a query."""
    part = committable(0)
    name = part.payload["transactional_id"]
    fake = opened(part)
    first, ready = sealed(fake, part)
    fake.answers[name] = [Ended(SILENT, False)]
    if commit:
        fake.states.clear()
        assert first.commit(5, ready, Deadline(0.02)) == {0: Outcome.UNKNOWN}
    else:
        first.abort(ready, Deadline(0.02))
    second = KafkaCommitter(opened(part), "job-u", 1)
    assert second.commit(5, ready, Deadline(1)) == {0: Outcome.COMMITTED}
    assert name not in second.hints()["committed"]
    assert name in first.hints()["unsure"]
    assert name in second.hints()["unsure"]


def test_an_answer_that_got_lost_takes_back_what_was_hinted() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    committer.commit(5, ready, Deadline(1))
    assert committer.hints()["committed"]
    other = KafkaCommitter(opened(part), "job-u", 1)
    other._client.answers[part.payload["transactional_id"]] = [Ended(0, False)]  # type: ignore[attr-defined]
    other.commit(5, ready, Deadline(1))
    assert committer.hints()["committed"] == {}


def test_hints_name_no_other_sinks_ids() -> None:
    transactions.UNSURE.add(["job-u-g000002-0123456789ab", "job-u2-g000001-0123456789ab", "job-u-g000001-0123456789ab"])
    assert KafkaCommitter(Fake(), "job-u", 1).hints()["unsure"] == {"job-u-g000001-0123456789ab": True}


def test_a_restart_looks_before_it_commits() -> None:
    part = committable(0)
    _, ready = sealed(opened(part), part)
    later = Fake({part.payload["transactional_id"]: Described("Ongoing", P, E, S + 9)})
    assert KafkaCommitter(later, "job-u", 2).commit(1, ready, Deadline(1)) == {0: Outcome.ALREADY_COMMITTED}
    assert later.ended == []
    silent = Fake()
    assert KafkaCommitter(silent, "job-u", 2).commit(1, ready, Deadline(1)) == {0: Outcome.UNKNOWN}
    assert silent.ended == []
    still = opened(part)
    assert KafkaCommitter(still, "job-u", 2).commit(1, ready, Deadline(1)) == {0: Outcome.COMMITTED}


def test_never_sealed_is_never_committed() -> None:
    fake = opened(committable(0))
    assert KafkaCommitter(fake, "job-u", 1).commit(1, [committable(0)], Deadline(1)) == {0: Outcome.UNKNOWN}
    assert fake.ended == []


def test_aborting_ends_exactly_these_and_frees_the_producers_of_what_was_not_sealed() -> None:
    parts = [committable(n) for n in range(2)]
    fake = opened(*parts)
    committer, ready = sealed(fake, *parts)
    names = [part.payload["transactional_id"] for part in parts]
    fake.states[names[1]] = Described("Ongoing", P + 1, E, S + 9)  # its producer has gone on
    committer.abort(ready, Deadline(1))
    assert fake.ended == [(names[0], False)]
    assert fake.fenced == []
    assert committer.hints()["aborted"] == {}, "it may be decided, and wait in the in-flight log"
    fake.states[names[1]] = Described("Ongoing", P + 1, E, S)
    committer.abort(parts, Deadline(1))
    assert committer.hints()["aborted"] == {names[0]: 1, names[1]: 1}


def test_what_cannot_be_ended_is_fenced() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    name = part.payload["transactional_id"]
    fake.answers[name] = [Ended(SILENT, False)]
    committer.abort(ready, Deadline(1))
    assert fake.fenced == [name]
    fake.unfenced = {name}
    with pytest.raises(SystemUnavailable, match=name):
        committer.abort(ready, Deadline(1))


def test_sweeping_spares_newer_runs_other_sinks_and_what_is_kept() -> None:
    names = [
        "job-u-g000001-0123456789ab",
        "job-u-g000002-0123456789ab",
        "job-u-g000003-0123456789ab",
        "job-u-g000001-ffffffffffff",
        "job-u-g000001-other-g000001-0123456789ab",
        "job-u2-g000001-0123456789ab",
    ]
    fake = Fake({name: Described("Ongoing", P, E, S) for name in names})
    committer = KafkaCommitter(fake, "job-u", 2)
    keep = [Committable("u", 0, 1, 0, {"transactional_id": names[3], "sequence": 1})]
    assert committer.abort_dangling(keep, Deadline(1)) == 2
    assert fake.fenced == names[:2]


@pytest.mark.parametrize(
    ("pid", "epoch", "started", "swept"),
    [
        (P, E, S, False),
        (P, E, S + 500, True),  # its producer has gone on: the kept one is committed
        (P + 1, 0, S + 500, True),
        (P, E + 1, S + 500, True),
        (P, E, S - 500, False),  # a deposed coordinator's memory; the kept one may well be open
        (P - 1, E, S - 500, True),  # another producer's, which was never the kept one's
        (P + 1, E, S - 500, True),
        (P, E + 1, S, True),
    ],
)
def test_what_is_kept_is_a_transaction_not_an_id(pid: int, epoch: int, started: int, swept: bool) -> None:
    one = committable(0, producer_id=P, producer_epoch=E, started=S)
    fake = Fake({one.payload["transactional_id"]: Described("Ongoing", pid, epoch, started)})
    assert KafkaCommitter(fake, "job-u", 2).abort_dangling([one], Deadline(1)) == swept
    assert bool(fake.fenced) is swept


def test_a_kept_id_that_nobody_could_describe_is_left_alone() -> None:
    one = committable(0, producer_id=P, producer_epoch=E, started=S)
    fake = opened(one)
    fake.describe = lambda ids, deadline, since=None: {}  # type: ignore[method-assign]
    assert KafkaCommitter(fake, "job-u", 2).abort_dangling([one], Deadline(1)) == 0


def test_no_two_sinks_names_begin_alike() -> None:
    jobs, uids, prefixes = ("a", "a-b", "b", "team-a", "4"), ("out", "4", "b-out"), (None, "team", "team-a", "a:4", "a")
    made = [
        KafkaSink("t", servers="x", transactional_id_prefix=prefix)._prefix(SinkScope(job, uid, 1)) + "-g"
        for prefix in prefixes
        for job in jobs
        for uid in uids
    ]
    assert len(set(made)) == len(made)


def test_the_failpoint_stands_between_the_first_and_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [committable(n) for n in range(3)]
    fake = opened(*parts)
    committer, ready = sealed(fake, *parts)
    monkeypatch.setenv(failpoints.VARIABLE, "commit.first=raise")
    failpoints.reload()
    try:
        with pytest.raises(failpoints.InjectedFault):
            committer.commit(1, ready, Deadline(1))
    finally:
        monkeypatch.delenv(failpoints.VARIABLE)
        failpoints.reload()
    assert len(fake.ended) == 1
    assert committer.commit(1, ready, Deadline(1)) == {
        0: Outcome.ALREADY_COMMITTED,
        1: Outcome.COMMITTED,
        2: Outcome.COMMITTED,
    }


def test_hints_stay_small() -> None:
    parts = [committable(n) for n in range(2500)]
    committer, ready = sealed(opened(*parts), *parts)
    committer.commit(1, ready, Deadline(5))
    assert len(committer.hints()["committed"]) == 2000


def test_a_commit_is_sent_for_the_very_producer_that_was_sealed_and_as_a_commit() -> None:
    parts = [committable(n) for n in range(2)]
    fake = opened(*parts)
    committer, ready = sealed(fake, *parts)
    committer.commit(5, ready, Deadline(1))
    names = [part.payload["transactional_id"] for part in parts]
    assert fake.ended == [(name, True) for name in names]
    assert fake.endings == [Ending(names[0], P, E), Ending(names[1], P + 1, E)]


def test_an_abort_is_sent_for_the_very_producer_that_is_open() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    committer.abort(ready, Deadline(1))
    assert fake.endings == [Ending(part.payload["transactional_id"], P, E)]


def test_a_transaction_that_is_another_by_now_is_not_aborted() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    fake.states[part.payload["transactional_id"]] = Described("Ongoing", P, E, S + 9)
    committer.abort(ready, Deadline(1))
    assert (fake.ended, fake.fenced) == ([], [])


@pytest.mark.parametrize("state", STATES)
def test_an_abort_does_not_believe_that_an_earlier_transaction_is_what_its_id_has(state: str) -> None:
    """A former coordinator remembers it, open or ended: ours may be open, and its rows stand before later ones."""
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    name = part.payload["transactional_id"]
    fake.states[name], fake.unfenced = Described(state, P, E, S - 9), {name}
    with pytest.raises(SystemUnavailable, match=name):
        committer.abort(ready, Deadline(1))
    assert (fake.ended, fake.fenced, fake.since) == ([], [name], {name: S})


@pytest.mark.parametrize(("started", "open_"), [(S - 1, False), (S, False), (S + 1, True)])
def test_a_seal_believes_only_what_began_after_its_producers_last_transaction(started: int, open_: bool) -> None:
    """A former coordinator calls the last one open, under the same producer id and epoch. Sealed with its start, ours
    would count as committed wherever its own start, which is later, is seen."""
    part = committable(0, after=S)
    fake = Fake({part.payload["transactional_id"]: Described("Ongoing", P, E, started)})
    if open_:
        assert sealed(fake, part)[1][0].payload["started"] == started
        return
    with pytest.raises(PreCommitFailed, match=f"is Ongoing since {started}"):
        sealed(fake, part)


def test_the_first_transaction_of_a_producer_follows_none() -> None:
    part = committable(0)
    fake = Fake({part.payload["transactional_id"]: Described("Ongoing", P, E, 0)})
    assert sealed(fake, part)[1][0].payload["started"] == 0


def test_what_was_aborted_unsealed_is_hinted_only_with_a_start_that_is_its_own() -> None:
    parts = [committable(0, after=S), committable(1, after=S - 1), committable(2)]
    fake = opened(*parts)
    committer = KafkaCommitter(fake, "job-u", 1)
    committer.abort(parts, Deadline(1))
    names = [part.payload["transactional_id"] for part in parts]
    assert fake.ended == [(name, False) for name in names]
    assert (fake.fenced, committer.hints()["aborted"]) == ([], {names[1]: 1, names[2]: 1})
    assert committer.hints()["started"] == {names[1]: S, names[2]: S}


def test_hints_say_when_the_last_transaction_of_a_producer_began() -> None:
    part = committable(0)
    name, fake = part.payload["transactional_id"], opened(part)
    committer, ready = sealed(fake, part)
    assert committer.hints()["started"] == {}
    committer.commit(5, ready, Deadline(1))
    assert committer.hints()["started"] == {name: S}
    fake.states[name] = Described("Ongoing", P, E, S + 9)
    committer.abort([committable(0, sequence=2, after=S)], Deadline(1))
    assert (committer.hints()["committed"], committer.hints()["aborted"]) == ({}, {name: 2})
    assert committer.hints()["started"] == {name: S + 9}


def test_aborting_writers_without_rows_asks_nothing() -> None:
    fake = Fake()
    fake.describe = None  # type: ignore[assignment]
    KafkaCommitter(fake, "job-u", 1).abort([Committable("u", 0, 0, 0, {"transactional_id": None})], Deadline(1))


def test_an_abort_without_an_answer_keeps_the_producer_from_being_reused() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    fake.answers[part.payload["transactional_id"]] = [Ended(0, False)]
    committer.abort(ready, Deadline(1))
    assert committer.hints()["aborted"] == {}
    assert fake.fenced == [], "it is ended, there is nothing left to fence"


def test_aborted_twice_is_fine_also_by_a_run_that_did_not_seal_it() -> None:
    part = committable(0)
    fake = opened(part)
    _, ready = sealed(fake, part)
    other = KafkaCommitter(fake, "job-u", 2)
    other.abort(ready, Deadline(1))
    other.abort(ready, Deadline(1))
    assert fake.ended == [(part.payload["transactional_id"], False)] * 2
    assert other.hints()["aborted"] == {}


def test_what_was_aborted_is_looked_at_before_it_would_be_committed() -> None:
    """A run that gave it up has no seal on it any more: whatever its id has open now may be another transaction."""
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    committer.abort(ready, Deadline(1))
    fake.ended.clear()
    fake.states[part.payload["transactional_id"]] = Described("CompleteAbort", P, E, S)
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.LOST}
    assert fake.ended == []


def test_what_was_lost_is_looked_at_again_before_it_would_be_committed() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    name = part.payload["transactional_id"]
    fake.answers[name] = [Ended(FENCED, True)]
    fake.states[name] = Described("CompleteAbort", P, E, S)
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.LOST}
    fake.ended.clear()
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.LOST}
    assert fake.ended == []


def test_what_was_proven_once_is_not_asked_for_again() -> None:
    part = committable(0)
    _, ready = sealed(opened(part), part)
    name = part.payload["transactional_id"]
    fake = Fake({name: Described("CompleteCommit", P, E, S)})
    committer = KafkaCommitter(fake, "job-u", 2)
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.ALREADY_COMMITTED}
    assert committer.hints()["committed"] == {}, "its producer may be another's by now"
    fake.states.clear()
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.ALREADY_COMMITTED}
    lost = Fake({name: Described("CompleteAbort", P, E, S)})
    other = KafkaCommitter(lost, "job-u", 2)
    assert other.commit(1, ready, Deadline(1)) == {0: Outcome.LOST}
    lost.states.clear()
    assert other.commit(1, ready, Deadline(1)) == {0: Outcome.UNKNOWN}, "only what is visible is remembered"


def test_a_cluster_that_cannot_be_asked_for_a_moment_is_asked_again() -> None:
    """A sealed one may be committed without a look: it is this run's own, and nobody else has begun under its id."""
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    fake.answers[part.payload["transactional_id"]] = [Ended(SILENT, True), Ended(0, True)]
    fake.states.clear()
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.COMMITTED}


def test_between_two_questions_the_cluster_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    pauses: list[float] = []
    sleeping(monkeypatch, "penstock.sinks.kafka.committer", pauses.append)
    fake.answers[part.payload["transactional_id"]] = [Ended(BAD_STATE, True), Ended(BAD_STATE, True), Ended(0, True)]
    assert committer.commit(1, ready, Deadline(1)) == {0: Outcome.COMMITTED}
    assert len(pauses) == 2


def test_of_one_producer_only_its_last_transaction_is_hinted() -> None:
    first, second = committable(0, sequence=1), committable(0, sequence=2)
    fake = opened(first)
    committer, ready = sealed(fake, first)
    committer.commit(1, ready, Deadline(1))
    name = first.payload["transactional_id"]
    committer.abort([second], Deadline(1))
    assert committer.hints() == {"committed": {}, "aborted": {name: 2}, "started": {name: S}, "unsure": {}}
    third = committer.seal([committable(0, sequence=3)], Deadline(1))
    committer.commit(3, third, Deadline(1))
    assert committer.hints() == {"committed": {name: 3}, "aborted": {}, "started": {name: S}, "unsure": {}}


def test_of_many_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.kafka.committer._MOST_HINTED", 2)
    parts = [committable(n) for n in range(21)]
    names = [part.payload["transactional_id"] for part in parts]
    fake = opened(*parts)
    committer, ready = sealed(fake, *parts)
    committer.commit(1, ready, Deadline(1))
    assert list(committer.hints()["committed"]) == names[-2:]
    fake.states.clear()
    fake.ended.clear()
    again = committer.commit(1, ready, Deadline(0.02))
    proven = [writer for writer, outcome in again.items() if outcome is Outcome.ALREADY_COMMITTED]
    assert proven == list(range(1, 21)), "ten times as many stay proven; the oldest has to be asked for"


def test_of_many_seals_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that another committer has committed: what is forgotten is looked at before it is committed, no more."""
    monkeypatch.setattr("penstock.sinks.kafka.committer._MOST_HINTED", 2)
    parts = [committable(n) for n in range(21)]
    fake = opened(*parts)
    committer, ready = sealed(fake, *parts)
    fake.states.clear()
    assert committer.commit(1, [ready[0]], Deadline(0.02)) == {0: Outcome.UNKNOWN}
    assert fake.ended == []
    assert committer.commit(1, ready[1:], Deadline(1)) == dict.fromkeys(range(1, 21), Outcome.COMMITTED)


def test_leftovers_are_told_as_the_cluster_tells_them() -> None:
    own, newer, ended = (f"job-u-g00000{n}-0123456789ab" for n in (2, 3, 1))
    fake = Fake(
        {
            own: Described("Ongoing", P, E, 5_000, 60_000, ("t-0", "t-1")),
            newer: Described("Ongoing", P, E, S),
            ended: Described("Ongoing", P, E, S),
            "job-u2-g000001-0123456789ab": Described("Ongoing", P, E, S),
        }
    )
    committer = KafkaCommitter(fake, "job-u", 2)
    listed = fake.list_open("job-u-g", Deadline(1))

    def list_open(prefix: str, deadline: Deadline) -> Sequence[str]:
        assert isinstance(deadline, Deadline)
        return [name for name in listed if name.startswith(prefix)]

    fake.list_open = list_open  # type: ignore[method-assign]
    fake.states[ended] = Described("CompleteAbort", P, E, S)  # between the list and the look
    assert committer.leftovers(Deadline(1)) == [
        Leftover(
            own,
            2,
            started=5.0,
            payload={"transactional_id": own, "producer_id": P, "producer_epoch": E, "started": 5_000},
            details={
                "state": "Ongoing",
                "producer_id": P,
                "producer_epoch": E,
                "timeout_seconds": 60.0,
                "partitions": ["t-0", "t-1"],
            },
        )
    ]
    assert leftover("somebody else's", Described("Ongoing", P, E, S)).generation == 0


def test_evidence_is_looked_for_of_what_was_sealed() -> None:
    part = committable(0)
    committer, ready = sealed(opened(part), part)
    assert committer.evidence([*ready, committable(1)], Deadline(1)) == {0: "of writer 0"}


def test_what_somebody_names_without_its_number_is_not_taken_for_what_was_proven() -> None:
    part = committable(0)
    fake = opened(part)
    committer, ready = sealed(fake, part)
    committer.commit(5, ready, Deadline(1))
    named = Committable("u", 0, 10, 0, {name: value for name, value in ready[0].payload.items() if name != "sequence"})
    fake.states[named.payload["transactional_id"]] = Described("NotFound", P, E, S)
    assert committer.commit(5, [named], Deadline(1)) == {0: Outcome.UNKNOWN}


def test_closing_closes_the_client() -> None:
    fake = Fake()
    KafkaCommitter(fake, "job-u", 1).close()
    assert fake.closed
