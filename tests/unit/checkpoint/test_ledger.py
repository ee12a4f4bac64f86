"""The ledger: generations, claims and manifests; damage is told from health; the format on disk stays readable."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.checkpoint.decision import Claim, Committable, Decision, DecisionId, Outcome, StateIds
from penstock.checkpoint.layout import seal, unseal
from penstock.checkpoint.ledger import Ledger
from penstock.checkpoint.open import require_trust
from penstock.config import Checkpoints
from penstock.errors import LedgerCorrupt, LedgerError, LedgerFromTheFuture, StorageNotAtomic
from penstock.storage.local import LocalStorage
from penstock.storage.storage import RACERS, AlreadyExists
from tests.support.memory_storage import MemoryStorage

DATA = Path(__file__).parents[2] / "data"
BODY = {"text": "Zażółć 日本", "number": 12.5, "none": None, "list": [1, "a", {"b": True}]}

FACTS = {"job": "payments", "host": "node-1", "pid": 4321, "sources": ["orders"], "sinks": ["alerts", "archive"]}
CLAIM = Claim(generation=7, epoch=12, honours=DecisionId(12, 6))
DECISION = Decision(
    DecisionId(12, 7),
    (
        Committable("alerts", 0, 3, 2**64 - 1, {"transactional_id": "payments:alerts-g000007-0", "sequence": 1}),
        Committable("archive", 1, 5, 42, {"staged": "a", "final": "b", "bytes": 10}, format=2),
        Committable("archive", 2, 0, 0),
    ),
    watermark=1767225600000,
)


def ledger(storage: Any = None, **more: Any) -> Ledger:
    return Ledger(storage or MemoryStorage(), now=lambda: 1767225600.25, **more)


# Sealed files


def test_what_is_sealed_comes_back() -> None:
    assert unseal("manifest", seal("manifest", BODY), "here") == BODY


def test_every_flipped_bit_is_noticed() -> None:
    good = seal("manifest", BODY)
    for position in range(len(good)):
        for bit in range(8):
            bad = good[:position] + bytes([good[position] ^ (1 << bit)]) + good[position + 1 :]
            try:
                body = unseal("manifest", bad, "here")
            except (LedgerCorrupt, LedgerFromTheFuture):
                continue
            assert body == BODY, (position, bit)  # another spelling of the same JSON


def test_every_truncation_is_noticed() -> None:
    good = seal("manifest", BODY)
    for length in range(len(good) - 1):  # the newline at the end is no content
        with pytest.raises(LedgerCorrupt) as refused:
            unseal("manifest", good[:length], "here")
        assert "here cannot be trusted" in str(refused.value)
        assert not refused.value.retryable


@pytest.mark.parametrize("body", [b"[]", b"null", b"12", b'"text"', b"{}", b'{"format":1,"version":1,"body":{}}'])
def test_other_json_is_not_a_ledger_file(body: bytes) -> None:
    with pytest.raises(LedgerCorrupt):
        unseal("manifest", body, "here")


def test_one_kind_is_not_taken_for_another() -> None:
    with pytest.raises(LedgerCorrupt, match="says 'penstock/claim' where 'penstock/manifest' belongs"):
        unseal("manifest", seal("claim", BODY), "here")


def test_a_newer_version_is_refused_whatever_is_in_it() -> None:
    newer = json.dumps({"format": "penstock/manifest", "version": 2, "body": ["something", "else"]}).encode()
    with pytest.raises(LedgerFromTheFuture) as refused:
        unseal("manifest", newer, "here")
    assert "here has version 2; this Penstock reads up to 1" in str(refused.value)


# The format, as it stands on people's disks


GOLDEN = {
    "generation-v1.json": ("generation", "generations/00000001.json"),
    "claim-v1.json": ("claim", "claims/00000007.json"),
    "manifest-v1.json": ("manifest", "epochs/0000000012.g00000007.json"),
}


def test_golden_files_are_read() -> None:
    storage = MemoryStorage()
    for file, (_, name) in GOLDEN.items():
        storage.create(name, (DATA / file).read_bytes())
    read = ledger(storage)
    assert read.newest_generation() == 1
    assert read.generation(1) == {**FACTS, "registered": 1767225600.25}
    assert read.claims("query-id") == (CLAIM,)
    [manifest] = read.manifests(12)
    assert manifest.decision == DECISION
    assert (manifest.query, manifest.barrier, manifest.decided) == ("query-id", "barrier-digest", 1767225600.25)


def test_what_is_written_today_is_what_the_golden_files_hold() -> None:
    """Should this fail, the format has changed: raise its version, keep reading the old one, add new golden files."""
    storage = MemoryStorage()
    written = ledger(storage)
    written.register(FACTS)
    written.claim(CLAIM, "query-id")
    written.decide(DECISION, query="query-id", barrier="barrier-digest")
    for file, (_, name) in GOLDEN.items():
        assert storage.read(name) == (DATA / file).read_bytes(), file


def test_the_golden_identity_is_kept() -> None:
    storage = MemoryStorage()
    storage.create("identity.json", (DATA / "identity-v1.json").read_bytes())
    assert ledger(storage).identity() == "0123456789ab"


def test_an_identity_is_made_up_once() -> None:
    storage = MemoryStorage()
    first = ledger(storage).identity()
    assert first == ledger(storage).identity()
    assert first != ledger().identity()


@pytest.mark.parametrize("file", GOLDEN)
def test_a_golden_file_of_version_2_is_refused(file: str) -> None:
    kind, name = GOLDEN[file]
    storage = MemoryStorage()
    newer = (DATA / file).read_bytes().replace(b'"version":1}', b'"version":2}')
    storage.create(name, newer)
    read = {
        "generation": lambda: ledger(storage).generation(1),
        "claim": lambda: ledger(storage).claims("query-id"),
        "manifest": lambda: ledger(storage).manifests(12),
    }[kind]
    with pytest.raises(LedgerFromTheFuture, match="version 2"):
        read()


# Generations


def test_generations_count_up_and_old_ones_are_forgotten() -> None:
    storage = MemoryStorage()
    own = ledger(storage)
    assert own.newest_generation() == 0
    assert [own.register(FACTS) for _ in range(30)] == list(range(1, 31))
    assert own.newest_generation() == 30
    assert len(storage.list("generations")) == 20
    assert own.generation(5) is None


def test_a_generation_is_known_again_by_the_run_that_registered_it() -> None:
    one = ledger()
    assert one.register({**FACTS, "run": "m"}) == 1
    assert one.is_of(1, "m")
    assert not any(one.is_of(1, run) for run in ("a", "z", ""))
    assert not one.is_of(2, "m"), "there is none"
    assert one.register(FACTS) == 2
    assert not one.is_of(2, "m"), "a drainer's registration has no such fact"


class NoDeletes(MemoryStorage):
    """It creates, and answers nothing beside."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken

    def list(self, folder: str) -> list[str]:
        if self.broken == "list" and self._files:
            raise LedgerError("The storage refused while listing: 503 Slow Down.")
        return super().list(folder)

    def delete(self, name: str) -> None:
        raise LedgerError("The storage refused while deleting.")


def test_what_is_done_stays_done_where_what_is_old_cannot_be_removed(caplog: pytest.LogCaptureFixture) -> None:
    one = ledger(NoDeletes("delete"), retained=3)
    assert [one.register(FACTS) for _ in range(25)] == list(range(1, 26))
    assert all(one.begin(epoch, "q") for epoch in range(5))
    for epoch in (1, 50):
        one.decide(Decision(DecisionId(epoch, 1), ()), query="q", barrier=None)
    one.prune(50)
    assert one.decisions(1, "q")
    broken = NoDeletes("list")
    assert ledger(broken).register(FACTS) == 1
    assert ledger(broken).begin(7, "q")
    told = {record.getMessage().partition(",")[0] for record in caplog.records}
    assert told == {"old files in memory: could not be removed"}


@pytest.mark.parametrize(("length", "kept"), [(0, True), (1 << 16, True), ((1 << 16) + 1, False)])
def test_a_manifest_knows_every_note_again_and_holds_those_that_are_not_too_long(length: int, kept: bool) -> None:
    one, text = ledger(), "ä" * length
    one.decide(DECISION, query="q", barrier="b", offsets="o", notes={"sources/0/7": text})
    [manifest] = one.manifests(12)
    assert manifest.notes == {"sources/0/7": [hashlib.sha256(text.encode()).hexdigest(), text if kept else None]}
    assert (manifest.offsets, manifest.history, manifest.stateful) == ("o", None, False)


@pytest.mark.parametrize("parallelism", [None, 4])
def test_a_manifest_holds_by_how_many_tasks_its_epoch_was_planned(parallelism: int | None) -> None:
    storage = MemoryStorage()
    one = Ledger(storage)
    decision = Decision(DecisionId(3, 1), (), 7, parallelism)
    one.decide(decision, query="q", barrier=None)
    assert one.decisions(3, "q") == (decision,)
    written = storage.read("epochs/0000000003.g00000001.json") or b""
    assert (b'"parallelism"' in written) == (parallelism is not None)


@pytest.mark.parametrize("ids", [None, {}, {"0": [["2b1f"], ["90ad"]]}])
def test_a_manifest_holds_the_ids_of_the_state_and_one_of_before_is_read(ids: StateIds | None) -> None:
    storage = MemoryStorage()
    one = Ledger(storage)
    decision = Decision(DecisionId(3, 1), (), 7, state_ids=ids)
    one.decide(decision, query="q", barrier=None)
    assert one.decisions(3, "q") == (decision,)
    written = storage.read("epochs/0000000003.g00000001.json") or b""
    assert (b'"state_ids"' in written) == (ids is not None), "in format 1 it is what older versions write and read"


def test_a_manifest_without_notes_is_written_as_ever() -> None:
    storage = MemoryStorage()
    one = ledger(storage)
    one.decide(DECISION, query="q", barrier="b", offsets="o", notes={})
    assert one.manifests(12)[0].notes == {}
    assert b"notes" not in (storage.read("epochs/0000000012.g00000007.json") or b"")


def test_of_many_that_register_at_once_each_gets_its_own(tmp_path: Path) -> None:
    start, got = threading.Barrier(8), []

    def register() -> None:
        mine = ledger(LocalStorage(tmp_path))
        start.wait()
        got.append(mine.register(FACTS))

    threads = [threading.Thread(target=register) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(1, 9))


# Claims and manifests


def test_claims_of_another_query_say_nothing() -> None:
    own = ledger()
    own.claim(CLAIM, "query-id")
    own.claim(Claim(8, 0, None), "another")
    assert own.claims("query-id") == (CLAIM,)
    assert own.claims("another") == (Claim(8, 0, None),)


def test_a_claim_is_made_once() -> None:
    own = ledger()
    own.claim(CLAIM, "query-id")
    with pytest.raises(AlreadyExists):
        own.claim(CLAIM, "query-id")


def test_the_newest_claim_says_which_query_the_ledger_is_of() -> None:
    own = ledger()
    assert own.last_claimant() is None
    own.claim(Claim(7, 12, None), None)
    assert own.last_claimant() is None, "the first claim of a query that has no id yet"
    own.claim(Claim(8, 12, None), "query-id")
    own.claim(Claim(10, 0, None), "another")
    assert own.last_claimant() == "another"


def test_a_ticket_is_what_was_handed_over_last_until_it_is_torn() -> None:
    own = ledger()
    assert own.ticket() is None
    own.tear()
    for epoch in (4, 5):
        own.hand_over({"generation": 7, "epoch": epoch, "hints": {"fence": 3}})
        assert own.ticket() == {"generation": 7, "epoch": epoch, "hints": {"fence": 3}}
    own.tear()
    assert own.ticket() is None


def test_a_damaged_ticket_is_none() -> None:
    storage = MemoryStorage()
    storage.create("ticket.json", seal("ticket", {"generation": 7})[:-5])
    assert ledger(storage).ticket() is None


def test_decisions_of_an_epoch() -> None:
    own = ledger()
    own.decide(DECISION, query="query-id", barrier=None)
    later = Decision(DecisionId(12, 9), (), None)
    own.decide(later, query="query-id", barrier=None)
    own.decide(Decision(DecisionId(12, 10), ()), query="another", barrier=None)
    own.decide(Decision(DecisionId(13, 9), ()), query="query-id", barrier=None)
    assert own.decisions(12, "query-id") == (DECISION, later)
    assert own.decisions(11, "query-id") == ()


def test_all_manifests_are_those_of_every_epoch_run_and_query() -> None:
    own = ledger()
    ids = [DecisionId(11, 8), DecisionId(12, 7), DecisionId(12, 9), DecisionId(90, 9)]
    for number, named in enumerate(ids):
        own.decide(Decision(named, ()), query=f"query-{number}", barrier=None)
    assert [(one.decision.id, one.query) for one in own.all_manifests()] == [
        (named, f"query-{number}") for number, named in enumerate(ids)
    ]


def test_a_manifest_that_is_pruned_between_listing_and_reading_tells_no_query() -> None:
    storage = MemoryStorage()
    own = ledger(storage)
    own.decide(DECISION, query="query-id", barrier="b", offsets="o", history="spark")
    assert own.last_query("spark") == "query-id"
    storage.read = lambda name: None  # type: ignore[method-assign]
    assert own.last_query("spark") is None


def test_nothing_is_decided_twice() -> None:
    own = ledger()
    own.decide(DECISION, query="query-id", barrier=None)
    with pytest.raises(LedgerError, match=r"0000000012\.g00000007\.json exists already"):
        own.decide(Decision(DECISION.id, ()), query="query-id", barrier=None)
    assert own.decisions(12, "query-id") == (DECISION,)


def test_old_manifests_are_pruned_now_and_then() -> None:
    storage = MemoryStorage()
    own = ledger(storage, retained=10)
    for epoch in range(101):
        own.decide(Decision(DecisionId(epoch, 1), ()), query=None, barrier=None)
        own.prune(epoch)
    assert [int(name[:10]) for name in storage.list("epochs")] == list(range(90, 101))


def test_strange_files_are_left_alone() -> None:
    storage = MemoryStorage()
    for name in ("epochs/README", "epochs/0000000012.g00000007.json.bak", "generations/x.json", "claims/1.json"):
        storage.create(name, b"whatever")
    own = ledger(storage)
    assert own.register(FACTS) == 1
    assert own.manifests(12) == ()
    assert own.claims(None) == ()


# The storage under it


def test_atomic_storage_is_proven_and_leaves_nothing(tmp_path: Path) -> None:
    for storage in (MemoryStorage(), LocalStorage(tmp_path)):
        ledger(storage).prove_atomic()
        assert storage.list("probe") == []


def test_storage_that_looks_first_and_writes_then_is_refused() -> None:
    class LookThenPut(MemoryStorage):
        window = threading.Barrier(RACERS)  # everybody has looked before anybody writes

        def create(self, name: str, data: bytes) -> None:
            if self.read(name) is not None:
                raise AlreadyExists(name)
            self.window.wait(5)
            self._files[name] = data

    storage = LookThenPut()
    with pytest.raises(StorageNotAtomic):
        ledger(storage).prove_atomic()
    assert storage.list("probe") == []


def test_storage_that_keeps_the_loser_s_bytes_is_refused() -> None:
    class Mixed(MemoryStorage):
        def create(self, name: str, data: bytes) -> None:
            try:
                super().create(name, data)
            finally:
                self._files[name] = b"somebody else's"

    with pytest.raises(StorageNotAtomic):
        ledger(Mixed()).prove_atomic()


def test_a_loser_may_fail_otherwise_and_an_error_of_all_is_told() -> None:
    class Contended(MemoryStorage):
        usable = True

        def create(self, name: str, data: bytes) -> None:
            if not self.usable:
                raise LedgerError("the store is away")
            try:
                super().create(name, data)
            except AlreadyExists:
                if self.read(name) != data and data.isdigit():
                    raise LedgerError("conflicting requests") from None
                raise

    storage = Contended()
    ledger(storage).prove_atomic()
    storage.usable = False
    with pytest.raises(LedgerError, match="away"):
        ledger(storage).prove_atomic()


@pytest.mark.parametrize("scheme", ["abfss", "gs", "viewfs", "wasb", "ftp", "memory"])
def test_storage_that_nobody_answers_for_is_refused(scheme: str) -> None:
    storage = MemoryStorage(f"{scheme}://somewhere")
    storage.scheme = scheme
    with pytest.raises(StorageNotAtomic, match=rf"penstock.ledger.trusted-schemes={scheme}\."):
        require_trust(storage, ["other"])
    require_trust(storage, Checkpoints(trusted_schemes=f"other, {scheme.upper()}://").trusted_schemes)


@pytest.mark.parametrize("scheme", ["hdfs", "s3a", "s3"])
def test_storage_that_is_known_is_tried(scheme: str) -> None:
    storage = MemoryStorage()
    storage.scheme = scheme
    require_trust(storage, ())


def test_storage_that_lets_a_name_be_created_twice_is_refused() -> None:
    class Careless(MemoryStorage):
        def create(self, name: str, data: bytes) -> None:
            self._files[name] = data

    storage = Careless()
    with pytest.raises(StorageNotAtomic) as refused:
        ledger(storage).prove_atomic()
    assert "nothing was started" in str(refused.value)
    assert storage.list("probe") == []


def test_a_ruling_is_on_a_transaction_not_on_a_writer() -> None:
    own = Ledger(MemoryStorage(), now=iter(range(9)).__next__)
    old, new = (Committable("s", 3, 1, 0, {"id": number}) for number in (1, 2))
    own.rule(12, "q", [old], Outcome.LOST)
    assert own.ruled(12, "q", [old, new]) == {("s", 3): Outcome.LOST}
    assert own.ruled(12, "q", [new]) == own.ruled(13, "q", [old]) == own.ruled(12, "other", [old]) == {}
    own.rule(12, "q", [old], Outcome.ALREADY_COMMITTED)
    assert own.ruled(12, "q", [old]) == {("s", 3): Outcome.LOST}  # the first word counts
    own.prune(1000)
    assert own.ruled(12, "q", [old]) == {}


# What a damaged file is called, and what is kept how long


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{half", "it is not a whole ledger file"),
        (seal("claim", {}), "it says 'penstock/claim' where 'penstock/manifest' belongs"),
        (seal("manifest", {"a": 1}).replace(b'"a":1', b'"a":2'), "its checksum does not match its content"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(data: bytes, why: str) -> None:
    storage = MemoryStorage()
    storage.create("epochs/0000000012.g00000007.json", data)
    with pytest.raises(LedgerCorrupt) as refused:
        ledger(storage).manifests(12)
    assert refused.value.happened == f"{storage.location}/epochs/0000000012.g00000007.json cannot be trusted: {why}."


@pytest.mark.parametrize("version", ["1", 0, -1, 1.5, None])
def test_a_version_is_a_number_from_one(version: Any) -> None:
    sealed = json.loads(seal("manifest", BODY))
    with pytest.raises(LedgerCorrupt):
        unseal("manifest", json.dumps({**sealed, "version": version}).encode(), "here")


def test_a_hundred_manifests_are_kept_unless_told_otherwise() -> None:
    storage = MemoryStorage()
    for epoch in (48, 49, 50, 51):
        ledger(storage).decide(Decision(DecisionId(epoch, 7), ()), query="q", barrier=None)
    ledger(storage).prune(150)
    assert [name[:10] for name in storage.list("epochs")] == ["0000000050", "0000000051"]


def test_between_two_prunings_nothing_is_even_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    monkeypatch.setattr(storage, "list", lambda folder: pytest.fail("it was listed"))
    ledger(storage).prune(151)


def test_old_claims_are_forgotten_with_old_generations() -> None:
    storage = MemoryStorage()
    one = ledger(storage)
    for epoch in range(30):
        generation = one.register({})
        one.claim(Claim(generation, epoch, None), "q")
    one.register({})
    assert len(storage.list("generations")) == len(storage.list("claims")) == 20
    assert one.claims("q")[-1].generation == 30


def test_claims_are_forgotten_where_no_run_registers_and_the_newest_counts() -> None:
    """In a drainer's ledger, whose numbers are longer than eight digits."""
    storage = MemoryStorage()
    one = ledger(storage)
    numbers = [7 * 10**9 + number for number in range(30)]
    for number in numbers:
        one.claim(Claim(number, 12, None), "q")
    assert [claim.generation for claim in one.claims("q")] == numbers[-20:]
    one.decide(Decision(DecisionId(12, numbers[-1]), ()), query="q", barrier=None)
    assert [decision.id for decision in one.decisions(12, "q")] == [DecisionId(12, numbers[-1])]


def test_decisions_of_other_queries_and_epochs_do_not_count() -> None:
    one = ledger()
    for epoch, generation, query in ((11, 1, "m"), (12, 2, "a"), (12, 3, "z"), (12, 4, "m"), (13, 5, "m")):
        one.decide(Decision(DecisionId(epoch, generation), ()), query=query, barrier=None)
    assert [decision.id for decision in one.decisions(12, "m")] == [DecisionId(12, 4)]
    assert {manifest.decision.id.epoch for manifest in one.manifests(12)} == {12}


# Epochs begun at most once


def test_an_epoch_is_begun_at_most_once() -> None:
    storage = MemoryStorage()
    assert ledger(storage).begin(12, "q") is True
    assert ledger(storage).begin(12, "q") is False, "also by another process"
    assert ledger(storage).begin(12, "another query") is True
    assert storage.list("begun")[1] == "0000000012.q.json"
    body = unseal("begun", storage.read("begun/0000000012.q.json") or b"", "here")
    assert body == {"epoch": 12, "query": "q"}


def test_marks_of_the_last_two_epochs_are_kept() -> None:
    storage = MemoryStorage()
    one = ledger(storage)
    for epoch in (9, 10, 11):
        assert one.begin(epoch, "q.with.dots")
    assert storage.list("begun") == ["0000000010.q.with.dots.json", "0000000011.q.with.dots.json"]
    assert one.begin(10, "q.with.dots") is False
    assert one.begin(9, "q.with.dots") is True, "an older one is forgotten, and begins anew"
    assert len(storage.list("begun")) == 3, "the newer ones stay"


# What the newest run on a history knew, and a person's word


def test_later_decisions_of_this_query_alone_are_evidence() -> None:
    one = ledger()
    for epoch, generation, query in ((11, 1, "m"), (12, 2, "a"), (12, 3, "m"), (13, 4, "z"), (14, 5, "m")):
        one.decide(Decision(DecisionId(epoch, generation), ()), query=query, barrier=None)
    assert [decision.id.epoch for decision in one.decisions_since(12, "m")] == [12, 14]


def test_earlier_decisions_of_this_query_come_newest_first_and_once_for_each_epoch() -> None:
    storage = MemoryStorage()
    one = Ledger(storage)
    made = (
        (9, 9, "m"),
        (10, 3, "m"),
        (10, 20, "m"),
        (11, 4, "m"),
        (11, 5, "a"),
        (12, 2, "m"),
        (12, 7, "z"),
        (13, 6, "m"),
    )
    for epoch, generation, query in made:
        one.decide(Decision(DecisionId(epoch, generation), ()), query=query, barrier=None)
    storage.create("epochs/0000000008.tmp", b"not a manifest")
    found = [decision.id for decision in one.decisions_before(13, "m")]
    assert found == [DecisionId(12, 2), DecisionId(11, 4), DecisionId(10, 20), DecisionId(9, 9)]
    assert [decision.id.epoch for decision in one.decisions_before(10, "m")] == [9]
    assert list(one.decisions_before(9, "m")) == []
    rest = one.decisions_before(13, "m")
    next(rest)
    storage.delete("epochs/0000000010.g00000020.json")
    assert [decision.id for decision in rest][1] == DecisionId(10, 3), "what a prune has removed is passed over"


def test_the_last_query_is_that_of_the_newest_run_on_this_very_history() -> None:
    one = ledger()
    runs = [
        (20, 1, "first", "spark-m"),
        (9, 2, "older epoch", "spark-m"),
        (10, 2, "newest", "spark-m"),
        (30, 3, "later", "spark-z"),
        (5, 4, "earlier", "spark-a"),
    ]
    for epoch, generation, query, history in runs:
        one.decide(
            Decision(DecisionId(epoch, generation), ()), query=query, barrier=None, offsets="v1", history=history
        )
    assert one.last_query("spark-m") == "newest"
    assert one.last_query("spark-z") == "later"
    assert one.last_query("spark-b") is None


def test_all_that_a_start_relies_on_is_made_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, settled = MemoryStorage(), list[Any]()
    monkeypatch.setattr(storage, "settle", settled.append)
    ledger(storage).settle()
    assert settled == ["generations", "claims", "epochs"]


@pytest.mark.parametrize("query", ["a", "z"])
def test_a_ruling_for_another_query_does_not_count(query: str) -> None:
    one = ledger()
    one.rule(12, query, DECISION.committables, Outcome.COMMITTED)
    assert one.ruled(12, "m", DECISION.committables) == {}
    assert one.ruled(13, query, DECISION.committables) == {}
    assert set(one.ruled(12, query, DECISION.committables).values()) == {Outcome.COMMITTED}


def test_a_ruling_says_what_it_is_about_and_is_kept_as_long_as_its_epoch() -> None:
    storage = MemoryStorage()
    for epoch in (49, 50, 51, 260):
        ledger(storage).rule(epoch, "m", DECISION.committables, Outcome.LOST)
    [first, *_] = storage.list("rulings")
    body = unseal("ruling", storage.read(f"rulings/{first}") or b"", "here")
    assert (body["epoch"], body["query"], body["outcome"]) == (49, "m", "lost")
    ledger(storage).prune(150)
    assert [name[:10] for name in storage.list("rulings")] == ["0000000050", "0000000051", "0000000260"]


def test_without_positions_nothing_is_said_of_state() -> None:
    one = ledger()
    one.decide(Decision(DecisionId(12, 1), ()), query="m", barrier=None, offsets="v1", history="spark")
    [manifest] = one.manifests(12)
    assert manifest.stateful is False


# Storages that one must not decide on


class Odd(MemoryStorage):
    """What the n-th create of a name does is up to `allows`; what is read, to `reads`."""

    def __init__(self, allows: Callable[[int], bool], reads: Callable[[bytes | None], bytes | None] = lambda x: x):
        super().__init__()
        self._allows, self._reads, self._tried = allows, reads, Counter[str]()
        self._one_at_a_time = threading.Lock()

    def create(self, name: str, data: bytes) -> None:
        with self._one_at_a_time:
            self._tried[name] += 1
            if not self._allows(self._tried[name]):
                raise AlreadyExists(name)
            self._files.setdefault(name, data)

    def read(self, name: str) -> bytes | None:
        return self._reads(super().read(name))


@pytest.mark.parametrize(
    "storage",
    [
        pytest.param(Odd(lambda number: False), id="nobody wins"),
        pytest.param(Odd(lambda number: number <= 2), id="two win"),
        pytest.param(Odd(lambda number: number == 1, lambda _: b""), id="the winner's bytes are not there"),
        pytest.param(Odd(lambda number: number in (1, RACERS + 1)), id="a later one wins too"),
    ],
)
def test_a_storage_that_keeps_another_promise_is_refused(storage: Odd) -> None:
    with pytest.raises(StorageNotAtomic):
        Ledger(storage).prove_atomic()
    Ledger(Odd(lambda number: number == 1)).prove_atomic()
