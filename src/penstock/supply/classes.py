"""Jars from Penstock's own Java sources, compiled by the Janino that Spark ships: nothing here needs a JDK.

A jar is made once per user, source and version of Spark, in the user's cache. Its manifest has the checksum of the
source that it was made of.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import tempfile
import zipfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import DevelopmentError
from penstock.naming import user_cache
from penstock.storage.private import only_one, own_folder
from penstock.supply.jars import jar_set
from penstock.supply.java import find_java
from penstock.supply.versions import installed_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"  # takes javac's arguments
_SECONDS = 120.0  # it takes one or two; a busy machine takes longer
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same source makes the same jar
_LAST_LINES = 5


def compiled(package: str, name: str, sets: Sequence[str]) -> Path:
    """The jar of the class `name`, whose source lies in `package`; `sets` are the jar sets that it needs beside Spark's
    own jars. Raises `DevelopmentError` where it cannot be made; the cache is then as it was before."""
    source = resources.files(package).joinpath(f"{name}.java").read_bytes()
    checksum = hashlib.sha256(source).hexdigest()
    needed = [*_spark_jars(), *(jar for one in sets for jar in jar_set(one))]
    known = [checksum, installed_text(), *(f"{jar.name} {jar.stat().st_size}" for jar in needed)]
    digest = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    target = user_cache() / "classes" / f"{name}-{digest}.jar"
    if not target.exists():
        own_folder(target.parent)  # what is in it runs in every executor
        with only_one(target.with_suffix(".lock")):
            if not target.exists():  # another process may have made it meanwhile
                _make(name, source, checksum, needed, target)
    return target


def _make(name: str, source: bytes, checksum: str, needed: Sequence[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as scratch:
        file, classes, made = Path(scratch, f"{name}.java"), Path(scratch, "classes"), Path(scratch, target.name)
        file.write_bytes(source)
        classes.mkdir()
        compiler = ":".join(str(jar) for jar in needed if jar.name.startswith(("janino-", "commons-compiler-")))
        command = [str(find_java().java), "-XX:TieredStopAtLevel=1", "-cp", compiler, _COMPILER, "-d", str(classes)]
        command += ["-g", "-encoding", "UTF-8", "-classpath", ":".join(map(str, needed)), str(file)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, check=False
            )
            output = done.stdout + done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refused(name, str(error)) from error
        found = sorted(classes.rglob("*.class"))
        if done.returncode or not found:
            raise _refused(name, output)
        manifest = f"Manifest-Version: 1.0\nSource-SHA-256: {checksum}\n\n"
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _EPOCH), manifest)
            for path in found:
                jar.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix(), _EPOCH), path.read_bytes())
        made.replace(target)


def _spark_jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")  # found without importing: that would cost a second
    return sorted(Path(spec.origin).parent.glob("jars/*.jar")) if spec is not None and spec.origin else []


def _refused(name: str, output: str) -> DevelopmentError:
    lines = [line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    return DevelopmentError(
        f"{name}.java could not be compiled with Spark's own compiler. Its last lines:\n  " + "\n  ".join(lines),
        safe="Nothing was started, and the cache is unchanged.",
        to_do="See that PySpark has its jars folder (janino, commons-compiler) and that a Java runs; a version of Spark"
        " that docs/reference/versions.md does not list may need a newer Penstock.",
    )
