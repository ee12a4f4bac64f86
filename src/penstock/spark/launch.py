"""Around the start of Spark's Java process: no secret on its command line, and no noise on the terminal.

PySpark puts every setting there as `--conf key=value`, where each user of the machine can read it. Secrets go by a
file instead that only its owner can read and that is gone once Java runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.caches import user_cache
from penstock.secrets import is_secret, masked
from penstock.spark.java import find_java, wrapped_home
from penstock.storage.private import create_own

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_LOGGING = "LOG4J_CONFIGURATION_FILE"
_QUIET = Path(__file__).with_name("log4j2.properties")
#: Whoever has said something about Java's logging has said it in one of these.
_JAVA_VARIABLES = (_ARGUMENTS, "SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")


@contextmanager
def java_environment(conf: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """While Java is being started: its environment is as it should be, and what is given here may stand on its command
    line. Where Java runs already, as under spark-submit, nothing is changed."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        yield dict(conf)
        return
    secret = {key: value for key, value in conf.items() if _is_secret(key, value)}
    plain = {key: value for key, value in conf.items() if key not in secret}
    before = {name: os.environ.get(name) for name in (_ARGUMENTS, _LOGGING, "JAVA_HOME")}
    folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))  # made with mode 0700
    try:
        os.environ["JAVA_HOME"] = str(_quiet_java())
        if not _has_own_logging(conf):
            os.environ[_LOGGING] = _QUIET.as_uri()
        given = os.environ.get(_ARGUMENTS) or "pyspark-shell"
        if secret and "--properties-file" not in given:  # there can be one; then Spark is told as soon as Java runs
            file = folder / "spark.properties"
            with open(create_own(file), "w", encoding="utf-8") as opened:
                opened.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in secret.items())
            os.environ[_ARGUMENTS] = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults {given}"
        yield plain
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_secret(key: str, value: str) -> bool:
    """Options of Java's own end on its command line in any case, and are needed there."""
    return key not in _OPTIONS and (is_secret(key) or masked(value) != value)


def _quiet_java() -> Path:
    """A Java that is not asked for a module still in incubation, of which it would warn each time."""
    found = find_java().home
    try:
        return wrapped_home(found, user_cache())
    except OSError:
        return found  # nowhere to write: it warns


def _has_own_logging(conf: Mapping[str, str]) -> bool:
    settings = [os.environ.get(name, "") for name in _JAVA_VARIABLES] + [conf.get(name, "") for name in _OPTIONS]
    if _LOGGING in os.environ or any("log4j" in text for text in settings):
        return True
    folder = _conf_folder()
    defaults = folder / "spark-defaults.conf"
    try:
        return any(folder.glob("log4j2*.*")) or (defaults.is_file() and "log4j" in defaults.read_text(errors="replace"))
    except OSError:
        return False


def _conf_folder() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))


def _escaped(text: str) -> str:
    """As Java reads a properties file."""
    marks = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", " ": "\\ ", "=": "\\=", ":": "\\:"}
    return "".join(marks.get(letter, letter) for letter in text)
