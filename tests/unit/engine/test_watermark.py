"""The watermark tracker follows Spark's rules. That Spark follows them too is tested with Spark itself."""

from __future__ import annotations

import pytest

from penstock.checkpoint.spark_log import Barrier
from penstock.engine.watermark import WatermarkTracker
from tests.support.executed_plan import Mark, Node

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def barrier(start: int, conf: dict[str, str]) -> Barrier:
    return Barrier("", {"batchWatermarkMs": start, "conf": conf}, ())


def tracker(policy: str = "min", start: int = 0) -> WatermarkTracker:
    made = WatermarkTracker()
    made.start(barrier(start, {POLICY: policy}))
    return made


def test_without_a_watermark_it_stays_where_it_was() -> None:
    one = tracker(start=7)
    assert one.advance(Node(Node())) == 7
    assert not one.needed
    assert one.advance(Node()) == 7


def test_it_is_the_highest_event_time_less_the_delay_and_never_goes_back() -> None:
    one = tracker()
    assert [one.advance(Node(Mark(highest))) for highest in (100, 90, None, 200, 5)] == [90, 90, 90, 190, 190]
    assert one.needed


@pytest.mark.parametrize(("policy", "expected"), [("min", [0, 40, 40, 90]), ("max", [90, 90, 190, 190])])
def test_several_nodes(policy: str, expected: list[int]) -> None:
    one = tracker(policy)
    batches = [(100, None), (None, 50), (200, 20), (None, 100)]
    assert [one.advance(Node(Mark(left), Node(Mark(right)))) for left, right in batches] == expected


def test_a_restart_forgets_the_nodes_as_spark_does() -> None:
    one = tracker(start=500)
    assert one.advance(Node(Mark(100), Mark(None))) == 500
    assert one.advance(Node(Mark(900), Mark(700))) == 690


def test_what_each_node_leads_to_is_in_the_order_of_the_plan() -> None:
    one = tracker()
    assert one.each == []
    for left, right in [(None, 50), (200, None)]:
        one.advance(Node(Mark(left), Mark(right)))
    assert one.each == [190, 40]


def test_nodes_inside_nodes_count_each() -> None:
    assert tracker().advance(Mark(100, 10, Node(Mark(50, 5)))) == 45


def test_the_start_counts_once() -> None:
    one = tracker(start=3)
    one.start(barrier(99, {POLICY: "max"}))
    assert one.advance(Node()) == 3


def test_where_the_plan_is_not_to_be_had_nothing_is_known() -> None:
    assert tracker().advance(None) is None


def test_once_spark_disagrees_nothing_is_known_any_more() -> None:
    one = tracker()
    assert one.advance(Node(Mark(100))) == 90
    one.verify(90)
    one.verify(None)  # a log that says nothing proves nothing
    assert one.advance(Node(Mark(110))) == 100
    one.verify(101)
    assert one.advance(Node(Mark(120))) is None
    one.verify(110)
    assert one.advance(Node(Mark(130))) is None


@pytest.mark.parametrize("written", [89, 91])
def test_a_watermark_that_spark_wrote_lower_or_higher_is_a_difference(written: int) -> None:
    one = tracker()
    assert one.advance(Node(Mark(100))) == 90
    one.verify(written)
    assert one.advance(Node(Mark(200))) is None


def test_the_lowest_of_several_counts_unless_told_otherwise() -> None:
    """Also where the barrier says nothing of it."""
    for made in (Barrier("", {}, ()), barrier(0, {}), barrier(0, {POLICY: "MIN"})):
        one = WatermarkTracker()
        one.start(made)
        assert one.advance(Node(Mark(7, 7), Mark(7, 7))) == 0
        assert one.advance(Node(Mark(100), Mark(50))) == 40


def test_the_policy_is_that_of_the_first_barrier_whatever_later_ones_say() -> None:
    one = tracker("MAX")
    one.start(barrier(0, {POLICY: "min"}))
    assert one.advance(Node(Mark(100), Mark(50))) == 90


def test_a_node_never_goes_back_even_while_another_holds_all_back() -> None:
    one = tracker()
    batches = [(100, 60), (40, None), (None, 200)]
    assert [one.advance(Node(Mark(left), Mark(right))) for left, right in batches] == [50, 50, 90]


def test_event_times_younger_than_the_delay_lead_to_none_below_zero() -> None:
    assert tracker().advance(Node(Mark(5, 10))) == 0


def test_only_nodes_of_watermarks_are_asked() -> None:
    assert tracker().advance(Node(Mark(100), Node(name="DeduplicateExec"), Node(name="ProjectExec"))) == 90
