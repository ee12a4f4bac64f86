"""Running the Ivy that PySpark ships: the one resolver that is already on every machine with PySpark.

No repository address is written down here: Ivy's own default settings name Maven's public repository, and whoever has
a mirror names it in a settings file given by `PENSTOCK_IVY_SETTINGS`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from penstock.errors import DevelopmentError
from penstock.supply.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS = "PENSTOCK_IVY_SETTINGS"

_ATTEMPTS = 3  # downloads that succeeded stay in the folder, so a retry only fetches what a hiccup left out
_SECONDS = 900.0  # 45 MB over a slow line; Ivy itself has no overall limit
_TELLING = 12  # how many of Ivy's last lines go into the error


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One artifact of a Maven repository."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def filename(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def retrieve(wanted: Sequence[Coordinate], folder: Path, *, transitive: bool = False) -> list[Path]:
    """Download `wanted` into `folder` as `place` says, all in one run of Ivy, and return what is there.

    `folder` must belong to the caller alone. Not transitive means exactly the artifacts named. Raises
    `DevelopmentError` with Ivy's last lines when something could not be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = folder / "ivy.xml"
    module.write_text(_module(wanted, transitive), encoding="utf-8")
    out = folder / "jars"
    command: list[str | Path] = [find_java().java, "-XX:TieredStopAtLevel=1", "-jar", _ivy_jar()]
    if settings := os.environ.get(SETTINGS):
        command += ["-settings", settings]
    command += ["-ivy", module, "-confs", "default", "-cache", folder / "cache"]
    command += ["-retrieve", f"{out}/[organisation]/[artifact]/[revision]/[artifact]-[revision].[ext]"]
    output = ""
    for _ in range(_ATTEMPTS):
        code, output = _run(command, folder)
        if code == 0 and not _missing(wanted, folder):
            return sorted(out.glob("*/*/*/*.jar"))
    raise _failure(_missing(wanted, folder), output)


def place(folder: Path, wanted: Coordinate) -> Path:
    """Where `retrieve` into `folder` puts one artifact; `coordinate_of` is the way back."""
    return folder / "jars" / wanted.group / wanted.artifact / wanted.version / wanted.filename


def coordinate_of(jar: Path) -> Coordinate:
    """Which artifact a path returned by `retrieve` is."""
    version, artifact, group = (parent.name for parent in list(jar.parents)[:3])
    return Coordinate(group, artifact, version)


def _run(command: Sequence[str | Path], folder: Path) -> tuple[int, str]:
    # Its own user.home keeps Ivy from reading or filling an ~/.ivy2 that belongs to other tools.
    with_home = [command[0], f"-Duser.home={folder}", *command[1:]]
    try:
        done = subprocess.run(
            with_home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        partial: bytes | str = late.stdout or b""  # bytes even in text mode, on some versions of Python
        text = partial if isinstance(partial, str) else partial.decode(errors="replace")
        return 1, f"{text}\nno end after {_SECONDS:.0f} seconds"
    return done.returncode, done.stdout


def _missing(wanted: Sequence[Coordinate], folder: Path) -> list[Coordinate]:
    return [c for c in wanted if not place(folder, c).is_file()]


def _failure(missing: Sequence[Coordinate], output: str) -> DevelopmentError:
    lines = [line for line in output.splitlines() if line.strip(" .\t-|:")][-_TELLING:]
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
    spec = importlib.util.find_spec("pyspark")  # found without importing: that would cost a second
    home = Path(spec.origin).parent if spec is not None and spec.origin else None
    jars = sorted((home / "jars").glob("ivy-*.jar")) if home is not None else []
    if not jars:
        raise DevelopmentError(
            "PySpark, which ships the Ivy resolver, is not installed in this Python or has no jars folder.",
            safe="The cache is unchanged.",
            to_do='Install it with pip install "pyspark>=4.0,<5" (the full package, not pyspark-client).',
        )
    return jars[-1]
