"""`penstock dev kafka`: Apache Kafka, broker and controller in one Java process on 127.0.0.1; one per user cache.
And its topics, over real clients: made, listed, filled with rows and read back.

`state.json` holds only what was started; processes and ports are asked each time whether it is true, so a broker that
died, or a machine that was switched off, is noticed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import DevelopmentError, MissingExtra, TopicMissing
from penstock.kafka import errors
from penstock.naming import user_cache
from penstock.processes import command_line, end_session, exists
from penstock.storage.local import create_own, only_one
from penstock.supply.jars import jar_folder, jar_set
from penstock.supply.java import find_java

HOST = "127.0.0.1"
DEFAULT_PORT = 9092
JARS = "kafka-broker"

_FORMAT_SECONDS = 60.0
_READY_SECONDS = 60.0  # a second or two when idle; far longer on a machine busy with Spark
_STOP_SECONDS = 15.0
_ASK_SECONDS = 30.0
_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.2  # for rows, and for a topic
_LOG_LINES = 20  # how many of the log's last lines an error shows
#: Below the range from which systems take ports for outgoing connections. Inside it, a client that keeps trying to
#: reach a stopped server can be given the server's own port, connect to itself, and keep the server from coming back.
_RANGE = range(20_000, 30_000)
_RANDOM = random.SystemRandom()  # not the shared generator: programs seed that one, and would pick the same ports
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # size, api key, api version, correlation id, no client id

_DEFAULTS = Path(__file__).with_name("kafka.properties")


@dataclass(frozen=True, slots=True)
class Status:
    """The development broker as it is now. `note` explains why a port differs, or that a broker had died."""

    running: bool
    servers: str | None = None
    pid: int | None = None
    folder: str | None = None
    note: str = ""


def service_folder() -> Path:
    return user_cache() / "dev" / "kafka"


def status() -> Status:
    """What is running; never starts or stops anything."""
    started = _read()
    if started is None:
        return Status(False)
    pid, port = started
    if _is_ours(pid) and answers_kafka(port):
        return _running(pid, port)
    note = f"A broker was started as process {pid}, but it is gone."
    return Status(False, folder=str(service_folder()), note=note)


def up(port: int | None = None) -> Status:
    """Start the broker unless it runs; topics from earlier runs are there. Without `port` it listens on 9092, or on a
    free port where that is taken, and `note` says so. With `port` it listens there or raises `DevelopmentError`: where
    the port is taken, and where the broker already runs on another."""
    with _alone():
        now = status()
        if now.running:
            if port is not None and now.servers != f"{HOST}:{port}":
                raise DevelopmentError(
                    f"The development broker already runs on {now.servers}, not on port {port}.",
                    safe="It keeps running as it is.",
                    to_do="Use that address, or run `penstock dev kafka down` first.",
                )
            return now
        _end()  # hung, or still starting for a caller that was killed: it holds the data folder
        chosen, note = _choose_port(port)
        pid = _start(service_folder(), chosen)
        _write(pid, chosen)
        return _running(pid, chosen, note)


def down() -> Status:
    """Stop the broker if it runs; its topics stay for the next `up`."""
    with _alone():
        before = status()
        _end()
        _state_file().unlink(missing_ok=True)
        note = f"Stopped process {before.pid}." if before.running else "It was not running."
        return Status(False, folder=before.folder, note=note)


def _running(pid: int, port: int, note: str = "") -> Status:
    return Status(True, f"{HOST}:{port}", pid, str(service_folder()), note)


@contextmanager
def _alone() -> Iterator[None]:
    service_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(service_folder() / "service.lock"):
        yield


def _choose_port(port: int | None) -> tuple[int, str]:
    wanted = DEFAULT_PORT if port is None else port
    if is_free(wanted):
        return wanted, ""
    if port is not None:
        raise DevelopmentError(
            f"Port {port} is taken by another program.",
            safe="Nothing was started.",
            to_do="Stop that program, or leave --port out to get a free one.",
        )
    chosen = free_port()
    return chosen, f"Port {wanted} is taken by another program, so this broker has {chosen}."


def _state_file() -> Path:
    return service_folder() / "state.json"


def _read() -> tuple[int, int] | None:
    """Process id and port of the broker that was started last; the next start replaces a file that is damaged."""
    try:
        state = json.loads(_state_file().read_text(encoding="utf-8"))
        return int(state["pid"]), int(state["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(pid: int, port: int) -> None:
    aside = _state_file().with_suffix(".new")
    aside.write_text(json.dumps({"pid": pid, "port": port}), encoding="utf-8")
    aside.replace(_state_file())


def _end() -> None:
    started = _read()
    if started is not None and _is_ours(started[0]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(started[0], signal.SIGTERM)
        end_session(started[0], _STOP_SECONDS)


def _is_ours(pid: int) -> bool:
    """Whether `pid` runs and, as far as this system tells, was started in this folder: process ids are reused."""
    command = command_line(pid)  # None: this system tells only that the process lives
    return exists(pid) and (command is None or os.fsencode(service_folder() / "server.properties") in command)


def _start(folder: Path, port: int) -> int:
    settings = configuration(folder, {"PLAINTEXT": port, "CONTROLLER": free_port()})
    with open(create_own(folder / "broker.log", os.O_APPEND), "ab") as log:
        prepare(folder, settings, new_cluster_id(), lambda command: _format(folder, command, log.fileno()))
        process = subprocess.Popen(
            broker_command(folder, ["-Xmx1g"]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
        )
    _detached.append(process)
    end = time.monotonic() + _READY_SECONDS
    try:
        while not answers_kafka(port):
            if process.poll() is not None:
                raise _failure(folder, f"The Kafka broker ended while starting (exit status {process.returncode}).")
            if time.monotonic() > end:
                raise _failure(folder, f"The Kafka broker did not answer on port {port} in {_READY_SECONDS:.0f} s.")
            time.sleep(_POLL_SECONDS)
    except BaseException:
        process.kill()
        raise
    return process.pid


#: Held so that a broker stopped later by this same process leaves no zombie behind.
_detached: list[subprocess.Popen[bytes]] = []


def _format(folder: Path, command: Sequence[str], log: int) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_FORMAT_SECONDS, check=False
    )
    if done.returncode != 0:
        raise _failure(folder, f"Kafka could not format its storage (exit status {done.returncode}).")


def _failure(folder: Path, happened: str) -> DevelopmentError:
    log = folder / "broker.log"
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return DevelopmentError(
        f"{happened} The end of its log:" + "".join(f"\n  {line}" for line in lines),
        safe=f"Its data in {folder} is as the broker left it.",
        to_do=f"Read {log}; free the port, memory or disk it asks for.",
    )


def configuration(folder: Path, listeners: Mapping[str, int]) -> dict[str, str]:
    """What goes into `server.properties`: a node that listens on these ports."""
    urls = {name: f"{name}://{HOST}:{port}" for name, port in listeners.items()}
    lines = _DEFAULTS.read_text(encoding="utf-8").splitlines()
    return {
        **dict(line.split("=", 1) for line in lines if line and not line.startswith("#")),
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{listeners.get('CONTROLLER')}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
        "listeners": ",".join(urls.values()),
        "advertised.listeners": ",".join(url for name, url in urls.items() if name != "CONTROLLER"),
        "log.dirs": str(folder / "data"),
    }


def prepare(
    folder: Path,
    settings: Mapping[str, str],
    cluster_id: str,
    run: Callable[[list[str]], None],
    options: Sequence[str] = (),
    jars: str = JARS,
) -> None:
    """Write the configuration and, the first time, have `run` format the storage. `options` are for Java."""
    config = folder / "server.properties"
    with open(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # may hold passwords
        for key, value in settings.items():
            escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
            file.write(f"{key}={escaped}\n")
    jar_set(jars)
    if not (folder / "data" / "meta.properties").exists():
        once = ["-Xmx64m", "-XX:TieredStopAtLevel=1", *options]
        run(_java("kafka.tools.StorageTool", once, ["format", "-t", cluster_id, "-c", str(config)], jars))


def broker_command(folder: Path, options: Sequence[str], jars: str = JARS) -> list[str]:
    return _java("kafka.Kafka", options, [str(folder / "server.properties")], jars)


def _java(main: str, options: Sequence[str], arguments: Sequence[str], jars: str) -> list[str]:
    return [
        str(find_java().java),
        *options,
        "-XX:+UseParallelGC",  # no concurrent collector threads beside the work, on machines of two cores
        "-Xlog:disable",  # the virtual machine's own warnings, about archives that do not fit; not Kafka's log
        "-Djava.awt.headless=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
        "-cp",
        f"{jar_folder(jars)}/*",
        main,
        *arguments,
    ]


def new_cluster_id() -> str:
    """A name for a cluster, as Kafka wants it: 16 bytes in base64, without a dash in front, which is for options."""
    name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return "x" + name[1:] if name.startswith("-") else name


def answers_kafka(port: int, timeout: float = 1.0) -> bool:
    """Whether a plain-text Kafka listener answers an ApiVersions request on `port`. A broker opens its listeners only
    after it has recovered its logs and joined the cluster, so it can serve then."""
    try:
        with socket.create_connection((HOST, port), timeout) as connection, connection.makefile("rb") as answers:
            connection.sendall(_API_VERSIONS)
            answer = answers.read(8)
    except OSError:
        return False
    return len(answer) == 8 and struct.unpack(">ii", answer)[1] == 7


def is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port that is free now; random, so that two processes asking at once hardly ever get the same."""
    for port in _RANDOM.sample(_RANGE, 200):
        if is_free(port):
            return port
    raise DevelopmentError(
        f"None of 200 ports tried between {_RANGE.start} and {_RANGE.stop} is free.",
        safe="Nothing was started.",
        to_do="Stop what holds them (see `ss -ltn`), or choose a port yourself.",
    )


def servers_of(given: str | None) -> str:
    """`given`, or the development broker's address."""
    if given:
        return given
    now = status()
    if now.servers is None:
        raise DevelopmentError(
            "No servers are named, and no development broker runs.",
            to_do="Start one with `penstock dev kafka up`, or name a broker: --servers HOST:PORT.",
        )
    return now.servers


@contextmanager
def named_errors(servers: str, doing: str) -> Iterator[None]:
    """What the client library raises inside becomes an error of ours, also where the library is missing."""
    with MissingExtra.named("Kafka (confluent-kafka)", "kafka"):
        from confluent_kafka import KafkaException
    try:
        yield
    except KafkaException as error:
        fault = error.args[0]
        raise errors.from_code(fault.code(), fault.str(), servers=servers, doing=doing, seconds=_ASK_SECONDS) from error


def list_topics(servers: str) -> list[dict[str, Any]]:
    """Name, partitions and rows of each topic that is not the broker's own. Rows count transactions' marks, too."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": servers, "group.id": f"penstock-{uuid.uuid4()}"})
    try:
        found = []
        for name, topic in sorted(reader.list_topics(timeout=_ASK_SECONDS).topics.items()):
            if not name.startswith("__"):
                ends = [reader.get_watermark_offsets(TopicPartition(name, n), _ASK_SECONDS) for n in topic.partitions]
                found.append({"topic": name, "partitions": len(ends), "rows": sum(end - first for first, end in ends)})
        return found
    finally:
        reader.close()


def create_topics(servers: str, names: Sequence[str], partitions: int) -> list[str]:
    """Create those of `names` that are missing; which those are."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    there = admin.list_topics(timeout=_ASK_SECONDS).topics
    missing = [name for name in names if name not in there]
    if missing:
        for future in admin.create_topics([NewTopic(name, partitions, 1) for name in missing]).values():
            future.result()
    return missing


def payments() -> Iterator[tuple[str, str]]:
    """Keys and values without end: payments of 500 accounts, every hundredth of them large."""
    number = 0
    while True:
        amount = (number * 48_271 % 100_000) / 100 if number % 100 else 1_000 + number % 9_000
        account, at = f"acc-{number * 7919 % 500:04d}", datetime.now(UTC).isoformat(timespec="milliseconds")
        yield account, json.dumps({"id": number, "account": account, "amount": amount, "at": at})
        number += 1


def produce(servers: str, topic: str, rows: Iterable[tuple[str | None, str]], rate: float) -> Iterator[int]:
    """Send rows, `rate` of them a second (0: as fast as they come). Yields how many the broker has, about once a second
    and at the end."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    sent, begun = 0, time.monotonic()
    shown = begun
    for key, value in rows:
        if rate:
            time.sleep(max(0.0, begun + sent / rate - time.monotonic()))
        while True:
            try:
                producer.produce(topic, value.encode(), None if key is None else key.encode())
                break
            except BufferError:
                producer.poll(_LOOK_SECONDS)
        sent += 1
        if time.monotonic() - shown >= 1:
            shown = time.monotonic()
            yield sent - producer.flush(_ASK_SECONDS)
    if left := producer.flush(_ASK_SECONDS):
        raise DevelopmentError(
            f"{left} of {sent} rows did not reach {servers} within {_ASK_SECONDS:g} s.",
            to_do="See whether the broker runs: penstock dev kafka status.",
        )
    yield sent


def consume(
    servers: str, topic: str, *, follow: bool = True, newest: bool = False, committed: bool = True
) -> Iterator[Mapping[str, Any]]:
    """Rows of a topic: from its beginning or, with `newest`, from now on. With `follow` it has no end, and a missing
    topic is waited for; otherwise up to the topic's end. `committed`: only those of committed transactions."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    level = "read_committed" if committed else "read_uncommitted"
    own = {"group.id": f"penstock-{uuid.uuid4()}", "isolation.level": level, "enable.partition.eof": True}
    reader = Consumer({"bootstrap.servers": servers, **own, "enable.auto.commit": False})
    try:
        while not (partitions := reader.list_topics(topic, _ASK_SECONDS).topics[topic].partitions) and follow:
            time.sleep(_LOOK_SECONDS)
        if not partitions:
            raise TopicMissing(
                f"There is no topic {topic!r} at {servers}.",
                to_do="penstock dev kafka topics lists those that there are; penstock dev kafka produce makes one.",
            )
        open_ends = set(partitions)
        start = -1 if newest else -2  # Kafka's words for its end and its beginning
        reader.assign([TopicPartition(topic, number, start) for number in partitions])
        while follow or open_ends:
            message = reader.poll(_LOOK_SECONDS)
            if message is None:
                continue
            if (fault := message.error()) is None:
                at = {"partition": message.partition(), "offset": message.offset()}
                yield {**at, "key": _text(message.key()), "value": _text(message.value())}
            elif fault.code() == KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition())
            else:
                raise DevelopmentError(f"Reading {topic!r} at {servers} failed: {fault.str()}.")
    finally:
        reader.close()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
