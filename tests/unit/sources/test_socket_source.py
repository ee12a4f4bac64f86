"""Lines from a real TCP server into a journal, and what of them reaches Spark; no Spark runs here."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock import Checkpoints, Guarantee, SocketSource
from penstock.contracts.guarantees import Chain, engine_link, wanted
from penstock.contracts.sink import CheckContext
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    GuaranteeError,
    PositionsLost,
    StorageFull,
    SystemUnavailable,
    ValueTooLarge,
)
from penstock.failpoints import InjectedFault, hooked
from penstock.sources import journal as journals
from penstock.sources.journal import Journal, JournalReader
from penstock.sources.socket import Receiver
from tests.support.line_server import LineServer
from tests.support.waiting import until

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from penstock.sources.readers import JournalledLines, LineReader, decode
from penstock.spark.executors import TaskFault, fault_in


@pytest.fixture
def server() -> Iterator[LineServer]:
    with LineServer() as started:
        yield started


@pytest.fixture
def receive(server: LineServer, tmp_path: Path) -> Iterator[Callable[..., Receiver]]:
    started: list[Receiver] = []

    def start(longest: int = 1 << 20) -> Receiver:
        made = Receiver("127.0.0.1", server.port, partial(Journal, tmp_path, job="j", source="s"), longest_line=longest)
        started.append(made)
        made.start()
        return made

    yield start
    for one in started:
        one.stop()


def content(folder: Path) -> bytes:
    reader = JournalReader(folder)
    start = reader.extent()[0]
    return b"".join(frame.lines for frame in reader.frames(start, reader.bounded(start, 1 << 30)))


def test_lines_are_whole_whatever_the_pieces_they_come_in(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path
) -> None:
    receive()
    for piece in (b"on", b"e\ntwo\nth", b"ree\n", b"\nfo", b"ur\n"):
        server.send(piece)
        until(
            lambda: b"\n" not in piece or content(tmp_path).endswith(piece[: piece.rfind(b"\n") + 1]),  # noqa: B023
            "it",
            20,
        )
    assert content(tmp_path) == b"one\ntwo\nthree\n\nfour\n"


def test_it_connects_again_and_drops_the_line_that_was_cut(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path
) -> None:
    receive()
    server.send(b"whole\nhal")
    until(lambda: content(tmp_path) == b"whole\n", "the first line", 20)
    server.hang_up()
    until(lambda: server.connections == 2, "a second connection", 20)
    server.send(b"next\n")
    until(lambda: content(tmp_path) == b"whole\nnext\n", "the next line", 20)


def test_it_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    receiver = Receiver("127.0.0.1", port, partial(Journal, tmp_path, job="j", source="s"), longest_line=100)
    receiver.start()
    try:
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(20)
            client, _ = listener.accept()
            with client:
                client.sendall(b"at last\n")
                until(lambda: content(tmp_path) == b"at last\n", "the line", 20)
    finally:
        receiver.stop()


def test_what_was_received_is_there_after_a_stop(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path
) -> None:
    first = receive()
    server.send(b"one\n")
    until(lambda: content(tmp_path) == b"one\n", "the line", 20)
    first.stop()
    server.hang_up()
    receive()
    server.send(b"two\n")
    until(lambda: content(tmp_path) == b"one\ntwo\n", "both lines", 20)


def test_a_full_disk_holds_the_sender_up_and_loses_nothing(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path
) -> None:
    receiver = receive()
    server.send(b"before\n")
    until(lambda: content(tmp_path) == b"before\n", "the first line", 20)
    end = JournalReader(tmp_path).bounded(0, 1000)

    def complained() -> bool:
        try:
            JournalReader(tmp_path).bounded(end, 1000)
        except StorageFull:
            return True
        return False

    line, journal = b"x" * 20_000 + b"\n", receiver._journal
    assert journal is not None
    with journal._lock:
        (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
        journal._database.execute(f"PRAGMA max_page_count={pages}")
    server.send(line)
    until(complained, "the complaint", 20)
    with journal._lock:
        journal._database.execute("PRAGMA max_page_count=1000000")
    until(lambda: content(tmp_path) == b"before\n" + line, "the line that had to wait", 20)


def test_a_journal_that_cannot_be_opened_yet_is_tried_again(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a driver before this one was stopped in the middle of an append."""
    monkeypatch.setattr(journals, "LOCK_SECONDS", 0.05)
    stalled = Journal(tmp_path, job="j", source="s")
    with stalled._change():
        receiver = receive()
        assert receiver._journal is None
    server.send(b"at last\n")
    until(lambda: content(tmp_path) == b"at last\n", "the line", 20)


def test_lines_are_not_doubled_by_any_failure_after_the_sync(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path
) -> None:
    failures = iter([True])

    def fail() -> None:
        if next(failures, False):
            raise InjectedFault("Once.")

    with hooked("journal.synced", fail):
        receive()
        server.send(b"once\n")
        until(lambda: content(tmp_path) != b"", "the line", 20)
        server.send(b"after\n")
        until(lambda: content(tmp_path).endswith(b"after\n"), "the last line", 20)
    assert content(tmp_path) == b"once\nafter\n"


def test_lines_before_one_without_end_are_kept(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path
) -> None:
    receive(longest=10)
    server.send(b"one\ntwo\n" + b"x" * 20)
    until(lambda: content(tmp_path) == b"one\ntwo\n", "the lines", 20)


def test_without_a_journal_lines_lie_where_nobody_else_looks(server: LineServer) -> None:
    source = SocketSource("127.0.0.1", server.port)
    source.start("j", "s", [])
    try:
        folder = source._place("s")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {one.stat().st_mode & 0o777 for one in folder.iterdir()} == {0o600}
    finally:
        source.stop()


def test_a_journal_in_a_folder_of_somebody_else_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(AccessDenied, match="belongs to user"):
        SocketSource("127.0.0.1", 9, journal=tmp_path).check(CheckContext("j", 1, 60), "s")


def test_a_line_without_end_is_an_error_with_a_name(
    server: LineServer, receive: Callable[..., Receiver], tmp_path: Path
) -> None:
    receive(longest=100)
    server.send(b"short\n")
    until(lambda: content(tmp_path) == b"short\n", "the line", 20)
    end = JournalReader(tmp_path).bounded(0, 1000)
    server.send(b"x" * 101)

    def refused() -> bool:
        try:
            JournalReader(tmp_path).bounded(end, 1000)
        except ValueTooLarge as error:
            return "longer than 100 bytes" in str(error)
        return False

    until(refused, "the refusal", 20)


def test_a_second_driver_takes_over(server: LineServer, receive: Callable[..., Receiver], tmp_path: Path) -> None:
    """The old one, when its next line comes, finds that it has lost, and stops receiving."""
    old = receive()
    server.send(b"old\n")
    until(lambda: content(tmp_path) == b"old\n", "the line", 20)
    Journal(tmp_path, job="j", source="s").append(b"new\n")
    server.send(b"lost\n")
    until(lambda: not old._thread.is_alive(), "the old one to give up", 20)
    assert content(tmp_path) == b"old\nnew\n"


def reader(folder: Path, most: int = 1000, *, strict: bool = True) -> LineReader:
    made = JournalledLines({"folder": str(folder), "most": str(most), "strict": str(strict).lower()})
    return made.streamReader(None)  # type: ignore[arg-type]


def rows(made: LineReader, start: int, end: int) -> list[str]:
    planned = pickle.loads(pickle.dumps(made.partitions({"position": start}, {"position": end})))
    return [value for one in planned for batch in made.read(one) for value in batch.column("value").to_pylist()]


def test_spark_reads_by_position_and_reads_the_same_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, job="j", source="s")
    middle = journal.append(b"one\ntwo\n")
    end = journal.append(b"three\n")
    made = reader(tmp_path)
    assert made.initialOffset() == {"position": 0}
    assert made.latestOffset({"position": 0}, ReadMaxBytes(middle)) == {"position": middle}
    assert made.latestOffset({"position": middle}, ReadAllAvailable()) == {"position": end}
    assert rows(made, 0, end) == rows(reader(tmp_path), 0, end) == ["one", "two", "three"]
    assert rows(made, middle, middle) == []


def test_errors_keep_their_names_through_spark(tmp_path: Path) -> None:
    Journal(tmp_path, job="j", source="s").append(b"one\n")
    with pytest.raises(TaskFault) as carried:
        reader(tmp_path).latestOffset({"position": 500}, ReadMaxBytes(1))
    assert isinstance(fault_in(str(carried.value)), PositionsLost)


def test_decoding() -> None:
    batch = decode([(5, b"a\r\n\n"), (7, "grüße\n".encode() + b"\xff\n")])
    assert batch.column("value").to_pylist() == ["a", "", "grüße", "\ufffd"]
    assert [one.value for one in batch.column("received")] == [5, 5, 7, 7]


def test_large_epochs_are_several_tasks(tmp_path: Path) -> None:
    journal = Journal(tmp_path, job="j", source="s")
    for number in range(5):
        end = journal.append(b"%d %s\n" % (number, b"x" * 300_000))
    planned = reader(tmp_path).partitions({"position": 0}, {"position": end})
    assert [len(one.value) for one in planned] == [2, 2, 1]


def test_the_journal_decides_the_guarantee(tmp_path: Path) -> None:
    engine = engine_link(Checkpoints())
    kept = SocketSource("localhost", 9999, journal=tmp_path).link("lines")
    assert kept.guarantee is Guarantee.EXACTLY_ONCE
    assert "from the moment of receipt" in kept.because
    bare = SocketSource("localhost", 9999).link("lines")
    assert bare.guarantee is Guarantee.AT_MOST_ONCE
    with pytest.raises(GuaranteeError, match=r"give the source a journal="):
        Chain((bare, engine)).require(wanted("exactly_once"))
    with pytest.raises(GuaranteeError):
        Chain((bare, engine)).require(wanted("at_least_once"))
    Chain((bare, engine)).require(wanted("at_most_once"))


@pytest.mark.parametrize(
    "arguments", [{"port": 0}, {"port": 70000}, {"host": ""}, {"journal": "hdfs://there/x"}, {"max_line_bytes": 0}]
)
def test_what_cannot_work_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        SocketSource(**{"host": "localhost", "port": 9999, **arguments})  # type: ignore[arg-type]


def test_check_writes_nothing_and_does_not_connect(server: LineServer, tmp_path: Path) -> None:
    context = CheckContext("j", 1, 60)
    source = SocketSource("127.0.0.1", server.port, journal=tmp_path / "journal")
    source.check(context, "s")
    assert not (tmp_path / "journal").exists()
    assert server.connections == 0
    Journal(tmp_path / "journal", job="j", source="s").close()
    source.check(context, "s")
    with pytest.raises(ConfigurationError, match="belongs to source 's' of job 'j'"):
        source.check(CheckContext("other", 1, 60), "s")
    with pytest.raises(SystemUnavailable, match="is not known"):
        SocketSource("no-such-host.invalid", 1).check(context, "s")


def test_committed_lines_are_let_go_one_epoch_late(
    server: LineServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what every reader has behind it, and `keep` bytes more stay."""
    trimmed: list[int] = []
    monkeypatch.setattr(Receiver, "trim", lambda self, position: trimmed.append(position))
    source = SocketSource("127.0.0.1", server.port, journal=tmp_path, keep=10)
    source.start("j", "s", ["a[0]", "b[0]"])
    try:
        for reader_, position in (("a[0]", 100), ("a[0]", 200), ("b[0]", 150), ("a[0]", 300), ("b[0]", 250)):
            source.completed("s", reader_, {"position": position})
        assert trimmed == [140]
        source.completed("s", "b[0]", {"position": 350})
        assert trimmed == [140, 190]
    finally:
        source.stop()
    assert pickle.loads(pickle.dumps(source)).describe() == f"lines from 127.0.0.1:{server.port}"


def test_without_a_journal_positions_never_come_again(server: LineServer, tmp_path: Path) -> None:
    """A run after a crash goes on behind every position of the one before, and gives nothing for those."""
    starts = []
    for _ in range(2):
        source = SocketSource("127.0.0.1", server.port)
        source.start("j", "s", [])
        folder = source._place("s")
        starts.append(JournalReader(folder).extent()[0])
        assert rows(reader(folder, strict=False), 0, starts[0]) == []
        source.stop()
        assert not folder.exists()
    assert starts[1] > starts[0] + 1000


def test_a_journal_that_was_begun_anew_is_not_read_at_the_old_position(tmp_path: Path) -> None:
    source = SocketSource("localhost", 9999, journal=str(tmp_path / "journal"))
    assert source.identities(()) == {}
    Journal(tmp_path / "journal", job="j", source="s").close()
    before = source.identities(())
    Journal(tmp_path / "journal", job="j", source="s").close()
    assert source.identities(()) == before
    shutil.rmtree(tmp_path / "journal")
    Journal(tmp_path / "journal", job="j", source="s").close()
    now = source.identities(())
    assert before.keys() == now.keys() == source.parts({"position": 7}).keys()
    assert before != now
    assert source.parts({"position": 0}) == {}
    with pytest.raises(PositionsLost, match="begun anew"):
        source.refuse_replaced("s", {"journal": (before["journal"], now["journal"])})
    assert source.identified
    assert not SocketSource("localhost", 9999).identified
