"""A registry of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.ops.process.registry import Registry


def use_own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry in a folder of the test, which is where it works now. Nobody has handed it a token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    return Registry()
