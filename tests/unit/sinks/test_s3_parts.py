"""How bytes are cut into the parts of an upload."""

from __future__ import annotations

import pytest

from penstock.errors import DataError
from penstock.sinks.files import s3
from penstock.sinks.files.s3 import UploadStream


def test_all_parts_but_the_last_are_of_one_size_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cloudflare's R2 takes no others."""
    monkeypatch.setattr(s3, "PART_BYTES", 4)
    parts: list[bytes] = []
    stream = UploadStream(parts.append)
    for _ in range(1_500):
        stream.write(b"0123456")
    stream.finish()
    assert {len(part) for part in parts[:-1]} == {4}
    assert b"".join(parts) == b"0123456" * 1_500
    assert stream.size == 7 * 1_500


def test_a_file_of_more_parts_than_s3_takes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 1)
    monkeypatch.setattr(s3, "MOST_PARTS", 3)
    parts: list[bytes] = []
    stream = UploadStream(parts.append)
    stream.write(b"012")
    with pytest.raises(DataError, match="3 parts of an upload"):
        stream.write(b"3")
    assert parts == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("data", "parts"), [(b"", [b""]), (b"0123", [b"0123"]), (b"01234", [b"0123", b"4"]), (b"01", [b"01"])]
)
def test_an_upload_has_a_part_and_none_that_is_empty_but_that_of_an_empty_file(
    monkeypatch: pytest.MonkeyPatch, data: bytes, parts: list[bytes]
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 4)
    sent: list[bytes] = []
    stream = UploadStream(sent.append)
    stream.write(data)
    stream.finish()
    assert sent == parts
    stream.finish()
    assert sent == parts, "nothing is sent twice"
