"""The ledger: generations, claims and manifests, each a small sealed file that is created once and never changed.

    identity.json                      a random name, where the user gave none (the drop-in)
    generations/00000007.json          this run registered (before it looked at anything)
    claims/00000007.json               what it found, and the decision it honours
    epochs/0000000012.g00000007.json   manifest: the decision to commit epoch 12, by generation 7
    ticket.json                        what `format("penstock")` goes on from in the next epoch
    begun/0000000012.<query id>.json   at most once: epoch 12 was begun and is never begun again
    rulings/0000000012.<random>.json   an operator's ruling on writers of epoch 12 whose outcome cannot be proven

How a file is sealed, and what its folder is called, says `layout`.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.checkpoint import layout
from penstock.checkpoint.decision import Claim, Committable, Decision, DecisionId, Outcome, WriterId
from penstock.checkpoint.layout import read_sealed, seal
from penstock.errors import LedgerCorrupt, LedgerError, StorageNotAtomic
from penstock.storage.storage import PROBES, AlreadyExists, Storage, race, tidying

_MANIFEST = re.compile(r"^(\d{10})\.g(\d{8,})\.json$")
_NUMBERED = re.compile(r"^(\d{8,})\.json$")
_NOTED = 1 << 16  # characters of a source's note that a manifest holds: some five hundred files
_KEEP = 20  # generations and claims: enough to see who ran before whom; the newest of each is what counts


class Ledger:
    """One query's ledger. Every method may be called by several runs at once, from any process."""

    def __init__(self, storage: Storage, *, retained: int = 100, now: Callable[[], float] = time.time) -> None:
        self._storage, self._retained, self._now = storage, retained, now

    @property
    def location(self) -> str:
        return self._storage.location

    def prove_atomic(self) -> None:
        """See with one's own eyes that of several creates at once, and of one that comes later, one succeeds; no
        decision would be safe without. A storage that looks first and writes then is caught where its window is wide,
        so this is no proof by itself: see `penstock.checkpoint.open` for which storage is tried at all."""
        token = secrets.token_hex(8)
        for number in range(PROBES):
            name = f"{layout.PROBE}/{token}-{number}.json"
            try:
                won = race(self._storage, name)
                if len(won) == 1 and self._storage.read(name) == won[0] and not self._created(name):
                    continue
            finally:
                self._storage.delete(name)
            raise StorageNotAtomic(
                f"{self.location} let the same file be created twice.",
                safe="nothing was started.",
                to_do="keep checkpoints on storage with atomic create: a local disk, HDFS, S3 with conditional writes.",
            )

    def _created(self, name: str) -> bool:
        try:
            self._storage.create(name, seal("probe", {}))
        except AlreadyExists:
            return False
        return True

    def settle(self) -> None:
        """What is found in the ledger survives a power cut, also what a process created that died before its sync."""
        for folder in (layout.GENERATIONS, layout.CLAIMS, layout.EPOCHS):
            self._storage.settle(folder)

    def identity(self) -> str:
        """A random name given to this ledger at its first use; it moves with the checkpoint."""
        with contextlib.suppress(AlreadyExists):
            self._storage.create(layout.IDENTITY, seal("identity", {"id": secrets.token_hex(6)}))
        body = self._body("identity", layout.IDENTITY)
        assert body is not None
        return str(body["id"])

    # Generations

    def register(self, facts: Mapping[str, Any]) -> int:
        """Become the newest generation. `facts` (host, process, uids) must hold no secret. After an error it may be
        registered or not: `is_of` tells, by the `run` in its facts."""
        generation = self.newest_generation() + 1
        while True:
            try:
                body = seal("generation", {**facts, "registered": self._now()})
                self._storage.create(f"{layout.GENERATIONS}/{generation:08d}.json", body)
            except AlreadyExists:
                generation += 1
            else:
                with tidying(self.location):
                    self._forget(layout.GENERATIONS)
                return generation

    def newest_generation(self) -> int:
        """The newest registered generation, 0 before the first."""
        return max(self._numbered(layout.GENERATIONS), default=0)

    def generation(self, number: int) -> dict[str, Any] | None:
        """The facts that generation `number` registered."""
        return self._body("generation", f"{layout.GENERATIONS}/{number:08d}.json")

    def is_of(self, number: int, run: str) -> bool:
        """Whether this run of the query registered generation `number`, also where the storage's answer was lost."""
        facts = self.generation(number)
        return facts is not None and facts.get("run") == run

    # Claims

    def claim(self, claim: Claim, query: str | None) -> None:
        honours = claim.honours and [claim.honours.epoch, claim.honours.generation]
        body = {"generation": claim.generation, "epoch": claim.epoch, "honours": honours, "query": query}
        self._storage.create(f"{layout.CLAIMS}/{claim.generation:08d}.json", seal("claim", body))
        with tidying(self.location):
            self._forget(layout.CLAIMS)

    def claims(self, query: str | None) -> tuple[Claim, ...]:
        """The claims made for this Spark query, or before it had an id; another query's (the checkpoint was replaced)
        say nothing of it."""
        claims = []
        for number in self._numbered(layout.CLAIMS):
            body = self._body("claim", f"{layout.CLAIMS}/{number:08d}.json")
            if body is not None and body["query"] in (query, None):
                honours = DecisionId(*body["honours"]) if body["honours"] else None
                claims.append(Claim(body["generation"], body["epoch"], honours))
        return tuple(claims)

    def last_claimant(self) -> str | None:
        """The Spark query that the newest claim was made for, if it had an id."""
        newest = max(self._numbered(layout.CLAIMS), default=0)
        body = self._body("claim", f"{layout.CLAIMS}/{newest:08d}.json")
        return None if body is None else body["query"]

    # Tickets

    def hand_over(self, ticket: Mapping[str, Any]) -> None:
        """Leave what the process that begins the next epoch goes on from."""
        self._storage.delete(layout.TICKET)
        self._storage.create(layout.TICKET, seal("ticket", ticket))

    def ticket(self) -> dict[str, Any] | None:
        """What `hand_over` left. `tear` it before it is used: it is good for one epoch."""
        with contextlib.suppress(LedgerCorrupt):  # one without a ticket recovers
            return self._body("ticket", layout.TICKET)
        return None

    def tear(self) -> None:
        self._storage.delete(layout.TICKET)

    # Epochs begun at most once

    def begin(self, epoch: int, query: str | None) -> bool:
        """Mark the epoch as begun, durably; False if it was before."""
        try:
            body = seal("begun", {"epoch": epoch, "query": query})
            self._storage.create(f"{layout.BEGUN}/{epoch:010d}.{query}.json", body)
        except AlreadyExists:
            return False
        with tidying(self.location):
            for name in self._storage.list(layout.BEGUN):
                if int(name.partition(".")[0]) < epoch - 1:
                    self._storage.delete(f"{layout.BEGUN}/{name}")
        return True

    def has_begun(self, epoch: int, query: str | None) -> bool:
        return f"{epoch:010d}.{query}.json" in self._storage.list(layout.BEGUN)

    # Manifests

    def decide(
        self,
        decision: Decision,
        *,
        query: str | None,
        barrier: str | None,
        offsets: str | None = None,
        history: str | None = None,
        stateful: bool = False,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """The commit point: when this returns, the decision is durable. When it raises, it may or may not be."""
        # An epoch of Spark's has these, a drained one has not.
        more: dict[str, Any] = {}
        if offsets is not None:
            more = {"offsets": offsets, "history": history, "stateful": stateful}
        if decision.parallelism is not None:
            more["parallelism"] = decision.parallelism
        if decision.state_ids is not None:
            more["state_ids"] = decision.state_ids
        if notes:
            kept = {name: text if len(text) <= _NOTED else None for name, text in notes.items()}
            more["notes"] = {name: [_digest(text), kept[name]] for name, text in notes.items()}
        body = {
            **more,
            "epoch": decision.id.epoch,
            "generation": decision.id.generation,
            "query": query,
            "barrier": barrier,
            "watermark": decision.watermark,
            "decided": self._now(),
            "committables": [
                [item.sink, item.writer, item.rows, item.checksum, item.format, dict(item.payload)]
                for item in decision.committables
            ],
        }
        name = f"{layout.EPOCHS}/{decision.id.epoch:010d}.g{decision.id.generation:08d}.json"
        try:
            self._storage.create(name, seal("manifest", body))
        except AlreadyExists:
            raise LedgerError(
                f"{self.location}/{name} exists already, though generation {decision.id.generation} is this run's own.",
                safe="the decision that exists is honoured by the next start; this one was not written.",
                to_do="let the job restart.",
            ) from None

    def decisions(self, epoch: int, query: str | None) -> tuple[Decision, ...]:
        """All decisions for `epoch` that were made for this Spark query."""
        return tuple(manifest.decision for manifest in self.manifests(epoch) if manifest.query == query)

    def decisions_since(self, epoch: int, query: str | None) -> tuple[Decision, ...]:
        """All decisions for `epoch` and later ones that were made for this Spark query."""
        manifests = self._manifests(lambda number, _: number >= epoch)
        return tuple(manifest.decision for manifest in manifests if manifest.query == query)

    def decisions_before(self, epoch: int, query: str | None) -> Iterator[Decision]:
        """Of each epoch before this one, newest first, the decision for this Spark query that counts; each is read when
        it is asked for."""
        names = [match for match in map(_MANIFEST.match, self._storage.list(layout.EPOCHS)) if match]
        last = epoch
        for match in sorted(names, key=lambda match: (int(match[1]), int(match[2])), reverse=True):
            if int(match[1]) < last and (body := self._body("manifest", f"{layout.EPOCHS}/{match[0]}")) is not None:
                manifest = Manifest.of(body)
                if manifest.query == query:
                    last = int(match[1])
                    yield manifest.decision

    def manifests(self, epoch: int) -> tuple[Manifest, ...]:
        """Every manifest of `epoch`, read and verified."""
        return tuple(self._manifests(lambda found, _: found == epoch))

    def all_manifests(self) -> Iterator[Manifest]:
        """Every manifest that the ledger still has."""
        return self._manifests(lambda *_: True)

    def last_query(self, history: str) -> str | None:
        """The Spark query that the newest run with decisions of its own had on this history, if there was one."""
        by = sorted({int(match[2]) for match in map(_MANIFEST.match, self._storage.list(layout.EPOCHS)) if match})
        for generation in reversed(by):
            of_run = self._manifests(lambda _, number: number == generation)  # noqa: B023
            newest = max(of_run, key=lambda manifest: manifest.decision.id, default=None)
            if newest is not None and newest.history == history:
                return newest.query
        return None

    def _manifests(self, wanted: Callable[[int, int], bool]) -> Iterator[Manifest]:
        for name in self._storage.list(layout.EPOCHS):
            match = _MANIFEST.match(name)
            chosen = match and wanted(int(match[1]), int(match[2]))
            if chosen and (body := self._body("manifest", f"{layout.EPOCHS}/{name}")) is not None:
                yield Manifest.of(body)

    # Rulings

    def rule(self, epoch: int, query: str | None, committables: Sequence[Committable], outcome: Outcome) -> None:
        """Keep a person's word on how these ended."""
        writers = [[committable.sink, committable.writer, dict(committable.payload)] for committable in committables]
        body = {"epoch": epoch, "query": query, "outcome": outcome.value, "writers": writers, "ruled": self._now()}
        self._storage.create(f"{layout.RULINGS}/{epoch:010d}.{secrets.token_hex(6)}.json", seal("ruling", body))

    def ruled(self, epoch: int, query: str | None, committables: Sequence[Committable]) -> dict[WriterId, Outcome]:
        """What was ruled of these very committables; the first word counts."""
        names = [name for name in self._storage.list(layout.RULINGS) if name.startswith(f"{epoch:010d}.")]
        bodies = [body for name in names if (body := self._body("ruling", f"{layout.RULINGS}/{name}")) is not None]
        outcomes: dict[WriterId, Outcome] = {}
        for body in sorted(bodies, key=lambda ruling: float(ruling["ruled"])):
            for committable in committables if body["query"] == query else ():
                if [committable.sink, committable.writer, dict(committable.payload)] in body["writers"]:
                    outcomes.setdefault(committable.id, Outcome(body["outcome"]))
        return outcomes

    def prune(self, epoch: int) -> None:
        """Forget manifests that are too old to be needed, now that `epoch` is complete."""
        if epoch % 50:
            return  # one listing now and then instead of one per epoch
        with tidying(self.location):
            for name in self._storage.list(layout.EPOCHS):
                match = _MANIFEST.match(name)
                if match and int(match[1]) < epoch - self._retained:
                    self._storage.delete(f"{layout.EPOCHS}/{name}")
            for name in self._storage.list(layout.RULINGS):
                if int(name.partition(".")[0]) < epoch - self._retained:
                    self._storage.delete(f"{layout.RULINGS}/{name}")

    def _numbered(self, folder: str) -> list[int]:
        return [int(match[1]) for name in self._storage.list(folder) if (match := _NUMBERED.match(name))]

    def _forget(self, folder: str) -> None:
        # By count, not by age: however many runs failed before they could claim, the newest claim must stay.
        for number in sorted(self._numbered(folder))[:-_KEEP]:
            self._storage.delete(f"{folder}/{number:08d}.json")

    def _body(self, kind: str, name: str) -> dict[str, Any] | None:
        return read_sealed(self._storage, kind, name)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decision in the ledger. `barrier` is a digest of the input positions it was made for, `offsets`
    the positions themselves, as Spark wrote them; `history` the folder they were in. `stateful`: the query has state.
    `notes` are those of sources that read files: by name a digest and, where it is not too long, the text. A drained
    epoch has none of these."""

    decision: Decision
    query: str | None
    barrier: str | None
    decided: float
    offsets: str | None = None
    history: str | None = None
    stateful: bool = False
    notes: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """`offsets/N` as it was decided on; None where the manifest does not hold it."""
        intact = self.offsets is not None and _digest(self.offsets) == self.barrier
        return self.offsets if intact else None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Manifest:
        committables = tuple(
            Committable(sink, writer, rows, checksum, payload, version)
            for sink, writer, rows, checksum, version, payload in body["committables"]
        )
        named = DecisionId(body["epoch"], body["generation"])
        decision = Decision(named, committables, body["watermark"], body.get("parallelism"), body.get("state_ids"))
        more = (body.get("offsets"), body.get("history"), bool(body.get("stateful")), body.get("notes") or {})
        return cls(decision, body["query"], body["barrier"], body["decided"], *more)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
