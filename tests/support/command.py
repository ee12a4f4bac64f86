"""The `penstock` command inside this process."""

from __future__ import annotations

import sys

import pytest

from penstock.cli import main as cli


def run_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """As the shell would run it: exit status, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    status = 0
    try:
        cli.main()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 0
    out, err = capfd.readouterr()
    return status, out, err
