"""The rules of the lease, step by step, and in every order in which two supervisors, a storage and the time can move.

The exploration runs the rules themselves, over a storage that is one word. With each tick every node may stand still,
look, write, have its write fail, hang, or hang after it was done. Pure: no storage, no thread, no clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoint.lease_log import Standing, Word
from penstock.ops.process.lease_rules import STOP_AFTER, Holding, Verdict, Watching

D = 6.0
FIRST = Word(1, 1, "a", "host-a", D, began="a")


# Waiting


def test_nobody_has_it() -> None:
    watching = Watching("b")
    watching.saw(None, 0)
    assert watching.verdict(0) is Verdict.TAKE
    assert watching.next_word("host-b", D) == Word(1, 1, "b", "host-b", D, began="b")


def test_it_counts_from_the_look_that_first_saw_a_word() -> None:
    watching = Watching("b")
    watching.saw(FIRST, 100)
    assert watching.verdict(100) is Verdict.WAIT
    watching.saw(FIRST, 105.9)
    assert watching.verdict(105.9) is Verdict.WAIT
    watching.saw(FIRST.follow(Standing.HELD), 105.95)
    assert watching.verdict(106) is Verdict.WAIT
    watching.saw(FIRST.follow(Standing.HELD), 111.95)
    assert watching.verdict(111.95) is Verdict.TAKE
    assert watching.next_word("host-b", D) == Word(3, 2, "b", "host-b", D, began="a")


def test_what_the_supervisor_has_seen_run_out_is_not_waited_for_again() -> None:
    """It waited without a driver; the one that it then starts sees the word for the first time."""
    watching = Watching("b", known=1)
    watching.expired = 1
    watching.saw(FIRST, 0)
    assert watching.verdict(0) is Verdict.TAKE
    watching.saw(FIRST.follow(Standing.HELD), 0)  # it was renewed after all
    assert watching.verdict(0) is Verdict.WAIT


def test_the_length_is_the_holders_own() -> None:
    watching = Watching("b")
    watching.saw(Word(1, 1, "a", "host-a", 60.0), 0)
    assert watching.verdict(59) is Verdict.WAIT


def test_the_next_driver_of_the_same_supervisor_goes_on() -> None:
    watching = Watching("a", known=1)
    watching.saw(FIRST, 0)
    assert watching.verdict(0) is Verdict.TAKE
    assert watching.next_word("host-a", D).turn == 1


def test_what_is_given_back_is_free() -> None:
    watching = Watching("b", known=1)
    watching.saw(FIRST.follow(Standing.RELEASED), 0)
    assert watching.verdict(0) is Verdict.TAKE
    assert watching.next_word("host-b", D).turn == 2


def test_a_job_that_was_ended_is_not_started_by_one_who_waited() -> None:
    ended = FIRST.follow(Standing.ENDED, "stopped")
    waited = Watching("b")
    waited.saw(FIRST, 0)
    assert waited.verdict(0) is Verdict.WAIT
    waited.saw(ended, 1)
    assert waited.verdict(1) is Verdict.LEAVE
    assert waited.verdict(1000) is Verdict.LEAVE
    told = Watching("b", known=1)  # the next driver of one that waited
    told.saw(ended, 0)
    assert told.verdict(0) is Verdict.LEAVE


def test_a_job_that_was_ended_is_started_by_one_who_comes_later() -> None:
    ended = FIRST.follow(Standing.ENDED, "stopped")
    for known in (None, 2):
        watching = Watching("b", known)
        watching.saw(ended, 0)
        assert watching.verdict(0) is Verdict.TAKE
        assert watching.next_word("host-b", D).began == "b"


@pytest.mark.parametrize("shown", [None, FIRST])
def test_a_storage_that_has_lost_words_shows_nothing(shown: Word | None) -> None:
    """A folder that is not mounted any more is empty; whoever took the lease there would take another one."""
    watching = Watching("b")
    watching.saw(FIRST.follow(Standing.HELD), 0)
    watching.saw(shown, 100)
    assert watching.verdict(100) is Verdict.WAIT
    watching.saw(FIRST.follow(Standing.HELD), 101)
    assert watching.verdict(101) is Verdict.TAKE


def test_words_that_are_said_in_a_folder_that_was_emptied_count_from_then_on() -> None:
    """Who waits has seen word 500, and somebody has removed the folder of the lease."""
    late, first = replace(FIRST, number=500, turn=40), replace(FIRST, holder="b", host="host-b")
    watching = Watching("c", known=40)
    watching.saw(late, 0)
    watching.saw(first, 1)
    assert watching.blind
    assert watching.verdict(100) is Verdict.WAIT, "nobody says anything: it may be an old copy"
    watching.saw(None, 2)
    watching.saw(first, 3)
    assert watching.blind, "nothing was said between these two looks"
    watching.saw(first.follow(Standing.HELD), 4)
    assert not watching.blind
    assert watching.verdict(4 + FIRST.seconds - 0.1) is Verdict.WAIT
    assert watching.verdict(4 + FIRST.seconds) is Verdict.TAKE
    watching.saw(first.follow(Standing.HELD).follow(Standing.ENDED), 5)
    assert watching.verdict(5) is Verdict.LEAVE, "turns are counted anew, too"


def test_when_to_look_again() -> None:
    watching = Watching("b")
    assert watching.wait_seconds(0, 10) == 1.0
    watching.saw(FIRST, 0)
    assert watching.wait_seconds(0, 10) == pytest.approx(0.6)
    assert watching.wait_seconds(5.9, 10) == pytest.approx(0.1)
    assert watching.wait_seconds(7, 10) == pytest.approx(0.6)


# Holding


def test_it_renews_after_a_third_and_counts_from_before_it_wrote() -> None:
    holding = Holding(D, 0)
    assert holding.renew_in(0) == 2
    holding.begin(2)
    holding.succeeded()
    assert holding.renew_in(3.5) == pytest.approx(0.5)
    assert holding.renewed + holding.seconds == 8, "no other supervisor may have it before"


def test_it_tries_again_and_stops_before_the_end() -> None:
    holding = Holding(D, 0)
    holding.begin(2)
    holding.failed(2.1)
    assert holding.renew_in(2.1) == pytest.approx(0.5)
    assert holding.stop_in(2.1) == pytest.approx(2.9)
    holding.begin(4.9)
    assert holding.stop_in(4.99) > 0
    assert holding.stop_in(5) == 0  # the attempt hangs


def test_who_slept_through_its_time_may_try_once() -> None:
    holding = Holding(D, 0)
    assert holding.renew_in(100) == 0
    assert holding.stop_in(100) > 0
    holding.begin(100)
    assert holding.stop_in(100.9) > 0
    holding.failed(100.9)
    assert holding.stop_in(101) == 0
    holding = Holding(D, 0)
    holding.begin(2)
    holding.overslept(100)  # while it wrote
    assert holding.stop_in(100.5) > 0
    assert holding.stop_in(101) == 0
    holding.succeeded()
    assert holding.stop_in(2.5) == pytest.approx(4.5)


# All orders


@dataclass
class Node:
    """One supervisor and its driver. Its clock is `offset` away from everybody else's."""

    name: str
    offset: float
    watching: Watching = field(init=False)
    holding: Holding | None = None
    word: Word | None = None  # its last
    writing: Word | None = None
    written: bool | None = None  # what it is going to be told, where that is decided
    began: float = 0.0
    stood_still: int = 0

    def __post_init__(self) -> None:
        self.watching = Watching(self.name)

    @property
    def running(self) -> bool:
        return self.holding is not None

    def copy(self) -> Node:
        node = copy(self)
        node.watching, node.holding = copy(self.watching), copy(self.holding)
        return node

    def clock(self, now: float) -> float:
        return now + self.offset


Rules = tuple[type[Watching], type[Holding]]
STILL, GO, FAIL, HANG, DONE_AND_HANG = range(5)


class World:
    """Two nodes, the newest word, and the time."""

    def __init__(self, rules: Rules = (Watching, Holding)) -> None:
        self.now = 0.0
        self.newest: Word | None = None
        self.rules = rules
        self.nodes = [Node("a", 0.0), Node("b", 1000.0)]
        for node in self.nodes:
            node.watching = rules[0](node.name)
        holder = self.nodes[0]
        holder.word, holder.holding = FIRST, rules[1](D, 0.0)
        self.newest = FIRST

    def copy(self) -> World:
        world = copy(self)
        world.nodes = [node.copy() for node in self.nodes]
        return world

    def key(self) -> tuple[object, ...]:
        """What the future depends on: times as ages, words as distances."""
        last = 0 if self.newest is None else self.newest.number
        told = None if self.newest is None else self.newest.holder
        return (min(last, 1), told, *(self._node_key(node, last) for node in self.nodes))

    def _node_key(self, node: Node, last: int) -> tuple[object, ...]:
        now, watching, holding = node.clock(self.now), node.watching, node.holding

        def age(since: float | None) -> float | None:
            return None if since is None else min(now - since, 2 * D)

        seen = None if watching.word is None else last - watching.word.number
        parts: tuple[object, ...] = (seen, age(watching._since) if seen is not None else None, node.stood_still)
        if node.writing is not None:
            parts += (last - node.writing.number, age(node.began), node.written)
        if holding is not None:
            assert node.word is not None
            parts += (last - node.word.number, age(holding.renewed), age(holding._begun), age(holding._failed))
            parts += (age(holding._late),)
        return parts

    def say(self, word: Word) -> bool:
        last = 0 if self.newest is None else self.newest.number
        if word.number != last + 1:
            return False
        self.newest = word
        return True

    def about_to_write(self, node: Node) -> bool:
        now = node.clock(self.now)
        if node.holding is not None:
            return node.holding.renew_in(now) <= 0
        trial = copy(node.watching)
        trial.saw(self.newest, now)
        return trial.verdict(now) is Verdict.TAKE

    # What one node does in one tick

    def move(self, node: Node, choice: int) -> None:
        if choice == STILL:
            node.stood_still += 1
            return
        node.stood_still = 0
        now = node.clock(self.now)
        if node.holding is not None:
            self._hold(node, node.holding, now, choice)
        else:
            self._wait(node, now, choice)

    def _hold(self, node: Node, holding: Holding, now: float, choice: int) -> None:
        assert node.word is not None
        if holding.stop_in(now) <= 0:
            self._end(node)
            return
        if node.writing is None:
            if holding.renew_in(now) <= 0:
                holding.begin(now)
                node.writing, node.began = node.word.follow(Standing.HELD), now
            if node.writing is None or choice != GO:
                return
        if (said := self._write(node, choice)) is None:
            return
        word, node.writing, node.written = node.writing, None, None
        if choice == FAIL:
            holding.failed(now)
        elif said:
            node.word = word
            holding.succeeded()
        elif self.newest is not None and self.newest.holder == node.name:
            node.word = self.newest  # of an attempt that seemed to fail; once more, on top of it
            holding.failed(now)
        else:
            self._end(node)

    def _wait(self, node: Node, now: float, choice: int) -> None:
        if node.writing is None:
            if choice == FAIL:
                return
            node.watching.saw(self.newest, now)
            if node.watching.verdict(now) is Verdict.TAKE:
                node.writing, node.began = node.watching.next_word(node.name, D), now
            if node.writing is None or choice != GO:
                return
        if (said := self._write(node, choice)) is None:
            return
        word, node.writing, node.written = node.writing, None, None
        if said and choice == GO:
            node.word, node.holding = word, self.rules[1](D, node.began)

    def _write(self, node: Node, choice: int) -> bool | None:
        """Whether its word was said, None where it does not know yet."""
        assert node.writing is not None
        if node.written is None and choice in (GO, DONE_AND_HANG):
            node.written = self.say(node.writing)
        return None if choice in (HANG, DONE_AND_HANG) else bool(node.written)

    def _end(self, node: Node) -> None:
        """Its driver ends; the next one waits."""
        node.holding, node.word, node.writing, node.written = None, None, None, None
        node.watching = self.rules[0](node.name)

    # What must hold

    def two_hold(self) -> bool:
        return all(
            node.holding is not None and node.clock(self.now) < node.holding.renewed + node.holding.seconds
            for node in self.nodes
        )

    def two_run(self) -> bool:
        return all(node.running for node in self.nodes)


def successors(world: World, longest: int) -> Iterator[World]:
    """Each way on to the next tick; nobody stands still for longer than `longest` ticks."""
    options = []
    for node in world.nodes:
        choices = [GO, HANG] if node.writing is None and world.about_to_write(node) else [GO]
        if node.writing is not None:
            choices += [FAIL, HANG] if node.written is not None else [FAIL, HANG, DONE_AND_HANG]
        still = node.stood_still < longest and not (node.writing is not None and not node.running)  # a hang, for it
        options.append(choices + ([STILL] if still else []))
    both_write = all(node.writing is not None for node in world.nodes)
    for first, second in itertools.product(*options):
        for order in ((0, 1), (1, 0)) if both_write else ((0, 1),):
            following = world.copy()
            for index in order:
                following.move(following.nodes[index], (first, second)[index])
            yield following


def explore(bad: Callable[[World], bool], longest: int, rules: Rules = (Watching, Holding), ticks: int = 12) -> int:
    """How many worlds there are; -1 as soon as a bad one is found."""
    known: set[tuple[object, ...]] = set()
    level = [World(rules)]
    for _ in range(ticks):
        following = []
        for world in level:
            for then in successors(world, longest):
                if bad(then):
                    return -1
                then.now += 1
                key = then.key()
                if key not in known:
                    known.add(key)
                    following.append(then)
        level = following
        if not level:
            break
    return len(known)


BOUND = round(D * (1 - STOP_AFTER))
"""Ticks: the last sixth of the lease."""


def test_two_never_run_while_pauses_are_bounded() -> None:
    assert explore(lambda world: world.two_run() or world.two_hold(), BOUND) > 5_000


def test_two_never_hold_the_lease_however_long_one_stands_still() -> None:
    assert explore(World.two_hold, 4, ticks=11) > 1_000


def test_two_may_run_when_one_stands_still_for_long() -> None:
    """So nothing may rest on the lease alone: the ledger's generations keep rows exactly once."""
    assert explore(World.two_run, 8) == -1


class CountsFromTheEnd(Holding):
    """Counts from when it knew that the word was written."""

    def stop_in(self, now: float) -> float:
        self.looked = now
        return super().stop_in(now)

    def succeeded(self) -> None:
        super().succeeded()
        self.renewed = self.looked


class NeverStops(Holding):
    def stop_in(self, now: float) -> float:
        return 1.0


class Hasty(Watching):
    """Waits for most of the lease."""

    def verdict(self, now: float) -> Verdict:
        return super().verdict(now + D / 2)


class ComparesClocks(Watching):
    """Takes the holder's clock for its own."""

    def saw(self, word: Word | None, now: float) -> None:
        super().saw(word, now - 1000.0)


@pytest.mark.parametrize(
    ("bad", "longest", "rules"),
    [
        (World.two_hold, 3, (Watching, CountsFromTheEnd)),
        (World.two_run, BOUND, (Watching, NeverStops)),
        (World.two_hold, 3, (Hasty, Holding)),
        (World.two_run, BOUND, (ComparesClocks, Holding)),
    ],
    ids=["counts from the end", "never stops", "hasty", "compares clocks"],
)
def test_each_rule_is_needed(bad: Callable[[World], bool], longest: int, rules: Rules) -> None:
    assert explore(bad, longest, rules, ticks=14) == -1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=150))
def test_two_never_hold_the_lease_on_any_long_way(moves: list[tuple[int, int, bool]]) -> None:
    world = World()
    for first, second, turned in moves:
        for index in (1, 0) if turned else (0, 1):
            world.move(world.nodes[index], (first, second)[index])
        assert not world.two_hold()
        world.now += 1
