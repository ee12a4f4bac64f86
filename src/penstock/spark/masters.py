"""Where the tasks of a job run, on this machine or on a cluster, by Spark's master; and why not over Connect."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import ClusterUnavailable, ConfigurationError, ConnectUnsupported, StorageNotShared
from penstock.storage.local import is_own_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STANDALONE = re.compile(r"^spark://(?P<hosts>[^/]+)$")
_DEFAULT_PORT = 7077
_ANSWER_SECONDS = 10.0  # a master that is just being restarted is back by then
_CONNECT_SECONDS = 3.0
_POLL_SECONDS = 0.25
_NO_MASTER = re.compile(r"All masters are unresponsive|Master removed our application|error from cluster scheduler")
_BAD_MASTER = re.compile(r"Could not parse Master URL|Invalid master URL")


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
    raise StorageNotShared(
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
            raise ClusterUnavailable(
                f"No Spark master answers at {master}.",
                safe="nothing was started; what an earlier run has decided is kept.",
                to_do="start the master, or correct --master.",
            )
        time.sleep(_POLL_SECONDS)


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
            raise ClusterUnavailable(
                f"The Spark master at {master} does not take the job: it is down, hung, or of another Spark version.",
                safe="nothing was started; what an earlier run has decided is kept.",
                to_do="see the master's page and log; it must run the Spark version of this PySpark.",
            ) from error
        raise


def _unknown(master: str) -> ConfigurationError:
    return ConfigurationError(
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


def _refusal(happened: str) -> ConnectUnsupported:
    return ConnectUnsupported(
        f"{happened} Over Connect the driver is another process, which a client can neither ask for an epoch's"
        " positions and watermark nor hold at an epoch's end; so nothing could be promised.",
        to_do="write the query with df.writeStream.format('penstock'), which works over Connect: see"
        " docs/how-to/connect.md. Or run the job where the driver runs: with the whole pyspark package and a master"
        " (local[4], spark://…, yarn), by penstock run or spark-submit, and without SPARK_REMOTE.",
    )
