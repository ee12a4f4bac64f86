"""A start on a cluster that is not as the job needs it: a named error, or a wait that ends when the cause is gone. And
a start whose executors have nothing but what is shipped to them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from penstock import processes
from penstock.dev.kafka import free_port
from penstock.naming import user_cache
from penstock.spark.python_daemon import MODULE
from tests.support.cluster_chaos import CONF, EXECUTOR_MEMORY
from tests.support.environments import another_python
from tests.support.fault_case import SCRIPT, Case
from tests.support.processes import JobProcess, command
from tests.support.servers.spark import SparkCluster, SparkWorker
from tests.support.supervised import MAIN
from tests.support.waiting import until

pytestmark = pytest.mark.long

PATIENCE = 150.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Its workers have no more memory than one small executor needs."""
    with SparkCluster.start(tmp_path_factory.mktemp("spark"), workers=1, memory=EXECUTOR_MEMORY) as started:
        yield started


@pytest.fixture
def on(case: Callable[..., Case]) -> Callable[..., Case]:
    def make(master: str, **conf: str) -> Case:
        return case(master=master, conf={**CONF, **conf}, restarts=1000)

    return make


def refused(run: JobProcess, error: str, *said: str) -> None:
    """It ends by itself, with that error, and has written nothing."""
    assert run.wait(PATIENCE) != 0
    log = run.log.read_text(errors="replace")
    assert f"penstock.errors.{error}: " in log, run.tail()
    for text in said:
        assert text in log, run.tail()
    assert not run.events("decided")


def test_a_master_that_is_down(on: Callable[..., Case]) -> None:
    one = on(f"spark://127.0.0.1:{free_port()}")
    refused(one.start(), "ClusterUnavailable", "No Spark master answers at spark://127.0.0.1:")


def test_an_address_that_is_no_master(on: Callable[..., Case]) -> None:
    refused(on("sparc://127.0.0.1:7077").start(), "ConfigurationError", "knows no master such as 'sparc:")


def test_workers_without_memory_are_waited_for(on: Callable[..., Case], cluster: SparkCluster, tmp_path: Path) -> None:
    one = on(cluster.url, **{"spark.executor.memory": "600m"})
    one.source.feed(100)
    run = one.start()
    until(lambda: "has given the job no executor" in run.log.read_text(errors="replace"), run.tail, PATIENCE)
    assert run.status is None
    assert not run.events("decided")
    with SparkWorker.start(tmp_path / "larger", cluster.master, memory="600m"):
        one.wait_visible(run, PATIENCE)
        one.finish(run)


@pytest.mark.parametrize(("daemon", "said"), [(MODULE, "lacks the package"), ("pyspark.daemon", "cannot import what")])
def test_executors_without_the_package(
    on: Callable[..., Case], cluster: SparkCluster, tmp_path: Path, daemon: str, said: str
) -> None:
    """With Penstock's daemon, which such a Python cannot even start, and with Spark's, which lives to be asked."""
    one = on(cluster.url, **{"spark.python.daemon.module": daemon})
    refused(one.start(PYSPARK_PYTHON=bare(sys.executable, tmp_path)), "ExecutorMismatch", said, "penstock pack")


def test_executors_with_another_python(on: Callable[..., Case], cluster: SparkCluster, tmp_path: Path) -> None:
    other = another_python()
    if other is None:
        pytest.skip("this machine has one Python only")
    one = on(cluster.url, **{"spark.python.daemon.module": "pyspark.daemon"})
    refused(one.start(PYSPARK_PYTHON=bare(other, tmp_path)), "ExecutorMismatch", "not the driver's", "penstock pack")


def bare(python: str, folder: Path) -> str:
    """A program that starts that interpreter with nothing but PySpark."""
    libraries = folder / "libraries"
    libraries.mkdir()
    for name in ("pyspark", "py4j"):
        (libraries / name).symlink_to(Path(pyspark.__file__).parents[1] / name)
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={libraries} exec {python} -S "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_executors_with_another_version(on: Callable[..., Case], cluster: SparkCluster, tmp_path: Path) -> None:
    package = tmp_path / "older" / "penstock"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.0.9"\n')
    conf = {
        "spark.executorEnv.PYTHONPATH": str(package.parent),
        "spark.python.daemon.module": "pyspark.daemon",
    }
    refused(on(cluster.url, **conf).start(), "ExecutorMismatch", "have Penstock 0.0.9, the driver ")


def test_a_python_that_is_not_there(on: Callable[..., Case], cluster: SparkCluster) -> None:
    run = on(cluster.url).start(PYSPARK_PYTHON="/nowhere/bin/python3")
    refused(run, "ExecutorMismatch", "has no Python where it was told to look for it: /nowhere/bin/python3")


def test_executors_run_out_of_what_is_shipped(on: Callable[..., Case], cluster: SparkCluster, tmp_path: Path) -> None:
    """`penstock run --master … --pack`: the package and client libraries come from the archive."""
    one = on(cluster.url, **{"spark.executorEnv.PYTHONPATH": ""})  # else they would find the package where we do
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jars").symlink_to(user_cache() / "jars")
    one.source.feed(100)
    config = one.config.write(one.folder / "config.json")
    arguments = [MAIN, "run", "--no-supervise", "--master", cluster.url, "--pack", str(SCRIPT), str(config)]
    with JobProcess(Path("-c"), arguments, one.folder, environment={"PENSTOCK_CACHE": str(cache)}) as run:
        one.wait_visible(run, 2 * PATIENCE)
        worker = cluster.workers[0].pid
        daemons = [text for pid in processes.session_members(worker) if "daemon" in (text := command(pid))]
        assert daemons
        assert all("/.pex/" in text for text in daemons), daemons
        one.finish(run)
    [archive] = (cache / "packs").glob("*/penstock-env.pex")
    assert archive.stat().st_size > 0
