"""The driver's hand on Redis: applies prepared rows, proves what became of them, removes leftovers.

One script applies a part of a writer's rows and takes that part off its list, in one step. So however often it is sent,
whoever sends it, and wherever an answer is lost, no row is applied twice. What it finds decides:

| in `done` | in `open` | list | in `begun` | means |
|---|---|---|---|---|
| yes | – | – | – | already committed |
| no | yes | whole | no | prepared: apply it |
| no | yes | the rest | yes | a commit was cut short: go on |
| no | no | – | no | lost: aborted before any row was applied |
| no | yes | gone | no | lost: somebody removed the rows, and none was applied |
| no | any | gone or changed | yes | unknown: some rows are applied, the others are gone; a person must look |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover, SinkScope
from penstock.errors import OutcomeUnknown, PreCommitFailed, SystemUnavailable
from penstock.failpoints import failpoint
from penstock.sinks.redis import scripts
from penstock.sinks.redis.client import (
    Script,
    fault,
    harmless,
    is_away,
    library,
    public_address,
    scrub,
    translate_errors,
)
from penstock.sinks.redis.scripts import Layout, generation_of, numbers_of

if TYPE_CHECKING:
    from penstock.deadline import Deadline
    from penstock.sinks.redis.writer import RedisTarget

log = logging.getLogger(__name__)

#: Epochs whose proof is kept. One would do in order; the rest is for epochs that commit side by side.
KEPT_EPOCHS = 16

_AT_ONCE = 500
_WAIT_SECONDS = 5.0
_PAUSES = (0.02, 0.1, 0.5, 1.0)

_APPLY = Script(scripts.APPLY)
_ABORT = Script(scripts.ABORT)
_OUTCOMES = {b"done": Outcome.COMMITTED, b"already": Outcome.ALREADY_COMMITTED, b"lost": Outcome.LOST}


class RedisCommitter(Committer):
    """Applies, proves, sweeps."""

    def __init__(self, target: RedisTarget, scope: SinkScope) -> None:
        self._target = target
        self._scope = scope
        self._keys = Layout.of(scope, target.prefix)
        self._client = target.connect()
        self._newest: Committable | None = None  # of what this committer has committed

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        named = [one for one in committables if one.payload]
        self._look_back()
        with translate_errors(self._target.url):
            for start in range(0, len(named), _AT_ONCE):
                part = named[start : start + _AT_ONCE]
                with self._client.pipeline(transaction=False) as pipeline:
                    for one in part:
                        pipeline.llen(_rows(one))
                    lengths = pipeline.execute()
                for one, length in zip(part, lengths, strict=True):
                    if length != one.payload["elements"] + 1:
                        raise PreCommitFailed(
                            f"The rows that writer {one.writer} of sink {one.sink!r} prepared in Redis are "
                            f"{'gone' if length == 0 else 'not as they were written'}: {one.payload['name']}.",
                            safe="nothing of this epoch is visible; it replays from the same positions.",
                            to_do="see that Redis evicts no keys (maxmemory-policy), did not restart without its data, "
                            "and that nobody else touches the keys 'penstock:*'.",
                        )
        if named and not self._replicated(named[0], deadline, done=()):
            raise SystemUnavailable(
                f"Fewer than {self._target.replicas} replicas of Redis at {public_address(self._target.url)} have what "
                "was prepared.",
                safe="nothing of this epoch is visible.",
                to_do="see why replicas are away or behind; the epoch replays.",
            )
        return committables

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        for committable in committables:
            # An empty payload: the writer had no rows.
            outcome = self._apply(epoch, committable, deadline) if committable.payload else Outcome.COMMITTED
            outcomes[committable.writer] = outcome
            if len(outcomes) == 1:
                failpoint("commit.first")
        done = [one for one in committables if one.payload and outcomes[one.writer].visible]
        if done and not self._replicated(done[0], deadline, done=done):
            log.warning("epoch %d is applied, and fewer than %d replicas have it", epoch, self._target.replicas)
            return {**outcomes, **{one.writer: Outcome.UNKNOWN for one in done}}
        self._newest = done[-1] if done else self._newest
        return outcomes

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        """Those that are neither applied nor prepared any more. What is prepared, because a replica had not yet seen it
        applied, is applied now."""
        named = [one for one in committables if one.payload]
        again = {one.writer: self._apply(epoch, one, deadline) for one in named if not self._has(one)}
        if Outcome.UNKNOWN in again.values():
            raise OutcomeUnknown(
                f"Epoch {epoch} was committed to Redis at {public_address(self._target.url)}, which has fallen "
                "back behind that; what is prepared there could not be applied again.",
                safe="it stays prepared; nothing was aborted.",
                to_do="nothing: it is applied as soon as Redis lets it.",
            )
        lost = [one for one in named if again.get(one.writer) is Outcome.LOST]
        self._newest = next((one for one in reversed(named) if one not in lost), self._newest)
        return {one.writer: f"ZADD {Layout(one.payload['base']).done} {epoch} {one.payload['name']}" for one in lost}

    def _has(self, committable: Committable) -> bool:
        with translate_errors(self._target.url):
            done = Layout(committable.payload["base"]).done
            return self._client.zscore(done, committable.payload["name"]) is not None

    def _look_back(self) -> None:
        """Before each decision: a Redis that was replaced by a replica, or came back empty, between two epochs must
        have what was committed last. The sweep that follows finds out what is lost."""
        last = self._newest
        if last is not None and not self._has(last):
            raise PreCommitFailed(
                f"What was committed last to Redis at {public_address(self._target.url)} is not there any more: "
                f"{last.payload['name']}.",
                safe="nothing of this epoch is visible.",
                to_do="see whether another server has taken the place of the one that had confirmed it, or it lost its "
                "data.",
            )

    def _replicated(self, one: Committable, deadline: Deadline, *, done: Sequence[Committable]) -> bool:
        """Whether as many replicas as the sink wants have all that was written before now, and the server that says so
        has these `done`: asked on one connection, or a failover in between would count for another server."""
        if not self._target.replicas:
            return True
        own = Layout(one.payload["base"])
        while not deadline.passed():
            wait = max(1, int(min(deadline.remaining(), _WAIT_SECONDS) * 1000))
            try:
                with self._client.pipeline(transaction=False) as pipeline:
                    # A connection that has written nothing waits for nothing.
                    pipeline.set(own.synced, one.payload["name"])
                    pipeline.execute_command("WAIT", self._target.replicas, wait)
                    for each in done:
                        pipeline.zscore(own.done, each.payload["name"])
                    _, reached, *marked = pipeline.execute()
            except (library().exceptions.RedisError, OSError) as error:
                if not is_away(error):
                    raise fault(error, self._target.url) from harmless(error, self._target.url)
                time.sleep(min(deadline.remaining(), _PAUSES[1]))
                continue
            if reached >= self._target.replicas:
                return None not in marked
        return False

    def _apply(self, epoch: int, committable: Committable, deadline: Deadline) -> Outcome:
        """Part after part until all is applied. A part whose answer was lost is simply asked for again."""
        name = committable.payload["name"]
        own = Layout(committable.payload["base"])
        keys = [own.rows(name), own.open, own.begun, own.done]
        arguments = [name, epoch, committable.payload["elements"], committable.payload["at_once"], epoch - KEPT_EPOCHS]
        failures = 0
        while not deadline.passed():
            try:
                answer, *why = _APPLY(self._client, keys, arguments)
            except (library().exceptions.RedisError, OSError) as error:
                if not is_away(error):
                    raise fault(error, self._target.url) from harmless(error, self._target.url)
                if failures == 0:
                    url = self._target.url
                    text = scrub(str(error), url)
                    log.warning("Redis at %s does not answer a commit, trying again: %s", public_address(url), text)
                time.sleep(min(deadline.remaining(), _PAUSES[min(failures, len(_PAUSES) - 1)]))
                failures += 1
                continue
            if answer in _OUTCOMES:
                return _OUTCOMES[answer]
            if answer == b"refused":
                log.error("writer %s cannot be applied, it stays prepared: %s", name, why[0].decode(errors="replace"))
                return Outcome.UNKNOWN
        return Outcome.UNKNOWN

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        bases: dict[str, list[str]] = {}
        for one in committables:
            if one.payload:
                bases.setdefault(one.payload["base"], []).append(one.payload["name"])
        for base, names in bases.items():
            self._remove(Layout(base), names)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {one.payload["name"] for one in keep if one.payload}
        with translate_errors(self._target.url):
            found = [name.decode() for name in self._client.hkeys(self._keys.open)]
        generations = {name: generation_of(name) for name in found if name not in kept}
        own = self._scope.generation
        older = [name for name, number in generations.items() if number is not None and number <= own]
        return self._remove(self._keys, older)

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        with translate_errors(self._target.url):
            names = [name.decode() for name in self._client.hkeys(self._keys.open)]
        found = {name: numbers for name in sorted(names) if (numbers := numbers_of(name)) is not None}
        return [
            Leftover(
                name,
                numbers["generation"],
                numbers["epoch"],
                numbers["partition"],
                payload={"base": self._keys.base, "name": name},
            )
            for name, numbers in found.items()
            if numbers["generation"] <= self._scope.generation
        ]

    def _remove(self, layout: Layout, names: Sequence[str]) -> int:
        removed = 0
        with translate_errors(self._target.url):
            for start in range(0, len(names), _AT_ONCE):
                part = list(names[start : start + _AT_ONCE])
                keys = [layout.open, layout.begun, *(layout.rows(name) for name in part)]
                removed += int(_ABORT(self._client, keys, part))
        return removed

    def close(self) -> None:
        self._client.close()


def _rows(committable: Committable) -> str:
    # Named by the committable, not by the sink: its prefix may be another by now.
    return Layout(committable.payload["base"]).rows(committable.payload["name"])


class NothingToCommit(Committer):
    """For writers that wrote the keys themselves: all is done when they are."""

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        return {one.writer: Outcome.COMMITTED for one in committables}

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        """What was written stays: the replay overwrites it."""

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        return 0
