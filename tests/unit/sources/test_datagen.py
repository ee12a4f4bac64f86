"""The generator's arithmetic: whatever the epochs and partitions, every number comes once."""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.sources.datagen import DataGenSource

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.sources import readers
from penstock.sources.readers import DataGen, NumberReader


@given(start=st.integers(0, 10**12), rows=st.integers(0, 5_000), partitions=st.integers(1, 600))
def test_ranges_cover_the_epoch_without_gap_or_overlap(start: int, rows: int, partitions: int) -> None:
    reader = NumberReader({"partitions": str(partitions), "most": "500"})
    ranges = [each.value for each in reader.partitions({"next": start}, {"next": start + rows})]
    assert [n for begin, end in ranges for n in range(begin, end)] == list(range(start, start + rows))
    assert len(ranges) == min(rows, partitions)
    lengths = {end - begin for begin, end in ranges}
    assert not lengths or max(lengths) - min(lengths) <= 1


@settings(deadline=None)  # the first example also imports numpy
@given(
    rows=st.integers(0, 3_000),
    partitions=st.integers(1, 50),
    epochs=st.lists(st.tuples(st.integers(1, 700), st.booleans()), max_size=30),
)
def test_any_cut_into_epochs_gives_every_number_once(
    rows: int, partitions: int, epochs: list[tuple[int, bool]]
) -> None:
    """Epochs of any size, some of them after a restart of the reader, and the rest in one."""
    options = {"rows": str(rows), "partitions": str(partitions), "most": "500"}
    reader = NumberReader(options)
    position, seen = reader.initialOffset(), []
    for most, restart in [*epochs, (rows or 1, True)]:
        if restart:
            reader = NumberReader(options)
        end = reader.latestOffset(position, ReadMaxRows(most))
        assert end["next"] - position["next"] <= most
        for partition in reader.partitions(position, end):
            seen += [n for batch in reader.read(partition) for n in batch.column(0).to_pylist()]
        position = end
    assert seen == list(range(rows))
    assert DataGenSource(rows).finished(position)
    assert reader.latestOffset(position, ReadMaxRows(10)) == position


def test_ten_thousand_partitions_are_planned_at_once() -> None:
    reader = NumberReader({"partitions": "10000", "most": "1000000"})
    assert len(reader.partitions({"next": 0}, {"next": 1_000_000})) == 10_000
    assert len(reader.partitions({"next": 0}, {"next": 7})) == 7, "empty ranges cost no task"
    assert reader.partitions({"next": 7}, {"next": 7}) == []


def end_of(reader: NumberReader, start: int, *, now: float, most: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(readers, "time", SimpleNamespace(monotonic=lambda: now))
    return int(reader.latestOffset({"next": start}, ReadMaxRows(most))["next"])


def test_the_rate_counts_from_where_and_when_the_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    end = partial(end_of, NumberReader({"partitions": "1", "most": "9", "rate": "100"}), monkeypatch=monkeypatch)
    assert end(500, now=10.0, most=10_000) == 500
    assert end(500, now=11.5, most=10_000) == 650
    assert end(650, now=12.0, most=10_000) == 700
    assert end(700, now=60.0, most=1_000) == 1_700, "an epoch after a stall is still bounded"
    ended = NumberReader({"partitions": "1", "most": "9", "rate": "100", "rows": "510"})
    assert end_of(ended, 510, now=99.0, most=10, monkeypatch=monkeypatch) == 510


def test_a_slow_rate_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    end = partial(end_of, NumberReader({"partitions": "1", "most": "9", "rate": "0.5"}), monkeypatch=monkeypatch)
    assert [end(3, now=float(second), most=10) for second in range(5)] == [3, 3, 4, 4, 5]


def test_all_available_is_all_of_a_bounded_input_and_one_epoch_of_an_endless_one() -> None:
    bounded = NumberReader({"rows": "1000", "partitions": "2", "most": "10"})
    assert bounded.latestOffset({"next": 0}, ReadAllAvailable()) == {"next": 1000}
    endless = NumberReader({"partitions": "2", "most": "10"})
    endless.prepareForTriggerAvailableNow()
    assert endless.latestOffset({"next": 5}, endless.getDefaultReadLimit()) == {"next": 15}
    assert endless.latestOffset({"next": 15}, endless.getDefaultReadLimit()) == {"next": 15}


def test_what_travels_to_workers_can_be_pickled() -> None:
    reader = DataGen({"partitions": "2", "most": "10"}).streamReader(None)  # type: ignore[arg-type]
    pickle.loads(pickle.dumps(reader))
    [planned] = pickle.loads(pickle.dumps(reader.partitions({"next": 3}, {"next": 4})))
    assert [batch.to_pydict() for batch in reader.read(planned)] == [{"id": [3]}]
    assert pickle.loads(pickle.dumps(DataGenSource(5))).rows == 5


def test_the_end_is_known_from_sparks_offset() -> None:
    source = DataGenSource(10)
    assert source.bounded
    assert source.finished('{"next": 10}')
    assert not source.finished({"next": 9})
    assert not source.finished(None)
    assert not DataGenSource().bounded
    assert not DataGenSource().finished({"next": 10**9})


@pytest.mark.parametrize(
    "wrong", [{"rows": -1}, {"rate": 0.0}, {"partitions": 0}, {"max_rows_per_epoch": 0}, {"columns": {}}]
)
def test_what_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="DataGenSource cannot work"):
        DataGenSource(**wrong)  # type: ignore[arg-type]


def test_it_says_what_it_is() -> None:
    assert DataGenSource(1_000, rate=5).describe() == "generated, 1,000 rows at 5 a second"
    assert DataGenSource().describe() == "generated, rows without end"
