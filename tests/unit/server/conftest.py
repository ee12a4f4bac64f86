from __future__ import annotations

from pathlib import Path

import pytest

from penstock.process.registry import Registry
from tests.support.own_home import use_own_home


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    return use_own_home(tmp_path, monkeypatch)
