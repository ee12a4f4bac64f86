"""The driver's side of Redis: applies prepared rows, proves their outcome, removes leftovers.

One script applies a part of a writer's rows and takes that part off its list, in one step. So however often it is sent,
by any process, and wherever an answer is lost, no row is applied twice. The keys' state decides:

| in `done` | in `open` | list | in `begun` | means |
|---|---|---|---|---|
| yes | – | – | – | already committed |
| no | yes | whole | no | prepared: apply it |
| no | yes | the rest | yes | a commit was interrupted: continue |
| no | no | – | no | lost: aborted before any row was applied |
| no | yes | gone | no | lost: another program removed the rows, and none was applied |
| no | any | gone or changed | yes | unknown: some rows are applied, the others are gone; an operator must look |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import Committer, Leftover, SinkScope
from penstock.deadline import Deadline
from penstock.errors import OutcomeUnknown, PreCommitFailed, SystemUnavailable
from penstock.failpoints import failpoint
from penstock.sinks.files.commit import numbers_in
from penstock.sinks.redis import client
from penstock.sinks.redis.sink import RedisSink

log = logging.getLogger(__name__)

#: Epochs whose proof is kept. One would do in order; the others are for epochs that commit concurrently.
KEPT_EPOCHS = 16

_AT_ONCE = 500
_PAUSES = (0.02, 0.1, 0.5, 1.0)

_OUTCOMES = {b"done": Outcome.COMMITTED, b"already": Outcome.ALREADY_COMMITTED, b"lost": Outcome.LOST}


class RedisCommitter(Committer):
    def __init__(self, sink: RedisSink, scope: SinkScope) -> None:
        self._sink, self._scope = sink, scope
        self._keys = client.Layout.of(scope, sink.prefix)
        self._client = sink.connect()
        self._newest: Committable | None = None  # that this committer has committed

    def seal(self, committables: Sequence[Committable], deadline: Deadline) -> Sequence[Committable]:
        named = [committable for committable in committables if committable.payload]
        self._look_back()
        with client.translate_errors(self._sink.url):
            for start in range(0, len(named), _AT_ONCE):
                part = named[start : start + _AT_ONCE]
                with self._client.pipeline(transaction=False) as pipeline:
                    for c in part:
                        # Its own base: the sink's prefix may have changed.
                        pipeline.llen(client.Layout(c.payload["base"]).rows(c.payload["name"]))
                    lengths = pipeline.execute()
                for c, length in zip(part, lengths, strict=True):
                    if length != c.payload["elements"] + 1:
                        raise PreCommitFailed(
                            f"The rows that writer {c.writer} of sink {c.sink!r} prepared in Redis are "
                            f"{'gone' if length == 0 else 'not as they were written'}: {c.payload['name']}.",
                            to_do="see that Redis evicts no keys (maxmemory-policy), did not restart without its data, "
                            "and that no other program touches the keys 'penstock:*'.",
                        )
        if named and not self._replicated(named[0], deadline, done=()):
            raise SystemUnavailable(
                f"Fewer than {self._sink.replicas} replicas of Redis at {client.public_address(self._sink.url)} have "
                "the prepared rows.",
                safe="nothing of this epoch is visible.",
                to_do="see why replicas are unavailable or behind; the epoch replays.",
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
        done = [c for c in committables if c.payload and outcomes[c.writer].visible]
        if done and not self._replicated(done[0], deadline, done=done):
            log.warning("epoch %d is applied, and fewer than %d replicas have it", epoch, self._sink.replicas)
            return {**outcomes, **{committable.writer: Outcome.UNKNOWN for committable in done}}
        self._newest = done[-1] if done else self._newest
        return outcomes

    def missing(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, str]:
        """Those neither applied nor prepared; rows still prepared, because a replica lagged, are applied now."""
        named = [committable for committable in committables if committable.payload]
        again = {c.writer: self._apply(epoch, c, deadline) for c in named if not self._has(c)}
        if Outcome.UNKNOWN in again.values():
            raise OutcomeUnknown(
                f"Epoch {epoch} was committed to Redis at {client.public_address(self._sink.url)}, which has fallen "
                "back behind that; its prepared rows could not be applied again.",
                safe="they stay prepared; nothing was aborted.",
                to_do="nothing: they are applied as soon as Redis allows it.",
            )
        lost = [committable for committable in named if again.get(committable.writer) is Outcome.LOST]
        self._newest = next((c for c in reversed(named) if c not in lost), self._newest)
        return {c.writer: f"ZADD {client.Layout(c.payload['base']).done} {epoch} {c.payload['name']}" for c in lost}

    def _has(self, committable: Committable) -> bool:
        with client.translate_errors(self._sink.url):
            done = client.Layout(committable.payload["base"]).done
            return self._client.zscore(done, committable.payload["name"]) is not None

    def _look_back(self) -> None:
        """Before each decision: a Redis that replaced the last one, or restarted, must have the last commit."""
        last = self._newest
        if last is not None and not self._has(last):
            raise PreCommitFailed(
                f"The last commit to Redis at {client.public_address(self._sink.url)} is gone: {last.payload['name']}.",
                to_do="see whether another server has replaced the one that had confirmed it, or it lost its data.",
            )

    def _replicated(self, committable: Committable, deadline: Deadline, *, done: Sequence[Committable]) -> bool:
        """Whether enough replicas have all writes, and that very server has these `done`: on one connection."""
        if not self._sink.replicas:
            return True
        layout = client.Layout(committable.payload["base"])
        while not deadline.passed():
            wait = max(1, int(min(deadline.remaining(), 5.0) * 1000))
            try:
                with self._client.pipeline(transaction=False) as pipeline:
                    # A connection that has written nothing waits for nothing.
                    pipeline.set(layout.synced, committable.payload["name"])
                    pipeline.execute_command("WAIT", self._sink.replicas, wait)
                    for c in done:
                        pipeline.zscore(layout.done, c.payload["name"])
                    _, reached, *marked = pipeline.execute()
            except (client.library().exceptions.RedisError, OSError) as error:
                if not client.is_away(error):
                    raise client.translated(error, self._sink.url) from client.harmless(error, self._sink.url)
                time.sleep(min(deadline.remaining(), _PAUSES[1]))
                continue
            if reached >= self._sink.replicas:
                return None not in marked
        return False

    def _apply(self, epoch: int, committable: Committable, deadline: Deadline) -> Outcome:
        """Apply all parts in turn. A part whose answer was lost is simply requested again."""
        name = committable.payload["name"]
        layout = client.Layout(committable.payload["base"])
        keys = [layout.rows(name), layout.open, layout.begun, layout.done]
        arguments = [name, epoch, committable.payload["elements"], committable.payload["at_once"], epoch - KEPT_EPOCHS]
        failures = 0
        while not deadline.passed():
            try:
                answer, *why = client.APPLY(self._client, keys, arguments)
            except (client.library().exceptions.RedisError, OSError) as error:
                if not client.is_away(error):
                    raise client.translated(error, self._sink.url) from client.harmless(error, self._sink.url)
                if failures == 0:
                    url = self._sink.url
                    text = client.scrub(str(error), url)
                    log.warning("Redis at %s does not answer a commit, retrying: %s", client.public_address(url), text)
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
        for committable in committables:
            if committable.payload:
                bases.setdefault(committable.payload["base"], []).append(committable.payload["name"])
        for base, names in bases.items():
            self._remove(client.Layout(base), names)

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        kept = {committable.payload["name"] for committable in keep if committable.payload}
        return self._remove(self._keys, [left.name for left in self.leftovers(deadline) if left.name not in kept])

    def leftovers(self, deadline: Deadline) -> Sequence[Leftover]:
        with client.translate_errors(self._sink.url):
            names = sorted(name.decode() for name in self._client.hkeys(self._keys.open))
        return [
            Leftover(name, *numbers, payload={"base": self._keys.base, "name": name})
            for name in names
            if (numbers := numbers_in(name)) is not None and numbers[0] <= self._scope.generation
        ]

    def _remove(self, layout: client.Layout, names: Sequence[str]) -> int:
        removed = 0
        with client.translate_errors(self._sink.url):
            for start in range(0, len(names), _AT_ONCE):
                part = list(names[start : start + _AT_ONCE])
                keys = [layout.open, layout.begun, *(layout.rows(name) for name in part)]
                removed += int(client.ABORT(self._client, keys, part))
        return removed

    def close(self) -> None:
        self._client.close()


class NothingToCommit(Committer):
    """For writers that write the keys themselves."""

    def commit(self, epoch: int, committables: Sequence[Committable], deadline: Deadline) -> Mapping[int, Outcome]:
        return {committable.writer: Outcome.COMMITTED for committable in committables}

    def abort(self, committables: Sequence[Committable], deadline: Deadline) -> None:
        """Written keys stay: the replay overwrites them."""

    def abort_dangling(self, keep: Collection[Committable], deadline: Deadline) -> int:
        return 0
