"""The Spark session of a job: the settings and jars that every job needs, and none that the user has set already.

PySpark puts every setting on Java's command line, where each user of the machine can read it. Secrets go by a file
instead that only its owner can read and that is gone once Java runs.

On a local disk Spark writes no checksum file (`.NAME.crc`), for which Hadoop would start processes in each batch: what
is decided is sealed in the ledger, and state files have checksums of Spark's. Those of an earlier run are kept true.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config import Checkpoints
from penstock.config.levels import LOG_LEVEL
from penstock.config.resolve import Settings
from penstock.config.state import PARTITIONS
from penstock.errors import ConfigurationError
from penstock.kafka.settings import FILE_HANDLER
from penstock.naming import user_cache
from penstock.processes import usable_cores
from penstock.secrets import is_secret, masked
from penstock.spark import executors
from penstock.spark.python_daemon import MODULE as _DAEMON
from penstock.spark.settings import apply_over_running, apply_settings, remember_defaults, warn_overridden
from penstock.storage.local import create_own
from penstock.storage.storage import local_path
from penstock.supply.jars import compiled, has_connector, is_present, jar_set
from penstock.supply.java import ClassArchive, compiler_options, find_java, wrapped_home
from penstock.supply.pack import is_shipped
from penstock.supply.versions import KAFKA_JARS, installed_text, installed_version, warn_if_untried

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
_LOGGING = "LOG4J_CONFIGURATION_FILE"
_SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"  # Spark adds it to the driver's Java options
_CLASS_PATH = "SPARK_DIST_CLASSPATH"  # Spark adds it at the end of its class path
_LAUNCHER_OPTIONS = "SPARK_LAUNCHER_OPTS"  # for the JVM that only puts the driver's command line together
_QUIET = Path(__file__).with_name("log4j2.properties")
#: Where users give options to Java.
_JAVA_VARIABLES = (_ARGUMENTS, "SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_PROGRESS = "spark.ui.showConsoleProgress"
CHECKSUM_FILES = "spark.penstock.checksum-files"
"""`false`, as it is in a session of ours: Spark writes none. In all others nothing is changed."""

_KAFKA_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_KAFKA_NAME = "spark-sql-kafka-0-10"
#: Where users name jars of their own, and which settings show that they have some, or an order of class paths.
_NAMED = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_SIGNS = ("spark.jars", "spark.driver.userClassPathFirst")

#: Why each: see docs/reference/settings.md.
DEFAULTS: Mapping[str, str] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.python.worker.reuse": "true",
    # It puts partitions of a shuffle together by sizes and cores, so that a replay is dealt out to other writers.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    _PROGRESS: "false",
}


def session(
    name: str,
    *,
    conf: Mapping[str, str],
    jars: Iterable[str],
    local_storage: bool,
    file: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session if there is one, otherwise a new one. `conf` is the user's and wins over everything here;
    so does whatever spark-submit, spark-defaults or a running session says. `file` is from a configuration file: it
    gives way to spark-submit, and wins over defaults."""
    asked = {**(file or {}), **conf}
    executors.refuse_connect(remote=asked.get("spark.remote"))
    from pyspark.sql import SparkSession

    # A worker must be this very interpreter, or it lacks the packages the job imports.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    warn_if_untried(installed_text())
    running = running_session()
    if running is None:
        executors.require_known(asked.get("spark.master", "local"))
        os.environ["JAVA_HOME"] = str(find_java().home)
        sets = sets_to_bring(jars)
        existing = _existing_settings(asked, jars=() if brings_jars(asked) else sets)
        wanted = {**_uncontested(file or {}, existing), **conf}
        if not existing.contains("spark.master") and "spark.master" not in wanted:
            wanted["spark.master"] = "local[*]"
        master = wanted.get("spark.master", existing.get("spark.master")) or ""
        defaults = _defaults(master, local_storage)
        defaults = {key: defaults[key] for key in defaults if not existing.contains(key) and key not in wanted}
        wanted.update(defaults)
        paths = paths_to_give(sets, master, lambda key: wanted.get(key, existing.get(key)) or "")
        if paths:
            listed = wanted.get("spark.jars", existing.get("spark.jars", ""))
            wanted["spark.jars"] = ",".join(filter(None, [listed or "", *paths]))
        builder = SparkSession.builder.appName(name)
        for key, value in wanted.items():
            builder = builder.config(key, value)
        executors.require_answer(master)
        with executors.cluster_errors(master):
            running = builder.getOrCreate()
        remember_defaults(running, {key: value for key, value in defaults.items() if key == PARTITIONS})
        running.sparkContext.setLogLevel(asked.get(LOG_LEVEL, "ERROR"))
    ensure_jars(running, jars)
    return running


class JobSession:
    """A job's session, made when first needed, with what the job's settings ask of it. `spark`: the user's own session,
    which then counts."""

    def __init__(self, name: str, settings: Settings, checkpoints: Checkpoints, spark: SparkSession | None) -> None:
        self._name, self._settings, self._checkpoints, self._spark = name, settings, checkpoints, spark
        if spark is not None:
            executors.refuse_connect(spark)
            apply_over_running(spark, settings)

    def get(self, conf: Mapping[str, str] | None = None, jars: Iterable[str] = ()) -> SparkSession:
        """The session, with these jars. `conf` counts only where it is made now."""
        jars = tuple(jars)
        if self._spark is None:
            running = running_session()
            self._spark = session(
                self._name,
                conf={**(conf or {}), **self._settings.spark},
                jars=jars,
                local_storage=local_path(self._checkpoints.storage) is not None,
                file=self._settings.spark_file,
            )
            if running is not None:
                apply_over_running(running, self._settings)
        # Each time: another job may have set something else meanwhile.
        apply_settings(self._spark, self._settings.derived_spark)
        ensure_jars(self._spark, jars)
        return self._spark

    def require_shared(self) -> None:
        """Raise where executors could not see the checkpoint storage."""
        executors.require_shared(self._checkpoints.storage, self.get(), is_shared=self._checkpoints.storage_is_shared)


def running_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    # "Active" is a matter of threads; in another one the session that was made first is still there.
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


def _existing_settings(conf: Mapping[str, str], *, jars: Sequence[str] = ()) -> SparkConf:
    """From the user, spark-submit or spark-defaults. Only the JVM knows them all, so it is started here, with the
    user's settings, of which some count only then, and `jars` on its class path."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    # Started from here, Spark takes itself for a shell and would turn its progress bar on.
    wanted = {_PROGRESS: DEFAULTS[_PROGRESS], **conf}
    paths = [str(path) for name in jars for path in jar_set(name)] if SparkContext._gateway is None else []
    classes = class_archive(conf, jars) if SparkContext._gateway is None else None
    try:
        _start_java(wanted, paths, classes)
    except PySparkRuntimeError:
        if classes is None or not classes.java_options():
            raise
        classes.distrust()
        _start_java(wanted, paths, None)
    return SparkConf()


def _start_java(conf: Mapping[str, str], jars: Sequence[str], classes: ClassArchive | None) -> None:
    from pyspark import SparkConf, SparkContext

    with java_environment(conf, jars, classes.java_options() if classes is not None else ()) as plain:
        SparkContext._ensure_initialized(conf=SparkConf().setAll(list(plain.items())))


def class_archive(conf: Mapping[str, str], jars: Sequence[str]) -> ClassArchive | None:
    """None where classes may come from a folder: Java makes no archive of such a class path."""
    folder = conf_folder()
    if _GATEWAY_PORT in os.environ or (folder.is_dir() and any(folder.iterdir())):
        return None
    return ClassArchive(find_java(), _spark_home(), _java_options(conf), jars)


def _java_options(conf: Mapping[str, str]) -> list[str]:
    texts = [os.environ.get(name, "") for name in _JAVA_VARIABLES] + [conf.get(name, "") for name in _OPTIONS]
    return " ".join(texts).split()


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def conf_folder() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or _spark_home() / "conf")


def _uncontested(file: Mapping[str, str], existing: SparkConf) -> dict[str, str]:
    settings = {}
    for key, value in file.items():
        current = existing.get(key)
        if current is None or current == value:
            settings[key] = value
        else:
            warn_overridden(key, value, current)
    return settings


def _defaults(master: str, local_storage: bool) -> dict[str, str]:
    defaults = dict(DEFAULTS)
    if executors.is_local(master):  # the shuffle partitions of a cluster are its owner's business
        inside = master.partition("[")[2].rstrip("]").partition(",")[0]
        cores = usable_cores() if inside == "*" else int(inside) if inside.isdigit() else 1
        # 200 shuffle partitions, Spark's default, are 200 state stores and 200 tasks an epoch on one machine.
        defaults[PARTITIONS] = str(cores)
    if executors.runs_here(master):
        defaults["spark.ui.enabled"] = "false"
        defaults["spark.driver.host"] = "127.0.0.1"
        defaults["spark.driver.bindAddress"] = "127.0.0.1"
    if executors.runs_here(master) or is_shipped():
        # Workers that are processes of this machine, or come out of our archive, can import what the job can. Elsewhere
        # one that cannot would fail before it could be asked what it lacks.
        defaults["spark.python.daemon.module"] = _DAEMON
    if local_storage:
        # The other manager starts a `readlink` process for every file it renames.
        defaults[_FILE_MANAGER] = installed_version().class_name("FileSystemBasedCheckpointFileManager")
        defaults[CHECKSUM_FILES] = "false"
    return defaults


@contextmanager
def java_environment(
    conf: Mapping[str, str], jars: Sequence[str] = (), options: Sequence[str] = ()
) -> Iterator[dict[str, str]]:
    """Set Java's environment while it starts, with `options` for it and `jars` at the end of its class path, and yield
    the settings that may stand on its command line. Where Java runs already, as under spark-submit, nothing changes."""
    if _GATEWAY_PORT in os.environ:
        yield dict(conf)
        return
    # Options of Java's own end on its command line in any case, and are needed there.
    kept = [(key, value) for key, value in conf.items() if key not in _OPTIONS]
    secret = {key: value for key, value in kept if is_secret(key) or masked(value) != value}
    plain = {key: value for key, value in conf.items() if key not in secret}
    changed = (_ARGUMENTS, _LOGGING, "JAVA_HOME", _SUBMIT_OPTIONS, _LAUNCHER_OPTIONS, _CLASS_PATH)
    before = {name: os.environ.get(name) for name in changed}
    folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))  # made with mode 0700
    try:
        os.environ["JAVA_HOME"] = str(_quiet_java())
        if not _has_own_logging(conf):
            os.environ[_LOGGING] = _QUIET.as_uri()
        os.environ.setdefault(_LAUNCHER_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        options = [os.environ.get(_SUBMIT_OPTIONS, ""), *options, *compiler_options(_java_options(conf))]
        os.environ[_SUBMIT_OPTIONS] = " ".join(filter(None, options))
        if jars:
            os.environ[_CLASS_PATH] = ":".join(filter(None, [os.environ.get(_CLASS_PATH, ""), *jars]))
        arguments = os.environ.get(_ARGUMENTS) or "pyspark-shell"
        if secret and "--properties-file" not in arguments:  # there can be one; then Spark gets them once Java runs
            file = folder / "spark.properties"
            with open(create_own(file), "w", encoding="utf-8") as opened:
                opened.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in secret.items())
            os.environ[_ARGUMENTS] = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults {arguments}"
        yield plain
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _quiet_java() -> Path:
    """A Java that is not asked for a module still in incubation, of which it would warn each time."""
    home = find_java().home
    try:
        return wrapped_home(home, user_cache())
    except OSError:
        return home  # nowhere to write: it warns


def _has_own_logging(conf: Mapping[str, str]) -> bool:
    if _LOGGING in os.environ or any("log4j" in option for option in _java_options(conf)):
        return True
    folder = conf_folder()
    defaults = folder / "spark-defaults.conf"
    try:
        return any(folder.glob("log4j2*.*")) or (defaults.is_file() and "log4j" in defaults.read_text(errors="replace"))
    except OSError:
        return False


def _escaped(text: str) -> str:
    marks = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", " ": "\\ ", "=": "\\=", ":": "\\:"}
    return "".join(marks.get(letter, letter) for letter in text)


def apply_checksum_files(spark: SparkSession) -> None:
    """Have Hadoop write checksum files, or none, as the session's settings say."""
    if spark.conf.get(CHECKSUM_FILES, "true") != "false":
        return
    jvm: Any = spark._jvm
    where = jvm.java.net.URI("file:///")
    # Hadoop keeps this object, and Spark's own classes use it, too.
    jvm.org.apache.hadoop.fs.FileSystem.get(where, spark._jsc.hadoopConfiguration()).setWriteChecksum(False)


# Jars


def sets_to_bring(jars: Iterable[str]) -> list[str]:
    """The sets among `jars` that can be had. A connector that the lock lacks may be in Spark's own folder; the session
    shows whether it is."""
    return [jar for jar in jars if (has_connector() if jar == KAFKA_JARS else is_present(jar))]


def brings_jars(conf: Mapping[str, str]) -> bool:
    """Whether the user has jars, which may be another version of the same connector. Those must win over ours: they do
    where ours are given to Spark, and not where ours are on the class path. True under spark-submit: its Java runs
    already, and a container of YARN has no folder of Spark's to look into."""
    by_submit = _GATEWAY_PORT in os.environ or bool(os.environ.get(_ARGUMENTS))
    if by_submit or any(key.startswith(_SIGNS) for key in conf):
        return True
    defaults = conf_folder() / "spark-defaults.conf"
    try:
        return defaults.is_file() and any(key in defaults.read_text(errors="replace") for key in _SIGNS)
    except OSError:
        return True


def paths_to_give(sets: Sequence[str], master: str, setting: Callable[[str], str]) -> list[str]:
    """The jars that Spark is given once Java runs: not what the user has named, nor what is on the class path of a
    driver that runs tasks itself."""
    named = " ".join(map(setting, _NAMED))
    paths = [str(path) for jar in sets if not _is_brought(jar, named) for path in jar_set(jar)]
    return _not_on_class_path(paths) if executors.runs_tasks_itself(master) else paths


def ensure_jars(spark: SparkSession, sets: Iterable[str]) -> None:
    """Add the jars to a running session that lacks them: under spark-submit, and where a job adds a source later."""
    if KAFKA_JARS in sets and not _loads(spark._jvm, _KAFKA_CLASS):
        _add(spark, jar_set(KAFKA_JARS))


def ensure_login(spark: SparkSession, handler: str) -> None:
    """Have Spark's Kafka clients find the class that logs them in. `ConfigurationError` where the user has to bring
    it."""
    if handler == FILE_HANDLER:
        ensure_files(spark, [compiled("penstock.kafka", "TokenFileLogin", [KAFKA_JARS])])
    elif handler and not _loads(spark._jvm, handler):
        raise ConfigurationError(
            f"Spark's Kafka clients log in with {handler}, and its JVM has no such class.",
            to_do="add its jar to spark.jars, or its package to spark.jars.packages; for MSK IAM,"
            " software.amazon.msk:aws-msk-iam-auth:2.3.9, or its jar that ends in -all.jar.",
        )


def ensure_files(spark: SparkSession, jars: Iterable[Path]) -> None:
    there = str(spark.sparkContext._jsc.sc().listJars().mkString(","))
    _add(spark, [jar for jar in jars if jar.name not in there])


def _is_brought(jars: str, named: str) -> bool:
    """By the user, in a setting or with spark-submit: a container of the cluster may have no cache to fill."""
    from pyspark import SparkContext

    if jars != KAFKA_JARS:
        return False
    return _KAFKA_NAME in named or (_GATEWAY_PORT in os.environ and _loads(SparkContext._jvm, _KAFKA_CLASS))


def _not_on_class_path(paths: Sequence[str]) -> list[str]:
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    there = set(str(jvm.java.lang.System.getProperty("java.class.path")).split(os.pathsep))
    return [path for path in paths if path not in there]


def _loads(jvm: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        _loader(jvm).loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _add(spark: SparkSession, jars: Iterable[Path]) -> None:
    jvm: Any = spark._jvm
    loader = _loader(jvm)
    for jar in jars:
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())  # for the driver: where it is listed, it is loaded
        spark.sparkContext._jsc.addJar(str(jar))  # for the executors


def _loader(jvm: Any) -> Any:
    return jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
