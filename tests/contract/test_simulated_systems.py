"""The simulated systems behave as the real ones: one script of operations against both, and the same observations."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import boto3
import pyarrow as pa
import pytest

from penstock.checkpoint.decision import Committable, Outcome
from penstock.contracts.sink import SinkScope, TwoPhaseSink, WriterScope
from penstock.deadline import Deadline
from penstock.errors import PenstockError
from penstock.kafka import settings
from penstock.kafka.connections import Connections
from penstock.sinks.kafka.producer import Producer
from penstock.sinks.kafka.transactions import Ending, TransactionClient
from penstock.storage.local import LocalStorage, LocalTree
from penstock.storage.s3 import S3Folder
from penstock.storage.storage import AlreadyExists, Storage
from penstock.storage.tree import Tree
from tests.support.kafka import create_topic, read_committed
from tests.support.postgres import PostgresHarness
from tests.support.power import Disk as RealDisk
from tests.support.servers.broker import Broker
from tests.support.servers.postgres import Postgres
from tests.support.servers.s3 import S3Server
from tests.support.simulation.disk import DiskStorage, DiskTree
from tests.support.simulation.kafka import SimulatedConnections, SimulatedProducer
from tests.support.simulation.objects import Bucket, SimulatedFolder
from tests.support.simulation.patches import world_of
from tests.support.simulation.world import Setup, World, _batch

Seen = list[Any]


def simulated(sink: str, script: Callable[[World], Seen]) -> Seen:
    """What a script observes that runs as a process of a world without faults."""
    world, seen = World(Setup((sink,)), [], 0), Seen()
    world.schedule.more = lambda: False
    with world_of(world):
        world.schedule.start("script", lambda: seen.extend(script(world)))
        world.schedule.run()
    return seen


# Kafka


class Cluster:
    """As the script sees either: a client, producers, and what readers get."""

    def __init__(
        self, client: TransactionClient, producer: Callable[[str], Any], visible: Callable[[], list[int]]
    ) -> None:
        self.client, self.producer, self.visible = client, producer, visible


def transactions(cluster: Cluster) -> Seen:
    seen: Seen = []
    client, name = cluster.client, f"conform-{uuid.uuid4().hex[:8]}"
    deadline = Deadline(30)
    first: list[Any] = []

    def state() -> Any:
        """Without the numbers that differ from cluster to cluster."""
        while True:
            now = client.describe([name], deadline)[name]
            if not now.state.startswith("Prepare"):
                break
        if now.producer_id < 0:
            return now.state
        first.append(now)
        begun = [each.started for each in first if each.started > 0]
        return (
            now.state,
            now.producer_id == first[0].producer_id,
            now.producer_epoch - first[0].producer_epoch,
            "none" if now.started < 0 else "later" if now.started > begun[0] else "the first",
        )

    def end(*, commit: bool, older: int = 0) -> int:
        now = client.describe([name], deadline)[name]
        ending = Ending(name, now.producer_id, now.producer_epoch - older)
        return client.end([ending], commit, deadline)[name].code

    def send(producer: Any, *numbers: int) -> str:
        try:
            producer.begin()
            producer.send(
                {"value": pa.array(numbers), "partition": pa.array([0] * len(numbers), pa.int32())}
                if isinstance(producer, SimulatedProducer)
                else {
                    "value": pa.array([b"%d" % n for n in numbers]),
                    "partition": pa.array([0] * len(numbers), pa.int32()),
                },
                cluster.topic,  # type: ignore[attr-defined]
            )
            producer.flush()
        except PenstockError as error:
            return type(error).__name__
        return "sent"

    seen.append(("unknown", state()))
    producer = cluster.producer(name)
    seen.append(("initialised", state()))
    seen.append((send(producer, 1, 2), state(), cluster.visible()))
    seen.append(("listed", client.list_open("conform-", deadline) == [name]))
    seen.append(("an older epoch", end(commit=True, older=1) != 0, state()))
    seen.append(("commit", end(commit=True), state(), cluster.visible()))
    seen.append(("commit again", end(commit=True), "abort after it", end(commit=False), state()))
    seen.append(("the producer follows", producer.commit()))
    seen.append((send(producer, 3), state()))
    seen.append(("abort", end(commit=False), state(), "commit after it", end(commit=True), "again", end(commit=False)))
    seen.append(("the producer follows", producer.abort()))
    seen.append((send(producer, 4), state()))
    seen.append(("fence", sorted(client.fence([name], deadline)), state(), client.list_open("conform-", deadline)))
    seen.append(("a fenced commit", end(commit=True, older=1) != 0, cluster.visible()))
    seen.append(("the fenced producer", send(producer, 5) != "sent", state()[0]))
    producer.destroy()
    return seen


def test_kafka_ends_transactions_as_the_real_one(broker: Broker) -> None:
    topic = create_topic(broker.servers, 1, prefix="conform")
    config = settings.for_producer(broker.servers, {}, 60)
    client = TransactionClient(Connections(broker.servers, {}), transaction_timeout=60)
    real = Cluster(
        client,
        lambda name: Producer(config, name),
        lambda: sorted(int(message.value()) for message in read_committed(broker.servers, topic)),
    )
    real.topic = topic  # type: ignore[attr-defined]
    try:
        observed = transactions(real)
    finally:
        client.close()

    def script(world: World) -> Seen:
        cluster = world.sinks["kafka"].cluster
        connections: Any = SimulatedConnections(cluster, world.schedule)
        played = Cluster(
            TransactionClient(connections, transaction_timeout=60),
            lambda name: SimulatedProducer(cluster, world.schedule, name),
            lambda: sorted(cluster.visible()),
        )
        played.topic = topic  # type: ignore[attr-defined]
        return transactions(played)

    assert simulated("kafka", script) == observed


# PostgreSQL


def epochs(
    sink: TwoPhaseSink, visible: Callable[[], list[int]], left: Callable[[], int], forget: Callable[[str], object]
) -> Seen:
    """`forget` takes from the server all that it knows of a sink, as in a copy from before its first start."""
    seen: Seen = []
    job = f"conform-{uuid.uuid4().hex[:8]}"
    deadline = Deadline(30)
    tasks = iter(range(100))

    def scope(generation: int) -> SinkScope:
        return SinkScope(job, "out", generation)

    @contextlib.contextmanager
    def committer(generation: int) -> Iterator[Any]:
        opened = sink.open_committer(scope(generation))
        try:
            yield opened
        finally:
            opened.close()

    def prepare(generation: int, epoch: int, numbers: list[int], hints: Mapping[str, Any]) -> Committable | str:
        try:
            writer = sink.open_writer(WriterScope(scope(generation), epoch, 1, 0, next(tasks), hints))
            writer.write(_batch(tuple(numbers)).drop_columns(["__penstock_hash"]))
            return Committable("out", 0, len(numbers), 0, writer.pre_commit())
        except PenstockError as error:
            writer.abort()
            return type(error).__name__

    def told(outcomes: Mapping[int, Outcome]) -> list[str]:
        return [outcome.value for outcome in outcomes.values()]

    with committer(1) as one, committer(2) as two:
        seen.append(("sweep", one.abort_dangling((), deadline)))
        hints = one.hints()
        first = prepare(1, 0, [1, 2], hints)
        assert isinstance(first, Committable)
        seen.append(("prepared", visible(), left()))
        one.seal([first], deadline)
        seen.append(("sealed", visible(), left()))
        seen.append((told(one.commit(0, [first], deadline)), visible(), left()))
        seen.append(
            ("again", told(one.commit(0, [first], deadline)), "by another", told(two.commit(0, [first], deadline)))
        )
        seen.append(("not missing", two.missing(0, [first], deadline)))
        second = prepare(1, 1, [3], hints)
        assert isinstance(second, Committable)
        seen.append(("leftovers", len(one.leftovers(deadline)), len(two.leftovers(deadline))))
        one.abort([second], deadline)
        seen.append(("aborted", told(one.commit(1, [second], deadline)), visible(), left()))
        third = prepare(1, 1, [4], hints)
        assert isinstance(third, Committable)
        seen.append(("a newer run sweeps and keeps", two.abort_dangling([third], deadline), left()))
        seen.append((told(two.commit(1, [third], deadline)), visible(), left()))
        seen.append(("an older writer is fenced", prepare(1, 2, [5], hints), left()))
        newest = prepare(2, 2, [6], two.hints())
        assert isinstance(newest, Committable)
        seen.append(("an older run sweeps", one.abort_dangling((), deadline), left()))
        two.seal([newest], deadline)
        seen.append((told(two.commit(2, [newest], deadline)), visible(), left()))
        seen.append(("not missing", list(two.missing(2, [newest], deadline))))
        forget(scope(2).prefix)
        seen.append(("an older copy lacks it", list(two.missing(2, [newest], deadline))))
        with committer(3) as three:
            seen.append(("and to a new start", list(three.missing(2, [newest], deadline))))
    return seen


@pytest.mark.parametrize("mode", ["two_phase", "staged"])
def test_postgres_commits_and_fences_as_the_real_one(postgres: Postgres, mode: Any) -> None:
    harness = PostgresHarness(postgres, mode, columns="value bigint, partition int")
    before = len(harness.staging())
    observed = epochs(
        harness.sink(),
        lambda: sorted(row[0] for row in harness.run(f"SELECT value FROM {harness.table}")),
        lambda: (
            len(harness.run("SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, 'conform-')"))
            + len(harness.staging())
            - before
        ),
        lambda prefix: [
            harness.run(f"DELETE FROM {table} WHERE sink = '{prefix}'")
            for table in ("penstock_markers", "penstock_sinks")
        ],
    )

    def script(world: World) -> Seen:
        sink = world.sinks["staged" if mode == "staged" else "postgres"]
        server = sink.database

        def forget(_: str) -> None:
            server.now.markers.clear()
            server.now.sinks.clear()

        return epochs(
            sink,
            lambda: sorted(sink.visible()),
            lambda: len(server.now.prepared) + len(server.now.staged),
            forget,
        )

    assert simulated("staged" if mode == "staged" else "postgres", script) == observed


# An object store


def uploads(folder: Any) -> Seen:
    seen: Seen = []
    one = folder.begin("part-a", "mine")
    tag = folder.put_part("part-a", one, 1, b"rows")
    seen.append(("open", len(folder.parts("part-a", one)), [each.name for each in folder.uploads("part-")]))
    seen.append((folder.read("part-a"), folder.mark("part-a"), folder.names("part-")))
    seen.append(("completed", folder.complete("part-a", one, [tag]), folder.read("part-a"), folder.mark("part-a")))
    seen.append(("again", folder.complete("part-a", one, [tag]), folder.parts("part-a", one), folder.uploads("part-")))
    two = folder.begin("part-b", "mine")
    folder.abort("part-b", two)
    folder.abort("part-b", two)
    seen.append(
        (
            "aborted",
            folder.put_part("part-b", two, 1, b"x"),
            folder.complete("part-b", two, ["x"]),
            folder.names("part-"),
        )
    )
    folder.put("note", b"1")
    folder.put("note", b"2")
    seen.append((folder.read("note"), folder.mark("note")))
    folder.remove("note")
    folder.remove("note")
    seen.append((folder.read("note"), folder.names("")))
    return seen


def test_an_object_store_completes_uploads_as_the_servers_of_the_suite(tmp_path: Path) -> None:
    with S3Server.start(tmp_path) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.storage.s3._clients", {})  # a process keeps its client, here one of another server
        for name, value in server.environment().items():
            patch.setenv(name, value)
        boto3.session.Session().client("s3").create_bucket(Bucket="lake")
        observed = uploads(S3Folder("s3://lake/conform"))
    assert simulated("s3", lambda world: uploads(SimulatedFolder(Bucket(), world.schedule))) == observed


# A disk


class _Unlucky(Random):
    """Nothing that is not safe survives."""

    def random(self) -> float:
        return 0.0


def files(storage: Storage, tree: Tree, write: Callable[[str, bytes], None], cut: Callable[[], None]) -> Seen:
    """`write` renames a file to its name, as Spark does, and syncs nothing."""
    seen: Seen = []

    def there() -> Any:
        return {name: storage.read(name) for name in storage.sizes()}

    storage.create("a/1", b"one")
    with contextlib.suppress(AlreadyExists):
        storage.create("a/1", b"other")
    seen.append((storage.list("a"), storage.read("a/1"), storage.read("a/2"), storage.list("none")))
    write("spark/1", b"unsynced")
    cut()
    seen.append(("after a cut", there()))
    write("spark/1", b"unsynced")
    storage.sync()
    write("spark/1", b"written over")
    cut()
    seen.append(("synced, written over, cut", there()))
    storage.delete("a/1")
    storage.delete("a/1")
    cut()
    seen.append(("a deletion that is not synced", there()))
    storage.delete("a/1")
    storage.settle("a")
    cut()
    seen.append(("and one that is", there()))
    file = tree.stage("hidden/x")
    file.stream.write(b"rows")
    file.stream.close()
    seen.append(("staged", file.finish()))
    cut()
    tree.create_folder("out")
    tree.rename("hidden/x", "out/x")
    cut()
    seen.append(("renamed", there()))
    tree.rename("hidden/x", "out/x")
    tree.sync("out")
    cut()
    seen.append(("renamed, and the new folder synced", there()))
    tree.remove("out/x")
    tree.sync("out")
    tree.rename("hidden/x", "out/x")
    tree.sync("out")
    tree.sync("hidden")
    cut()
    seen.append(("and both", there()))
    tree.write_durably("out/note", b"note")
    cut()
    seen.append(
        (
            tree.read("out/note"),
            tree.size("out/y"),
            tree.file_names("out"),
            tree.remove("out/note"),
            tree.remove("out/z"),
        )
    )
    with pytest.raises(FileNotFoundError):
        tree.rename("out/gone", "out/y")
    tree.write_durably("out/other", b"note")
    with pytest.raises(FileExistsError):
        tree.rename("out/other", "out/x")
    return seen


def test_a_disk_forgets_as_a_real_one(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    disk = RealDisk(root)

    def write(name: str, data: bytes) -> None:
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_name(".aside").write_bytes(data)
        os.replace(target.with_name(".aside"), target)

    with disk.watched():
        observed = files(LocalStorage(root), LocalTree(root), write, disk.cut)

    def script(world: World) -> Seen:
        played = world.disk

        def write(name: str, data: bytes) -> None:
            played.write(f"root/{name}", data)

        storage, tree = DiskStorage(played, world.schedule, "root"), DiskTree(played, world.schedule, "root")
        return files(storage, tree, write, lambda: [played.cut(_Unlucky())].clear())

    assert simulated("files", script) == observed
