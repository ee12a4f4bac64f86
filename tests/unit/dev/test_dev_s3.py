"""The development S3 server that stays is stopped, not killed."""

from __future__ import annotations

import pytest

from penstock.dev.servers import s3_service
from penstock.dev.servers.s3 import S3Server

FILER_SECONDS = 15.0  # SeaweedFS waits so long for its own streams before it ends by itself


def test_down_lets_the_server_end_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, float]] = []
    monkeypatch.setattr(s3_service, "_read", lambda: (71, 8333))
    monkeypatch.setattr(s3_service, "_is_ours", lambda _: True)
    monkeypatch.setattr(s3_service, "end_process", lambda pid, patience: given.append((pid, patience)))
    s3_service._end()
    assert given == [(71, S3Server.stop_seconds)]
    assert S3Server.stop_seconds > FILER_SECONDS
