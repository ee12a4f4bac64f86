from __future__ import annotations

from pathlib import Path

import pytest

from penstock.ops.process.registry import Registry
from tests.support.own_home import use_own_home


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    return use_own_home(tmp_path, monkeypatch)


@pytest.fixture
def job_certificate(tmp_path: Path) -> Path:
    from tests.support.servers.security import make_security

    return make_security(tmp_path / "tls", {}).keystore
