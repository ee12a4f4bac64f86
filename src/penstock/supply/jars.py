"""Locked sets of jars: a job runs bit for bit what was tested.

`jars.lock.json`, shipped beside this module, names every jar of every set with its checksum; `scripts/relock_jars.py`
lists the sets and rewrites it. A set is downloaded once per user, verified, and moved into the cache in one step; from
then on it is found without network. The set `spark-kafka` is that of the installed PySpark.

The resolver is the Ivy that PySpark ships. No repository address is written down here: Ivy's default settings name
Maven's public repository, and a settings file given by `PENSTOCK_IVY_SETTINGS` names a mirror.

`compiled` makes jars from Penstock's own Java sources with the Janino that Spark ships: nothing here needs a JDK. A jar
is made once per user, source and version of Spark, in the user's cache.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from xml.sax.saxutils import quoteattr

from penstock.errors import ConnectorMissing, DevelopmentError
from penstock.naming import user_cache
from penstock.storage.local import only_one, own_folder
from penstock.supply.java import find_java
from penstock.supply.versions import KAFKA_JARS, installed_text, installed_version

LOCK = Path(__file__).with_name("jars.lock.json")  # where it is written; read through `resources`
SETTINGS = "PENSTOCK_IVY_SETTINGS"
DEFAULT_SETS = ("kafka-broker", "spark-kafka")  # for jobs and the development broker; the others are for tests

_STAMP = "verified"  # written last: every jar beside it had the right checksum
_AT_ONCE = 4  # Ivy asks for one file after the other and mostly waits
_ATTEMPTS = 3  # downloads that succeeded stay in the folder, so a retry only fetches what is missing
_SECONDS = 900.0  # 45 MB over a slow line; Ivy itself has no overall limit
_LAST_LINES = 12  # of Ivy's output go into the error
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"  # takes javac's arguments
_COMPILE_SECONDS = 120.0  # it takes one or two; a busy machine takes longer
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same source makes the same jar


@dataclass(frozen=True, slots=True)
class Coordinate:
    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def filename(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class LockedJar(Coordinate):
    sha256: str
    size: int


@functools.cache
def locked() -> Mapping[str, tuple[LockedJar, ...]]:
    # Not by its path: on a cluster the package may be inside a zip file.
    body = json.loads(resources.files("penstock.supply").joinpath(LOCK.name).read_text(encoding="utf-8"))
    return {name: tuple(LockedJar(**jar) for jar in jars) for name, jars in body["sets"].items()}


def jar_folder(name: str) -> Path:
    """Where set `name` is or will be. The folder's name carries the lock's digest: a changed lock is another folder."""
    jars = _set(name)
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()[:12]
    return user_cache() / "jars" / f"{name}-{digest}"


def is_present(name: str) -> bool:
    """Whether `jar_set(name)` will answer from the cache."""
    return _complete(jar_folder(name), _set(name))


def jar_set(name: str) -> list[Path]:
    """The verified jars of set `name`, downloaded if this user never had them. Safe to call from several processes at
    once: one downloads, the others wait for it. Raises `DevelopmentError` naming the jar when one cannot be had or is
    not what the lock says; the cache is then as it was before."""
    jars = _set(name)
    folder = jar_folder(name)
    if not _complete(folder, jars):
        with only_one(folder.with_suffix(".lock")):
            if not _complete(folder, jars):  # another process may have brought it meanwhile
                _bring(jars, folder)
    return [folder / jar.filename for jar in jars]


def _set(name: str) -> tuple[LockedJar, ...]:
    sets = locked()
    if name == KAFKA_JARS:
        name = _connector_set()
    if name not in sets:
        raise DevelopmentError(
            f"There is no jar set named {name!r}.", safe="Nothing was downloaded.", to_do=f"Use one of {sorted(sets)}."
        )
    return sets[name]


def has_connector() -> bool:
    """Whether the lock has a Kafka connector for the installed PySpark."""
    return installed_version().kafka_jars is not None


def _connector_set() -> str:
    name = installed_version().kafka_jars
    if name is None:
        raise ConnectorMissing(
            f"Penstock's lock has no Kafka connector for PySpark {installed_text()}.",
            to_do="name the jars of spark-sql-kafka-0-10 for this version, and what they need, in spark.jars, or the"
            " connector in spark.jars.packages; or install a version of PySpark that docs/reference/versions.md lists.",
        )
    return name


def _complete(folder: Path, jars: Sequence[LockedJar]) -> bool:
    try:
        return (folder / _STAMP).is_file() and all((folder / jar.filename).stat().st_size == jar.size for jar in jars)
    except FileNotFoundError:
        return False


def _bring(jars: Sequence[LockedJar], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as scratch:
        ready = Path(scratch, "ready")
        ready.mkdir()

        def fetch(share: int) -> None:
            work, mine = Path(scratch, f"ivy-{share}"), jars[share::_AT_ONCE]
            if not mine:
                return
            retrieve(mine, work)
            for jar in mine:
                source = place(work, jar)
                _verify(source, jar)
                source.rename(ready / jar.filename)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch, range(_AT_ONCE)))
        (ready / _STAMP).touch()
        if folder.exists():  # damaged: something was deleted or cut short since it was verified
            shutil.rmtree(folder)
        ready.rename(folder)


def _verify(path: Path, jar: LockedJar) -> None:
    checksum = sha256_of(path)
    if checksum != jar.sha256:
        raise DevelopmentError(
            f"{jar} came with checksum {checksum[:16]}… ({path.stat().st_size} bytes), "
            f"but the lock says {jar.sha256[:16]}… ({jar.size} bytes).",
            safe="The download was thrown away and the cache is unchanged.",
            to_do="See that the repository or proxy in use serves the original file, then run `penstock dev jars`.",
        )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Ivy


def retrieve(wanted: Sequence[Coordinate], folder: Path, *, transitive: bool = False) -> list[Path]:
    """Download `wanted` into `folder` as `place` says, all in one run of Ivy, and return its jars. `folder` must belong
    to the caller alone. Not transitive means exactly the artifacts named. Raises `DevelopmentError` with Ivy's last
    lines when a download fails."""
    folder.mkdir(parents=True, exist_ok=True)
    module = folder / "ivy.xml"
    module.write_text(_module(wanted, transitive), encoding="utf-8")
    out = folder / "jars"
    # Its own user.home keeps Ivy from reading or filling an ~/.ivy2 that belongs to other tools.
    command: list[str | Path] = [find_java().java, f"-Duser.home={folder}", "-XX:TieredStopAtLevel=1"]
    command += ["-jar", _ivy_jar()]
    if settings := os.environ.get(SETTINGS):
        command += ["-settings", settings]
    command += ["-ivy", module, "-confs", "default", "-cache", folder / "cache"]
    command += ["-retrieve", f"{out}/[organisation]/[artifact]/[revision]/[artifact]-[revision].[ext]"]
    output = ""
    for _ in range(_ATTEMPTS):
        code, output = _run(command, _SECONDS)
        if code == 0 and not _missing(wanted, folder):
            return sorted(out.glob("*/*/*/*.jar"))
    raise _failure(_missing(wanted, folder), output)


def place(folder: Path, wanted: Coordinate) -> Path:
    """Where `retrieve` into `folder` puts one artifact."""
    return folder / "jars" / wanted.group / wanted.artifact / wanted.version / wanted.filename


def _run(command: Sequence[str | Path], seconds: float) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        partial: bytes | str = late.stdout or b""  # bytes even in text mode, on some versions of Python
        text = partial if isinstance(partial, str) else partial.decode(errors="replace")
        return 1, f"{text}\nno end after {seconds:.0f} seconds"
    return done.returncode, done.stdout


def _missing(wanted: Sequence[Coordinate], folder: Path) -> list[Coordinate]:
    return [c for c in wanted if not place(folder, c).is_file()]


def _failure(missing: Sequence[Coordinate], output: str) -> DevelopmentError:
    lines = [line for line in output.splitlines() if line.strip(" .\t-|:")][-_LAST_LINES:]
    named = ", ".join(str(c) for c in missing[:5]) or "the jars"
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    return DevelopmentError(
        f"Could not download {named}{more}. Ivy's last lines:\n" + "\n".join(f"  {line.strip()}" for line in lines),
        safe="The cache is unchanged.",
        to_do=(
            f"See that this machine reaches a Maven repository, or name your mirror in an Ivy settings file and set "
            f"{SETTINGS} to it (proxies: JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...), then run `penstock dev jars`."
        ),
    )


def _module(wanted: Sequence[Coordinate], transitive: bool) -> str:
    lines = [
        '<ivy-module version="2.0">',
        '  <info organisation="penstock" module="jars"/>',
        '  <configurations><conf name="default"/></configurations>',
        "  <dependencies>",
    ]
    for c in wanted:
        attributes = f"org={quoteattr(c.group)} name={quoteattr(c.artifact)} rev={quoteattr(c.version)}"
        if transitive:
            lines.append(f'    <dependency {attributes} conf="default->default"/>')
        else:
            # The artifact is spelled out because some modules publish type "bundle", which Ivy would name differently.
            lines.append(f'    <dependency {attributes} transitive="false" conf="default->*">')
            lines.append(f'      <artifact name={quoteattr(c.artifact)} type="jar" ext="jar"/>')
            lines.append("    </dependency>")
    return "\n".join([*lines, "  </dependencies>", "</ivy-module>", ""])


def _ivy_jar() -> Path:
    jars = _spark_jars("ivy-*.jar")
    if not jars:
        raise DevelopmentError(
            "PySpark, which ships the Ivy resolver, is not installed in this Python or has no jars folder.",
            safe="The cache is unchanged.",
            to_do='Install it with pip install "pyspark>=4.0,<5" (the full package, not pyspark-client).',
        )
    return jars[-1]


def _spark_jars(pattern: str = "*.jar") -> list[Path]:
    spec = importlib.util.find_spec("pyspark")  # found without importing: that would cost a second
    return sorted(Path(spec.origin).parent.glob(f"jars/{pattern}")) if spec is not None and spec.origin else []


# Penstock's own classes


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
        command: list[str | Path]
        command = [find_java().java, "-XX:TieredStopAtLevel=1", "-cp", compiler, _COMPILER, "-d", classes]
        command += ["-g", "-encoding", "UTF-8", "-classpath", ":".join(map(str, needed)), file]
        code, output = _run(command, _COMPILE_SECONDS)
        found = sorted(classes.rglob("*.class"))
        if code or not found:
            lines = [line.strip() for line in output.splitlines() if line.strip()][-5:]
            raise DevelopmentError(
                f"{name}.java could not be compiled with Spark's own compiler. Its last lines:\n  "
                + "\n  ".join(lines),
                safe="Nothing was started, and the cache is unchanged.",
                to_do="See that PySpark has its jars folder (janino, commons-compiler) and that a Java runs; a version"
                " of Spark that docs/reference/versions.md does not list may need a newer Penstock.",
            )
        manifest = f"Manifest-Version: 1.0\nSource-SHA-256: {checksum}\n\n"
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _EPOCH), manifest)
            for path in found:
                jar.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix(), _EPOCH), path.read_bytes())
        made.replace(target)
