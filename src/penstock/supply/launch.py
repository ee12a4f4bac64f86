"""Spark's Java process, started without the shells and the other JVM that `spark-submit` puts in front of it.

`spark-submit` is a shell script that runs another, which runs Spark's launcher, a JVM of its own, only to be told with
which options the real one is to be started. The answer is the same each time, so it is kept in the user's cache, by
everything that it depends on. Wherever something is unusual (arguments of the user's, a `spark-env.sh`, a Spark that is
not PySpark's package) Java is started PySpark's own way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shlex
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.naming import user_cache
from penstock.secrets import masked
from penstock.supply import class_archive, compiler, early
from penstock.supply.jars import jar_set
from penstock.supply.java import DROPPED, JavaHome, find_java
from penstock.supply.notes import read_note, write_note
from penstock.supply.slim_home import slim_home

log = logging.getLogger("penstock")

_VERSION = 1
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_LAUNCHER = "org.apache.spark.launcher.Main"
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_SCALA = re.compile(r"^\s*export SPARK_SCALA_VERSION=([\d.]+)\s*$", re.MULTILINE)
#: With one of these set, Spark's scripts do more than ask the launcher.
_UNUSUAL = ("SPARK_TESTING", "SPARK_SQL_TESTING", "SPARK_PREPEND_CLASSES", "SPARK_LAUNCHER_OPTS", "SPARK_REMOTE")
#: What the launcher looks at in settings and in the environment.
_SETTINGS = ("spark.driver.", "spark.submit.", "spark.master", "spark.remote", "spark.api.")
_VARIABLES = ("SPARK_", "JAVA_", "HADOOP_", "YARN_", "PYSPARK_DRIVER_PYTHON")
_LAUNCHER_SECONDS = 60.0
_POLL_SECONDS = 0.003  # how soon a JVM that is ready is noticed; each look is one system call


def start_java(conf: Mapping[str, str], *, archive: bool = False, jars: Sequence[str] = ()) -> Any | None:
    """A gateway to a new JVM, for `SparkContext`, with `conf` on its command line; None where PySpark should start it.
    `archive`: whether an archive of classes may be used and made, see `class_archive`. `jars`: sets that stand on its
    class path, where the archive can hold their classes, too."""
    try:
        home = _usual_home(conf)
        if home is None:
            return None
        java = find_java()
        environment = _environment(home)
        options = _jvm_options(java, home, conf, environment)
        if options is None:
            return None
        options = with_jars(options, [path for name in jars for path in jar_set(name)])
        more = class_archive.java_options(java, options) if archive else []
        later = compiler.java_options(options)
        command = [str(java.java), *more, *later, *options, _MAIN, *_settings(conf), *_submit_arguments()]
        gateway = _connect(command, {**environment, "SPARK_HOME": str(slim_home(home, conf))})
    except OSError as error:
        log.debug("Java is started by spark-submit: %s", error)
        return None
    if gateway is None and more:
        class_archive.distrust(java, options)
    elif gateway is not None and archive:
        class_archive.make_later(java, options, jars)
    return gateway


def with_jars(options: Sequence[str], jars: Sequence[Path]) -> list[str]:
    """`options` with `jars` at the end of the class path: whatever Spark and the user have there comes first."""
    if not jars or "-cp" not in options[:-1]:
        return list(options)
    place = options.index("-cp") + 1
    return [*options[:place], ":".join([options[place], *map(str, jars)]), *options[place + 1 :]]


def _usual_home(conf: Mapping[str, str]) -> Path | None:
    """Spark's folder, where all is as PySpark's package has it; None where it is not."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    home = Path(pyspark.__file__).resolve().parent  # one archive for all environments that are links to one
    if os.name != "posix" or _PORT in os.environ or any(os.environ.get(name) for name in _UNUSUAL):
        return None
    if Path(_find_spark_home()).resolve() != home or not (home / "jars").is_dir():
        return None
    if (conf_folder(home) / "spark-env.sh").exists() or any(key.startswith("spark.remote") for key in conf):
        return None
    return home


def _submit_arguments() -> list[str]:
    return shlex.split(os.environ.get(_ARGUMENTS) or "pyspark-shell")


def conf_folder(home: Path | None = None) -> Path:
    """Where Spark, in the folder `home` or wherever PySpark finds it, looks for its own configuration."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(os.environ.get("SPARK_CONF_DIR") or (home or Path(_find_spark_home())) / "conf")


def _settings(conf: Mapping[str, str]) -> list[str]:
    return [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]


def _environment(home: Path) -> dict[str, str]:
    """As the scripts leave it to Java, and Java to Python's workers."""
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(conf_folder(home)),
        "SPARK_ENV_LOADED": "1",
        "SPARK_SCALA_VERSION": scala_version(home),
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",  # the same in all workers, or strings hash differently in each
    }


def scala_version(home: Path) -> str:
    """What Spark's scripts tell Java, which starts executors with it. Raises OSError where they say nothing."""
    found = _SCALA.search((home / "bin" / "load-spark-env.sh").read_text())
    if found is None:
        raise OSError("Spark's scripts are not as they were")
    return found[1]


# What the launcher says


def _jvm_options(java: JavaHome, home: Path, conf: Mapping[str, str], environment: dict[str, str]) -> list[str] | None:
    """Java's own arguments, class path included; None where the launcher wants something that is not an argument."""
    relevant = {key: value for key, value in conf.items() if key.startswith(_SETTINGS)}
    file = user_cache() / "java" / f"launch-{_key(java, home, relevant, environment)}.json"
    answer = _kept(file)
    if answer is None:
        answer = _ask_launcher(java, home, relevant, environment)
        _keep(file, answer)
    if not answer or not answer[0].endswith("java") or _MAIN not in answer:
        return None  # refused, or with a variable that is to be set first
    return [one for one in answer[1 : answer.index(_MAIN)] if one != DROPPED]


def _ask_launcher(java: JavaHome, home: Path, conf: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Its answer, as `spark-class` would carry it out; empty where it refuses."""
    quick = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [str(java.java), *quick, "-cp", f"{home}/jars/*", _LAUNCHER, _MAIN, *_settings(conf), "pyspark-shell"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=_LAUNCHER_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise OSError("Spark's launcher does not answer") from error
    *parts, _ = done.stdout.decode().partition("\0\n")[2].split("\0")
    return parts if done.returncode == 0 else []


def _key(java: JavaHome, home: Path, conf: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Names all that an answer depends on. What it is made of may be secret, the name is not."""
    import pyspark

    defaults = conf_folder(home) / "spark-defaults.conf"
    known = [
        _VERSION, str(home), pyspark.__version__, str(java.home), java.built, sorted(conf.items()),
        sorted(item for item in environment.items() if item[0].startswith(_VARIABLES)),
        defaults.read_text(errors="replace") if defaults.is_file() else "",
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:24]


def _kept(file: Path) -> list[str] | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        body = json.loads(read_note(file) or "")
        if body["version"] == _VERSION:
            return [str(one) for one in body["command"]]
    return None


def _keep(file: Path, answer: Sequence[str]) -> None:
    """For later starts; not where it names a secret."""
    if answer and masked("\n".join(answer)) == "\n".join(answer):
        write_note(file, json.dumps({"version": _VERSION, "command": list(answer)}))


# Java itself


def _connect(command: Sequence[str], environment: Mapping[str, str]) -> Any | None:
    """Wait until Java, started now or ahead, answers; None if it ended instead."""
    from pyspark import java_gateway

    attach: Any = java_gateway.launch_gateway
    java = early.adopt(command, environment) or early.start(command, environment)
    try:
        while not java.told.exists():
            if java.process.poll() is not None:
                return None
            time.sleep(_POLL_SECONDS)
        port, length = struct.unpack(">ii", (body := java.told.read_bytes())[:8])
        with _attached(port, body[8 : 8 + length].decode()):
            gateway = attach()
    finally:
        java.forget()
    gateway.proc = java.process
    return gateway


@contextlib.contextmanager
def _attached(port: int, secret: str) -> Iterator[None]:
    """While this lasts, PySpark takes the JVM that is there."""
    os.environ[_PORT], os.environ[_SECRET] = str(port), secret
    try:
        yield
    finally:
        del os.environ[_PORT], os.environ[_SECRET]
