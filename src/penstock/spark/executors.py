"""Where the tasks of a job run, on this machine or on a cluster, by Spark's master; and why not over Connect.

Whether the executors of a cluster can do a job's work is asked by a small job before the first query starts. Those that
come later and differ are named when they fail, by the text of Spark's stack trace.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import ipaddress
import logging
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.deadline import beside
from penstock.storage.local import is_own_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock")

_GROUP = "penstock-executors"
_WAIT_SECONDS = 30.0  # a free worker starts an executor in 5 to 10 seconds, and in 20 on a busy machine
_POLL_SECONDS = 0.05
_ROUNDS = 3  # executors may register while others are being asked

_MISSING = re.compile(r"No module named '?(?P<name>\w+)|Error while finding module specification for '(?P<spec>\w+)")
#: Where a worker fails before the job's code runs: while it reads its task, or before it starts.
_READING = re.compile(r"in _read_with_length|in read_command|in read_udfs|Error from python worker|runpy\.py")
_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\]\s*(?P<message>[^\n]*)")
#: Missing, for another machine, or not executable. A lack of memory is another matter.
_PROGRAM = re.compile(r'Cannot run program "(?P<program>[^"\n]{0,500}+)"[^\n]{0,500}?(?:error=|error: )(?:2|8|13)\b')
_NO_PYTHON = re.compile(r"env: .?(?P<program>python[\d.]+).?: No such file")  # what a PEX file starts with

_SAFE = "no row was written by it, and nothing is decided."
_SHIP = (
    "ship this very environment: penstock run --master … does, and penstock pack builds the archive for spark-submit."
)
_BEGIN, _END = "penstock-task-error {", "} end-of-penstock-task-error"
_STANDALONE = re.compile(r"^spark://(?P<hosts>[^/]+)$")
_DEFAULT_PORT = 7077
_ANSWER_SECONDS = 10.0  # a master that is just being restarted is back by then
_CONNECT_SECONDS = 3.0
_ASK_SECONDS = 0.25
_NO_MASTER = re.compile(r"All masters are unresponsive|Master removed our application|error from cluster scheduler")
_BAD_MASTER = re.compile(r"Could not parse Master URL|Invalid master URL")


@dataclass(frozen=True)
class Worker:
    """What one Python worker reports; `missing` is a module that it cannot import, with the reason."""

    host: str
    python: str
    version: str | None
    missing: str | None


def check_executors(spark: SparkSession, version: str, modules: Sequence[str] = ()) -> list[Worker]:
    """Ask all executors, and wait for the first. `version` is the driver's Penstock; the job's sinks need `modules`.
    Raises `ExecutorMismatch`, or `ClusterUnavailable` where there are none. In local mode the workers are this very
    Python, and none is asked."""
    context: Any = spark.sparkContext
    if is_local(context.master):
        return []
    workers: list[Worker] = []
    for _ in range(_ROUNDS):
        before = _count(context)
        workers = _ask(context, modules)
        require_alike(workers, version)
        if _count(context) <= max(before, 1):
            break
    return workers


def importable(names: Iterable[str]) -> list[str]:
    """Those that this process can import, the program itself aside: executors are asked for no other."""
    modules = []
    for name in names:
        if name != "__main__":
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
                modules.append(name)
    return modules


def writer_modules(sinks: Iterable[object]) -> list[str]:
    """The modules that a worker loads for these sinks: each sink's own and, by convention, its writer's."""
    modules = {type(sink).__module__ for sink in sinks}
    return sorted(modules | {f"{name.rpartition('.')[0]}.writer" for name in modules if name.startswith("penstock.")})


def require_alike(workers: Sequence[Worker], version: str) -> None:
    """Raise `ExecutorMismatch` for the first that differs from the driver."""
    python = platform.python_version_tuple()[:2]
    for worker in workers:
        if tuple(worker.python.split(".")[:2]) != python:
            driver = platform.python_version()
            raise mismatch(f"Executors on {worker.host} run Python {worker.python}, the driver {driver}.")
        if worker.version not in (None, version):  # which is also why they lack what the driver's has
            raise mismatch(f"Executors on {worker.host} have Penstock {worker.version}, the driver {version}.")
        if worker.missing is not None:
            raise mismatch(f"Executors on {worker.host} cannot import what the job needs: {worker.missing}.")


class TaskFault(Exception):
    """Carries a Penstock error through Spark's text-only reporting of task failures."""

    def __init__(self, error: errors.PenstockError) -> None:
        super().__init__(f"{_BEGIN[:-1]}{error.to_json()}{_END[1:]}")


def fault_in(text: str) -> errors.PenstockError | None:
    """The Penstock error inside a Spark failure's text, if a task raised one, or could not even begin."""
    begin = text.find(_BEGIN)
    end = text.find(_END, begin) if begin >= 0 else -1
    if end < 0:
        return mismatch_in(text)
    with contextlib.suppress(ValueError):
        return errors.from_json(text[begin + len(_BEGIN) - 1 : end + 1])
    return None


def mismatch_in(text: str) -> errors.ExecutorMismatch | None:
    """The error that names what is wrong with an executor, if Spark's error `text` shows that something is."""
    if match := _PYTHON.search(text):
        return mismatch(f"An executor's Python is not the driver's: {match['message'].strip().rstrip('.')}.")
    match = _PROGRAM.search(text) or _NO_PYTHON.search(text)
    if match and re.search(r"python|\.pex", match["program"]):
        return mismatch(f"An executor has no Python where it was told to look for it: {match['program']}.")
    match = _MISSING.search(text)
    if match and ((name := match["name"] or match["spec"]) == "penstock" or _READING.search(text)):
        lacking = "the package penstock" if name == "penstock" else f"the module {name!r}, which the job needs"
        return mismatch(f"An executor lacks {lacking}.")
    return None


def mismatch(happened: str) -> errors.ExecutorMismatch:
    return errors.ExecutorMismatch(happened, safe=_SAFE, to_do=f"install the same on every worker, or {_SHIP}")


def _ask(context: Any, modules: Sequence[str]) -> list[Worker]:
    """One task for every core, in a thread of its own: a cluster without executors is not taken for a slow one."""
    from pyspark import InheritableThread

    def run() -> list[Worker]:
        context.setJobGroup(_GROUP, "check that executors can do the job's work", interruptOnCancel=True)
        tasks = max(context.defaultParallelism, 2)
        reports = context.parallelize(range(tasks), tasks).mapPartitions(_probe(modules)).collect()
        return [Worker(*report) for report in reports]

    asked = beside(_GROUP, run, InheritableThread)
    _await(asked, context)
    if (error := asked.exception()) is not None:
        raise mismatch_in(str(error)) or error
    return asked.result()


def _await(asked: Future[list[Worker]], context: Any) -> None:
    """Wait until the small job is done. Only a cluster that gives no executor at all is given up."""
    end = time.monotonic() + _WAIT_SECONDS
    while not wait([asked], _POLL_SECONDS).done:
        if _count(context):
            end = time.monotonic() + _WAIT_SECONDS
        elif time.monotonic() > end:
            context.cancelJobGroup(_GROUP)
            wait([asked])
            conf = context.getConf()
            cores = conf.get("spark.executor.cores", "")
            raise errors.ClusterUnavailable(
                f"The cluster at {context.master} has given the job no executor in {_WAIT_SECONDS:.0f} s; it asks for"
                f" {conf.get('spark.executor.memory', '1g')} of memory{cores and f' and {cores} cores'} each.",
                safe="nothing was started; what an earlier run has decided is kept.",
                to_do="see on the master's page whether workers are alive and have that much free; or ask for less:"
                " spark.executor.memory, spark.executor.cores, spark.cores.max.",
            )


def _count(context: Any) -> int:
    """Executors that are registered; the driver counts as one of Spark's."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1


def _probe(modules: Sequence[str]) -> Callable[[Iterator[int]], Iterator[tuple[str, str, str | None, str | None]]]:
    """The function of the tasks. It travels whole, and needs nothing of ours where it runs."""

    def probe(rows: Iterator[int]) -> Iterator[tuple[str, str, str | None, str | None]]:
        import importlib
        import platform
        import socket

        version, missing = None, None
        try:
            version = importlib.import_module("penstock").__version__
            for name in modules:
                importlib.import_module(name)
        except Exception as error:
            missing = f"{type(error).__name__}: {error}"
        yield socket.gethostname(), platform.python_version(), version, missing

    return probe


def is_local(master: str) -> bool:
    """Whether driver and tasks are one process tree: `local[4]`, and `local-cluster[…]`, too."""
    return master.startswith("local")


def runs_tasks_itself(master: str | None) -> bool:
    """Whether tasks run in the driver's JVM, and so find what is on its class path, and its machine's files."""
    return master == "local" or (master or "").startswith("local[")


def runs_here(master: str) -> bool:
    """Whether all tasks run on this machine. Only workers of this machine can reach a master on its loopback."""
    return is_local(master) or (bool(hosts := _hosts(master)) and all(_is_loopback(host) for host, _ in hosts))


def require_shared(location: str, spark: SparkSession, *, is_shared: bool) -> None:
    """Refuse checkpoints on a disk of this machine where tasks run on others: each would keep its state on its own."""
    master = str(spark.sparkContext.master)
    if is_shared or runs_here(master) or not is_own_disk(location, spark):
        return
    raise errors.StorageNotShared(
        f"Checkpoints go to {location}, which is another folder on each machine, and the tasks run on other machines"
        f" ({master}): driver and executors would not see each other's files.",
        safe="nothing was started.",
        to_do="keep checkpoints on HDFS or S3; or, where that path is the same mounted folder on the driver and on all"
        " workers, say execution.checkpointing.storage-is-shared=true.",
    )


def require_known(master: str) -> None:
    """Refuse what Spark does not accept as a master before Java is started: it would end with a stack trace."""
    if master != "yarn" and not master.startswith(("spark", "k8s", "local")):
        raise _unknown(master)


def require_answer(master: str) -> None:
    """Wait a moment for a standalone master to answer, else `ClusterUnavailable`. Other masters are not asked."""
    hosts = _hosts(master)
    if not hosts:
        return
    end = time.monotonic() + _ANSWER_SECONDS
    while not any(_connects(*host) for host in hosts):
        if time.monotonic() > end:
            raise errors.ClusterUnavailable(
                f"No Spark master answers at {master}.",
                safe="nothing was started; what an earlier run has decided is kept.",
                to_do="start the master, or correct --master.",
            )
        time.sleep(_ASK_SECONDS)


@contextlib.contextmanager
def cluster_errors(master: str) -> Iterator[None]:
    """Turn what Spark raises when it cannot join the cluster into errors that say so."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if _BAD_MASTER.search(text):
            raise _unknown(master) from error
        if _NO_MASTER.search(text):
            raise errors.ClusterUnavailable(
                f"The Spark master at {master} does not take the job: it is down, hung, or of another Spark version.",
                safe="nothing was started; what an earlier run has decided is kept.",
                to_do="see the master's page and log; it must run the Spark version of this PySpark.",
            ) from error
        raise


def _unknown(master: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"Spark knows no master such as {master!r}.", to_do="write local[4], spark://HOST:PORT or yarn."
    )


def _hosts(master: str) -> list[tuple[str, int]]:
    match = _STANDALONE.match(master)
    hosts = []
    for address in match["hosts"].split(",") if match else ():
        has_port = ":" in address and not address.endswith("]")
        host, _, port = address.rpartition(":") if has_port else (address, "", "")
        hosts.append((host.strip("[]"), int(port) if port.isdecimal() else _DEFAULT_PORT))
    return hosts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def refuse_connect(session: Any = None, remote: str | None = None) -> None:
    """Raise where `session` is one of Connect, or PySpark is asked for one (by `remote`) or can make no other."""
    if session is not None:
        if type(session).__module__.startswith("pyspark.sql.connect"):
            raise _refusal("The session is a Spark Connect session.")
        return
    if remote or os.environ.get("SPARK_REMOTE") or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        raise _refusal("Spark Connect is asked for, by spark.remote or SPARK_REMOTE.")
    if importlib.util.find_spec("py4j") is None:
        raise _refusal("PySpark is installed without py4j, as pyspark-client is: it can only speak Spark Connect.")


def _refusal(happened: str) -> errors.ConnectUnsupported:
    return errors.ConnectUnsupported(
        f"{happened} Over Connect the driver is another process, which a client can neither ask for an epoch's"
        " positions and watermark nor hold at an epoch's end; so nothing could be promised.",
        to_do="write the query with df.writeStream.format('penstock'), which works over Connect: see"
        " docs/how-to/connect.md. Or run the job where the driver runs: with the whole pyspark package and a master"
        " (local[4], spark://…, yarn), by penstock run or spark-submit, and without SPARK_REMOTE.",
    )
