"""The file sink on a real S3 server keeps the contract, and says what happened where S3 does not do as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import CheckContext, TwoPhaseSink
from penstock.deadline import Deadline
from penstock.errors import AccessDenied, ConfigurationError, CredentialsExpired, PreCommitFailed
from penstock.sinks.files import FileSink, s3
from penstock.testing.sink_contract import LOST, VISIBLE, SinkContract
from tests.support.named_rows import NamedRows
from tests.support.s3_proxy import S3Proxy, is_any, is_completion, is_part
from tests.support.servers.s3 import S3Server

boto3 = pytest.importorskip("boto3")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server.start(tmp_path_factory.mktemp("s3")) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment().items():
            patch.setenv(name, value)
        boto3.session.Session().client("s3").create_bucket(Bucket="lake")
        yield started


class S3Harness(NamedRows):
    """A folder of its own in one bucket."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.client = boto3.session.Session().client("s3")

    def make_sink(self) -> TwoPhaseSink:
        return FileSink(f"s3://lake/{self.folder}")

    def keys(self, start: str = "part-") -> list[str]:
        listed = self.client.list_objects_v2(Bucket="lake", Prefix=f"{self.folder}/{start}")
        return [one["Key"] for one in listed.get("Contents", ())]

    def read_visible(self) -> list[Any]:
        bodies = [self.client.get_object(Bucket="lake", Key=key)["Body"].read() for key in self.keys()]
        return [tuple(row.values()) for body in bodies for row in pq.read_table(BytesIO(body)).to_pylist()]

    def expire(self, sink: TwoPhaseSink, committable: Committable) -> bool:
        """As a rule of the bucket does to uploads that are old."""
        key, upload = f"{self.folder}/{committable.payload['name']}", committable.payload["upload"]
        self.client.abort_multipart_upload(Bucket="lake", Key=key, UploadId=upload)
        return True


@pytest.fixture
def harness(server: S3Server, request: pytest.FixtureRequest) -> S3Harness:
    return S3Harness(f"out/{abs(hash(request.node.nodeid)):x}")


class TestFilesOnS3(SinkContract):
    @pytest.fixture(autouse=True)
    def _harness(self, harness: S3Harness) -> None:
        self.harness = harness


class Story(SinkContract):
    """The steps of the contract without its tests."""

    __test__ = False


@pytest.fixture
def story(harness: S3Harness) -> Story:
    told = Story()
    told.harness = harness
    return told


def test_an_object_a_reader_has_moved_away_still_counts_as_committed(story: Story, harness: S3Harness) -> None:
    sink = harness.make_sink()
    prepared = story.prepare(sink, [harness.rows(5)])
    story.commit(sink, prepared)
    [key] = harness.keys()
    harness.client.delete_object(Bucket="lake", Key=key)
    assert story.commit(sink, prepared, generation=2) == {Outcome.ALREADY_COMMITTED}


def test_an_upload_that_is_aborted_after_a_commit_began_is_never_guessed(
    story: Story, harness: S3Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completed and taken away by a reader, or ended by a rule of the bucket: it looks the same."""
    sink = harness.make_sink()
    [prepared] = story.prepare(sink, [harness.rows(5)])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(s3.UploadCommitter, "_complete", die)
        with pytest.raises(KeyboardInterrupt):
            story.commit(sink, [prepared])
    harness.expire(sink, prepared)
    assert story.commit(sink, [prepared], generation=2) == {Outcome.UNKNOWN}
    said = sink.open_committer(story.scope(2)).evidence([prepared], Deadline(60))
    assert "the upload is ended" in said[0]
    assert "is not there" in said[0]


def test_what_we_abort_after_a_commit_began_is_lost_and_proven(
    story: Story, harness: S3Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = harness.make_sink()
    prepared = story.prepare(sink, [harness.rows(5), harness.rows(5, 5)])
    with monkeypatch.context() as patched:
        patched.setattr(s3.UploadCommitter, "_complete", lambda *_: Outcome.UNKNOWN)
        story.commit(sink, prepared)
    story.abort(sink, prepared[:1])
    assert story.commit(sink, prepared[:1]) == LOST
    assert story.commit(sink, prepared[1:]) == {Outcome.COMMITTED}


def test_a_strange_object_under_our_name_is_not_taken_for_ours(story: Story, harness: S3Harness) -> None:
    sink = harness.make_sink()
    [prepared] = story.prepare(sink, [harness.rows(5)])
    harness.expire(sink, prepared)
    harness.client.put_object(Bucket="lake", Key=f"{harness.folder}/{prepared.payload['name']}", Body=b"strange")
    assert story.commit(sink, [prepared]) == {Outcome.UNKNOWN}


def test_a_file_of_many_parts(story: Story, harness: S3Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)  # the least that S3 takes
    sink = FileSink(f"s3://lake/{harness.folder}", compression="none")
    noise = [bytes([seed]).hex() * (1 << 20) for seed in range(8)]
    rows = pa.RecordBatch.from_pydict({"id": list(range(8)), "name": noise})
    [prepared] = story.prepare(sink, [rows])
    assert len(prepared.payload["etags"]) > 1
    assert story.commit(sink, [prepared]) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_a_writer_whose_upload_was_swept_cannot_prepare(story: Story, harness: S3Harness) -> None:
    sink = harness.make_sink()
    writer = story.open_writer(sink, story.scope(1), epoch=0)
    writer.write(harness.rows(5))
    assert story.sweep(sink, generation=2) == 1
    with pytest.raises(PreCommitFailed, match="ended while it was written"):
        writer.pre_commit()


def test_seal_refuses_an_upload_that_is_gone(story: Story, harness: S3Harness) -> None:
    sink = harness.make_sink()
    [prepared] = story.prepare(sink, [harness.rows(5)])
    harness.expire(sink, prepared)
    with pytest.raises(PreCommitFailed, match="is gone"):
        story.seal(sink, story.scope(), [prepared])


def test_a_committable_holds_no_secret(story: Story, harness: S3Harness, server: S3Server) -> None:
    [prepared] = story.prepare(harness.make_sink(), [harness.rows(5)])
    assert set(prepared.payload) == {"name", "upload", "etags", "bytes"}
    assert not [key for key in server.keys if key in repr(prepared)]


def test_receipts_do_not_pile_up(story: Story, harness: S3Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "KEPT_RECEIPTS", 2)
    sink = harness.make_sink()
    for epoch in range(6):
        story.commit(sink, story.prepare(sink, [harness.rows(1, epoch)], epoch=epoch), epoch=epoch)
    assert len(harness.keys("_penstock/")) == 2 * 3, "of three epochs, that they began and that they are done"


def test_keys_that_are_wrong_are_named(harness: S3Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.storage import s3

    monkeypatch.setattr(s3, "_clients", {})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-this-one")
    with pytest.raises(AccessDenied, match="refused access") as refused:
        harness.make_sink().check(CheckContext("job", 1.0, 30.0), "out")
    assert "not-this-one" not in str(refused.value)


def test_a_bucket_that_is_not_there_is_named(server: S3Server) -> None:
    with pytest.raises(ConfigurationError, match="no such bucket"):
        FileSink("s3://nowhere/out").check(CheckContext("job", 1.0, 30.0), "out")


def test_the_in_flight_log_on_s3(harness: S3Harness) -> None:
    """Through pyarrow, as tasks write it and the driver reads it."""
    from penstock.checkpoint.inflight import LogWriter, confirm, read_log

    where, rows = f"s3a://lake/{harness.folder}/log", harness.rows(1_000)
    writer = LogWriter(where, "e0000000001/w00000.arrow", rows.schema)
    writer.write(rows)
    file = writer.close()
    confirm(where, [file])
    assert [batch.to_pylist() for batch in read_log(where, file)] == [rows.to_pylist()]


# What a store does on a bad day


@pytest.fixture
def proxy(server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(server.url) as between:
        yield between


def behind(proxy: S3Proxy, harness: S3Harness) -> FileSink:
    return FileSink(f"s3://lake/{harness.folder}", endpoint=proxy.url)


def test_a_store_that_lists_uploads_by_their_whole_name_only_is_named_by_the_check(
    harness: S3Harness, proxy: S3Proxy
) -> None:
    """A sweep would find nothing there, and say nothing of it."""
    sink, context = behind(proxy, harness), CheckContext("job", 1.0, 30.0)
    assert sink.check(context, "out") == []
    proxy.uploads_by_whole_name = True
    [finding] = sink.check(context, "out")
    assert "as MinIO does" in finding.message
    assert "AbortIncompleteMultipartUpload" in finding.message
    proxy.uploads_by_whole_name = False
    assert sink._bucket().uploads("") == [], "what the check has begun is aborted"


def test_every_body_goes_with_a_checksum_that_every_store_knows(
    story: Story, harness: S3Harness, proxy: S3Proxy
) -> None:
    """The library's own default is a trailer that older stores refuse."""
    sink = behind(proxy, harness)
    assert story.commit(sink, story.prepare(sink, [harness.rows(5)])) == {Outcome.COMMITTED}
    bodies = [headers for method, _, headers in proxy.asked if method == "PUT"]
    assert len(bodies) == 3, "a part and two receipts"
    for headers in bodies:
        assert "content-md5" in headers
        assert not [name for name in headers if "checksum" in name or "trailer" in name]


def test_a_store_that_asks_to_slow_down_is_asked_again(story: Story, harness: S3Harness, proxy: S3Proxy) -> None:
    sink, rows = behind(proxy, harness), harness.rows(5)
    proxy.inject(is_part, 503, "SlowDown", count=2)
    proxy.inject(is_completion, 500, "InternalError")
    assert story.commit(sink, story.prepare(sink, [rows])) <= VISIBLE
    assert proxy.answered_badly == 3
    story.assert_visible(rows)


def test_a_completion_whose_answer_is_lost_is_found(story: Story, harness: S3Harness, proxy: S3Proxy) -> None:
    sink, rows = behind(proxy, harness), harness.rows(5)
    prepared = story.prepare(sink, [rows])
    proxy.inject(is_completion, 500, "InternalError", late=True)
    assert story.commit(sink, prepared) <= VISIBLE
    story.assert_visible(rows)


def test_a_store_that_is_away_loses_nothing(story: Story, harness: S3Harness, proxy: S3Proxy) -> None:
    sink, rows = behind(proxy, harness), harness.rows(5)
    prepared = story.prepare(sink, [rows])
    proxy.inject(is_any, 503, "ServiceUnavailable", count=1_000)
    assert story.commit(sink, prepared, seconds=1.0) == {Outcome.UNKNOWN}
    story.assert_visible()
    proxy.heal()
    assert story.commit(sink, prepared, generation=2) == {Outcome.COMMITTED}
    story.assert_visible(rows)


def test_keys_that_expire_are_named_and_looked_up_again(story: Story, harness: S3Harness, proxy: S3Proxy) -> None:
    sink, rows = behind(proxy, harness), harness.rows(5)
    writer = story.open_writer(sink, story.scope(), epoch=0)
    proxy.inject(is_part, 400, "ExpiredToken")
    writer.write(rows)
    with pytest.raises(CredentialsExpired, match="have expired") as expired:
        writer.pre_commit()
    assert expired.value.retryable
    writer.abort()
    prepared = story.prepare(sink, [rows], attempt=1)
    before = sink._bucket()._client()
    proxy.inject(is_completion, 400, "ExpiredToken")
    assert story.commit(sink, prepared) == {Outcome.COMMITTED}, "a commit waits for new keys while it has time"
    assert sink._bucket()._client() is not before
    story.assert_visible(rows)
