"""Rows through `LaneWriter` in tasks of Spark's real-time mode, killed wherever it hurts: none lost, none twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
import zipfile
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from penstock.contracts.lanes import Lane, Mark
from penstock.contracts.sink import SinkScope
from penstock.processes import session_members
from penstock.sinks.kafka import KafkaSink
from penstock.supply.versions import installed_version
from tests.support import kafka
from tests.support.jobs.lanes import QUERY
from tests.support.lane_traces import follow
from tests.support.proxy import END_TXN, Proxy
from tests.support.servers.broker import Broker
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(installed_version().minor < (4, 2), reason="real-time mode is new in Spark 4.2")

PARTITIONS = 2


class Process:
    """`tests.support.jobs.lanes` in a session of its own: one query after the other, and what it says of the newest."""

    def __init__(self, trace: Path) -> None:
        self._said: list[dict[str, Any]] = []
        self._errors: list[str] = []
        self._run = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.jobs.lanes", str(trace)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2], start_new_session=True,
        )  # fmt: skip
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._hear)]
        for thread in self._threads:
            thread.start()

    def begin(self, asked: dict[str, Any]) -> None:
        self._run += 1
        self._send({**asked, "run": self._run})

    def wait(self, *what: str, seconds: float = 120) -> dict[str, Any]:
        """The first of these that it says."""

        def found() -> dict[str, Any] | None:
            for line in self.said:
                if line["what"] in what:
                    return line
            ended = self._process.poll()
            assert ended is None or any(thread.is_alive() for thread in self._threads), "".join(self._errors)[-3000:]
            return None

        return until(found, lambda: f"{what}; it said {self.said}, {''.join(self._errors)[-3000:]}", seconds)

    def stop(self) -> dict[str, Any]:
        self._send({"stop": self._run})
        return self.wait("stopped")

    def release(self) -> bool:
        """End its query, if one runs. False where the process is of no further use."""
        if self._process.poll() is not None or self.jvm_is_gone():
            return False
        self.resume()
        if not self.ended():
            self._send({"stop": self._run})
        self.wait("stopped", "failed")
        return True

    @property
    def said(self) -> list[dict[str, Any]]:
        return [line for line in self._said if line.get("run") == self._run]

    def ended(self) -> bool:
        return self._process.poll() is not None or any(line["what"] in ("failed", "stopped") for line in self.said)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for one in session_members(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, number)

    def jvm_is_gone(self) -> bool:
        return self._process.poll() is not None or session_members(self._process.pid) == [self._process.pid]

    def kill(self) -> None:
        """With its JVM, and whatever state they are in."""
        self._signal(signal.SIGKILL)
        self._process.wait(30)
        for thread in self._threads:
            thread.join(30)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _send(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._said.append(json.loads(line))

    def _hear(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)


class Pool:
    """Processes for the queries of all tests: most only end a query, and the next one begins in the same session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: list[Process] = []
        self._new: list[Process] = []
        self._idle: list[Process] = []

    def prepare(self) -> None:
        """Start a process that will be needed, beside what the test does."""
        self._new.append(Process(self.folder / f"p{len(self._all)}"))
        self._all.append(self._new[-1])

    def take(self, *, new: bool) -> Process:
        if self._idle and not new:
            return self._idle.pop()
        if not self._new:
            self.prepare()
        return self._new.pop(0)

    def give_back(self, process: Process) -> None:
        if process.release():
            self._idle.append(process)
        else:
            process.kill()

    def close(self) -> None:
        for process in self._all:
            process.kill()


class Lab:
    """A source with numbered rows, a sink, and starts of a query between them."""

    def __init__(self, servers: str, pool: Pool) -> None:
        self.servers, self.pool, self.uid = servers, pool, uuid.uuid4().hex[:8]
        self.source = kafka.create_topic(servers, PARTITIONS, prefix="in")
        self.sink = kafka.create_topic(servers, PARTITIONS, prefix="out")
        self.input = kafka.Input(servers, self.source)
        self.generation = 0
        self.started: list[Process] = []

    def start(self, **more: Any) -> Process:
        """A query in a process of its own as long as it runs; one that meets a failpoint in a new one."""
        self.generation += 1
        asked = {
            "servers": self.servers, "source": self.source, "sink": self.sink, "uid": self.uid,
            "generation": self.generation, "partitions": PARTITIONS,
        }  # fmt: skip
        process = self.pool.take(new="failpoint" in more)
        self.started.append(process)
        process.begin({**asked, **more})
        return process

    def values(self) -> list[str]:
        return [row.value().decode() for row in kafka.read_committed(self.servers, self.sink)]

    def expected(self, several: bool = False) -> list[str]:
        if not several:
            return [row.value for row in self.input.rows]
        return [f"{row.value} {k}" for row in self.input.rows if row.id % 7 != 3 for k in range(row.id % 4)]

    def wait_visible(self, several: bool = False, seconds: float = 90) -> None:
        wanted = len(self.expected(several))
        until(lambda: len(self.values()) >= wanted, f"{wanted} rows", seconds, every=0.3)

    def assert_exact(self, several: bool = False) -> None:
        found, wanted = Counter(self.values()), Counter(self.expected(several))
        lost, doubled = wanted - found, found - wanted
        assert not lost, f"{lost.total()} rows are lost, such as {list(lost)[:3]}"
        assert not doubled, f"{doubled.total()} rows are there twice, such as {list(doubled)[:3]}"
        order: dict[str, list[tuple[int, str]]] = {}
        for row in kafka.read_committed(self.servers, self.sink):
            body, _, k = row.value().decode().partition("} ")
            number = json.loads(body if body.endswith("}") else body + "}")["number"]
            order.setdefault(row.key().decode(), []).append((number, k))
        assert all(rows == sorted(rows) for rows in order.values()), "the order of a key's rows has changed"

    def words(self) -> Counter[str]:
        """How often each word is in the traces, which are all paths of the model. A process may have died in a line."""
        found: Counter[str] = Counter()
        for path in sorted(self.pool.folder.glob(f"*.{self.source}-*")):
            *lines, _ = path.read_text().split("\n")
            assert follow(lines) is None, (path.name, follow(lines))
            found.update(line.split()[0] for line in lines)
        return found

    def close(self) -> None:
        for process in self.started:
            self.pool.give_back(process)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tmp_path_factory.mktemp("lanes"))
    for _ in range(2):  # as many as the tests need at a time
        made.prepare()
    yield made
    made.close()


@pytest.fixture
def lab(broker: Broker, pool: Pool) -> Iterator[Lab]:
    made = Lab(broker.servers, pool)
    yield made
    made.close()


def test_the_jar_is_that_of_the_source() -> None:
    [jar] = KafkaSink("t", servers="h:1").lane_jars()
    source = resources.files("penstock.sinks.kafka").joinpath("LaneWriter.java").read_bytes()
    with zipfile.ZipFile(jar) as opened:
        assert f"Source-SHA-256: {sha256(source).hexdigest()}" in opened.read("META-INF/MANIFEST.MF").decode()
        assert "penstock/sinks/kafka/LaneWriter.class" in opened.namelist()


MILLISECOND = 1_000_000


@pytest.fixture
def writer(session: Any) -> Any:
    """The class itself, in the JVM of this process."""
    java = session._jvm
    [jar] = KafkaSink("t", servers="h:1").lane_jars()
    urls = session.sparkContext._gateway.new_array(java.java.net.URL, 1)
    urls[0] = java.java.net.URI(jar.resolve().as_uri()).toURL()
    loader = java.java.net.URLClassLoader(urls, java.java.lang.Thread.currentThread().getContextClassLoader())
    found = java.java.lang.Class.forName("penstock.sinks.kafka.LaneWriter", True, loader)
    methods = {method.getName(): method for method in found.getMethods()}

    def call(name: str, *given: int) -> int:
        boxed = session.sparkContext._gateway.new_array(java.java.lang.Object, len(given))
        for place, number in enumerate(given):
            boxed[place] = java.java.lang.Long.valueOf(str(number))
        return int(methods[name].invoke(None, boxed))

    return call


def slices(writer: Any, commits: list[int], every: int = 20) -> list[int]:
    """How long each slice is open for rows, in milliseconds, when commits take so long and rows come all the time."""
    now = usual = 0
    found = []
    for took in (took * MILLISECOND for took in commits):
        began, opened = now, now + took  # the commit, then a row that waits for it
        usual = writer("usual", usual, took)
        now = writer("due", began, opened, usual, every * MILLISECOND)
        found.append((now - opened) // MILLISECOND)
    return found


def test_rows_have_their_time_where_commits_are_slow(writer: Any) -> None:
    """With slices of a few milliseconds between commits of half a second, rows came slower than they were written."""
    assert slices(writer, [5] * 20)[-1] == 15, "every interval"
    assert slices(writer, [10] * 20)[-1] == 10
    assert slices(writer, [500] * 20)[-1] >= 240, "half as long as a commit"
    assert max(slices(writer, [5, 90_000, 5, 5, 5, 5, 5])) <= 250, "an outage is no usual commit"
    assert slices(writer, [5, 90_000, *[5] * 20])[-1] == 15


def test_rows_pass_and_a_stop_leaves_nothing_open(lab: Lab) -> None:
    lab.input.feed(500)
    process = lab.start()
    lab.wait_visible()
    lab.input.feed(100)
    lab.wait_visible()
    stopped = process.stop()
    assert sum(offset for offset, _ in stopped["marks"].values()) == 600
    lab.assert_exact()
    kafka.assert_nothing_open(lab.servers, f"lanes:{lab.uid}:")


POINTS = ("lane.initialised", "lane.opened", "lane.sent@7", "lane.mark.sent@2", "lane.committed@3")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "several",
    # Marks lie behind a source row, or within one. tests/unit/engine/test_lanes_exploration.py dies at every step too,
    # and tests/faults/test_real_time_chaos.py kills the same writer at any moment.
    [pytest.param(False, id="single"), pytest.param(True, id="several")],
)
@pytest.mark.long
def test_whatever_point_of_a_lane_the_process_dies_at(lab: Lab, several: bool) -> None:
    lab.input.feed(200)
    for point in POINTS:
        process = lab.start(failpoint=f"{point}:kill", several=several)
        if point is not POINTS[-1]:
            lab.pool.prepare()
        process.wait("started")
        lab.input.feed(50)
        until(process.jvm_is_gone, f"the process to die at {point}", 60, every=0.2)
        process.kill()
    process = lab.start(several=several)
    process.wait("started")
    lab.wait_visible(several)
    lab.assert_exact(several)
    lab.words()


def test_a_zombie_stops_and_disturbs_its_successor_at_most_once(lab: Lab) -> None:
    lab.input.feed(100)
    zombie = lab.start()
    lab.wait_visible()
    zombie.pause()
    successor = lab.start()
    successor.wait("started")
    lab.input.feed(100)
    lab.wait_visible()
    zombie.resume()
    lab.input.feed(100)
    failed = zombie.wait("failed")
    assert failed["error"] in ("PreCommitFailed", "Superseded"), failed
    lab.wait_visible()
    lab.assert_exact()
    assert lab.words()["failed"] + lab.words()["superseded"] >= 1


def test_a_failure_comes_to_light_though_no_other_row_comes(lab: Lab) -> None:
    """Another client takes the lane while its slice is open. The task waits for rows, and learns it nevertheless."""
    process = lab.start(latency=20000)  # the first row of a slice waits for a quarter of it
    process.wait("started")
    lab.input.feed(20)
    lab.wait_visible()
    lab.input.feed(20)
    open_lane = f"lanes:{lab.uid}:lane:{lab.source}:0"
    until(lambda: open_lane in kafka.open_transactions(lab.servers, "lanes:"), "an open slice")
    thief = ck.Producer({"bootstrap.servers": lab.servers, "transactional.id": open_lane})
    thief.init_transactions(30)
    failed = process.wait("failed")
    assert failed["error"] == "PreCommitFailed", failed
    assert "lane of" in failed["text"]
    lab.start().wait("started")
    lab.wait_visible()
    lab.assert_exact()
    assert lab.words()["failed"] == 1


def test_a_row_that_kafka_never_takes_is_named(lab: Lab) -> None:
    process = lab.start(options={"message.max.bytes": "1000"})
    process.wait("started")
    feeder = ck.Producer({"bootstrap.servers": lab.servers})
    feeder.produce(lab.source, b"x" * 5000, b"k")
    feeder.flush(30)
    failed = process.wait("failed")
    assert failed["error"] == "ValueTooLarge", failed


def test_a_newer_generation_stops_a_task(lab: Lab) -> None:
    """The driver's mark of another run comes between this driver's and its task's opening."""
    process = lab.start()
    process.wait("started")
    newer = KafkaSink(lab.sink, servers=lab.servers).open_lanes(SinkScope("lanes", lab.uid, 9), QUERY)
    newer.open_all([Lane(lab.source, n) for n in range(PARTITIONS)], lambda lane, found: Mark(QUERY, 9, 0))
    lab.input.feed(20)
    failed = process.wait("failed")
    assert failed["error"] == "Superseded", failed
    assert lab.words()["superseded"] >= 1
    assert lab.values() == []
    newer.close()


def test_a_commit_that_arrives_late_ends_no_later_slice(lab: Lab) -> None:
    """The first request to commit gets stuck on the way, and the client sends another: the lane is opened anew, so that
    the broker refuses the first when it comes."""
    with Proxy(lab.servers) as proxy:
        process = lab.start(through=proxy.servers, latency=300)
        process.wait("started")
        lab.input.feed(50)
        lab.wait_visible()
        proxy.hold(END_TXN)
        lab.input.feed(50)
        until(lambda: proxy.held, "a request to be held")
        lab.wait_visible()
        until(lambda: lab.words()["unsure"], "the commit to be in doubt")
        until(lambda: lab.words()["init"] > PARTITIONS, "the lane to be opened anew")
        proxy.release()
        lab.input.feed(200)
        lab.wait_visible()
        lab.assert_exact()
        process.stop()


@pytest.mark.timeout(600)
def test_a_broker_that_is_killed_again_and_again(tmp_path: Path, pool: Pool) -> None:
    with Broker.start(tmp_path / "kafka") as own:
        lab = Lab(own.servers, pool)
        try:
            process = lab.start()
            process.wait("started")
            for _ in range(3):
                lab.input.feed(300)
                until(lambda: len(lab.values()) > 0, "rows")
                own.kill()
                own.restart()
            lab.input.feed(100)
            if process.ended():
                lab.start().wait("started")
            lab.wait_visible()
            lab.assert_exact()
            lab.words()
        finally:
            lab.close()


def test_batches_follow_one_another_with_the_same_owner(lab: Lab) -> None:
    """Batches of the shortest length that Spark allows: a source row is never cut at the end of one."""
    process = lab.start(several=True, batch="5 seconds")
    process.wait("started")

    def batches() -> bool:
        lab.input.feed(5)
        return lab.words()["begin"] >= 2 * PARTITIONS

    until(batches, "some batches", 90, every=0.1)
    lab.wait_visible(several=True)
    process.stop()
    lab.assert_exact(several=True)
    words = lab.words()
    assert words["task"] == PARTITIONS
    assert words["end"] >= 2 * PARTITIONS


def test_rows_that_differ_in_a_replay_are_refused(lab: Lab) -> None:
    lab.input.feed(60)
    process = lab.start(several=True, differs=True)
    until(lambda: len(lab.values()) == len(lab.expected(several=True)), "all rows", every=0.3)
    process.kill()
    process = lab.start(several=True, differs=True)
    opened = process.wait("opened")["marks"]
    assert any(part for _, part in opened.values()), opened
    failed = process.wait("failed")
    assert failed["error"] == "ReplayDiffers", failed
    assert lab.words()["differs"] >= 1
