"""What a source of files is told, and what it promises; the reading is in tests/integration/test_sources_spark.py."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import pytest

from penstock import FileSource, Guarantee
from penstock.contracts.source import EpochRead, QueryPlan, source_links
from penstock.errors import BarrierOverwritten, ConfigurationError, FilesMissing
from penstock.sources import files
from penstock.sources.files import NO_AGE, noted_files
from tests.support.memory_storage import MemoryStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_no_file_is_too_old_unless_the_user_says_so() -> None:
    assert FileSource("/in").reader_options() == {"maxFileAge": NO_AGE}
    assert FileSource("/in", options={"MAXFILEAGE": "1d"}).reader_options() == {"MAXFILEAGE": "1d"}


def test_options_are_spark_s_and_win() -> None:
    source = FileSource("/in", format="csv", max_files_per_epoch=3, options={"header": True, "maxFilesPerTrigger": 7})
    assert source.reader_options() == {"maxFileAge": NO_AGE, "header": "true", "maxFilesPerTrigger": "7"}
    assert FileSource("/in", max_files_per_epoch=3).reader_options()["maxFilesPerTrigger"] == "3"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxFileAge", "7d"),
        ("maxFileAge", "36500d"),
        ("ignoreMissingFiles", True),
        ("IgnoreCorruptFiles", "true"),
        ("fileNameOnly", "TRUE"),
    ],
)
def test_options_that_skip_rows_lower_the_guarantee(name: str, value: object) -> None:
    link = FileSource("/in", options={name: value}).link("in")
    assert link.guarantee is Guarantee.AT_MOST_ONCE
    assert name.lower() in link.lift.lower()


def test_options_that_skip_nothing_do_not() -> None:
    options = {"maxFileAge": NO_AGE, "ignoreMissingFiles": False, "cleanSource": "archive"}
    assert FileSource("/in", options=options).link("in").guarantee is Guarantee.EXACTLY_ONCE


def test_a_session_that_skips_rows_lowers_it_too() -> None:
    source = FileSource("/in")
    source._session = {"ignoreMissingFiles": "true"}
    assert source.link("in").guarantee is Guarantee.AT_MOST_ONCE


@pytest.mark.parametrize("option", [{"cleanSource": "delete"}, {"CLEANSOURCE": "Archive"}])
def test_a_folder_that_one_reader_cleans_is_exact_for_it_alone(option: dict[str, str]) -> None:
    cleaning, other = FileSource("/data/in", options=option), FileSource("file:///data/in/")
    assert (
        cleaning.link_beside("in", [FileSource("/data/elsewhere", options=option)]).guarantee is Guarantee.EXACTLY_ONCE
    )
    assert cleaning.link_beside("in", [other]).guarantee is Guarantee.EXACTLY_ONCE, "the other one removes nothing"
    for reader in (cleaning, other):
        link = reader.link_beside("in", [cleaning])
        assert link.guarantee is Guarantee.AT_MOST_ONCE
        assert "cleanSource" in link.because
    kept = FileSource("/data/in", options={"cleanSource": "OFF"})
    assert kept.link_beside("in", [kept]).guarantee is Guarantee.EXACTLY_ONCE
    assert FileSource("s3a://b/in/", options=option).link_beside("in", [FileSource("s3a://b/in", options=option)]).lift


def test_a_job_knows_at_how_many_places_it_reads_a_source() -> None:
    cleaning = FileSource("/in", options={"cleanSource": "delete"})

    def plan(uid: str, *positions: str | None) -> QueryPlan:
        sources = {name: cleaning for name in positions if name is not None}
        return QueryPlan(uid, cast("DataFrame", None), {}, sources, positions, lambda batch, outputs: None)

    def guarantees(*plans: QueryPlan) -> set[Guarantee]:
        return {link.guarantee for one in plans for link in source_links(one, plans)}

    assert guarantees(plan("a", "in", None)) == {Guarantee.EXACTLY_ONCE}
    assert guarantees(plan("a", "in"), plan("b", "in")) == {Guarantee.AT_MOST_ONCE}
    assert guarantees(plan("a", "in", "in")) == {Guarantee.AT_MOST_ONCE}, "a join with itself lists twice"


def test_what_it_is() -> None:
    source = FileSource("s3a://key:secret@bucket/in", format="PARQUET", bounded=True)
    assert source.describe() == "parquet files in s3a://key:***@bucket/in"
    assert "secret" not in f"{source!r}{source.link('in')}"
    assert source.bounded
    assert not source.finished({"logOffset": 5}), "only Spark knows where it ends"
    assert not FileSource("/in").bounded


@pytest.mark.parametrize("arguments", [{"format": "avro"}, {"max_files_per_epoch": 0}])
def test_what_cannot_work_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        FileSource("/in", **arguments)  # type: ignore[arg-type]


def test_the_files_of_an_epoch_are_found_in_spark_s_notes() -> None:
    """Every tenth note repeats all before it, and those are deleted some time later."""
    notes = MemoryStorage()

    def note(name: str, *entries: tuple[str, int]) -> None:
        lines = [f'{{"path":"file:///in/{file}","timestamp":1,"batchId":{number}}}' for file, number in entries]
        notes.create(name, "\n".join(["v1", *lines]).encode())

    note("9.compact", *((f"{number}a", number) for number in range(10)), ("3b", 3))
    note("10", ("10a", 10), ("10b", 10))
    note("11", ("11a", 11))

    def names(start: int, end: int) -> set[str]:
        return {one.rpartition("/")[2] for one in noted_files(notes, start, end)}

    assert names(9, 10) == {"10a", "10b"}
    assert names(2, 3) == {"3a", "3b"}
    assert names(8, 11) == {"9a", "10a", "10b", "11a"}
    assert names(-1, 0) == {"0a"}
    assert names(11, 11) == set()
    assert names(11, 12) == set()


@pytest.mark.parametrize(
    ("listed", "error"),
    [
        ([{"a", "b"}], None),
        ([{"a", "b", "c"}], BarrierOverwritten),
        ([{"a"}], FilesMissing),
        ([{"a", "c"}], BarrierOverwritten),
        ([{"a", "b"}, {"of another source"}], None),
        ([{"a"}, {"of another source"}], FilesMissing),
        ([], FilesMissing),
    ],
)
def test_an_epoch_reads_the_files_that_its_note_names_and_no_others(
    monkeypatch: pytest.MonkeyPatch, listed: list[set[str]], error: type[Exception] | None
) -> None:
    """A file that Spark reads and the note, of another driver, does not name would be read again after a restart."""
    notes = MemoryStorage()
    notes.create("3", b"".join([b"v1", *(b'\n{"path":"%s","batchId":3}' % name for name in (b"a", b"b"))]))
    monkeypatch.setattr(files, "listed_files", lambda _: listed)
    read = EpochRead(None, 7, {"logOffset": 2}, {"logOffset": 3}, notes)  # type: ignore[arg-type]
    with pytest.raises(error) if error is not None else contextlib.nullcontext():
        FileSource("/in").verify("in", read)
