"""The classic: words of a socket, counted by a job that is killed. The counts are those of the lines it received."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from penstock.config.levels import OPTIONS_VARIABLE
from tests.support.line_server import LineServer
from tests.support.processes import ROOT, JobProcess
from tests.support.waiting import until

WORDS = ["to", "be", "or", "not", "that", "is", "the", "question", "whether", "tis", "nobler", "in", "the", "mind"]

#: Numbers of lines are written in signs that belong to no word.
MARKS = str.maketrans("0123456789", "!#$%&*+/<>")
DIGITS = bytes.maketrans(b"!#$%&*+/<>", b"0123456789")


class Talker:
    """Sends lines without end, each with its number, and knows which went into which connection."""

    def __init__(self, server: LineServer) -> None:
        self._server = server
        self._random = random.Random(7)
        self.sent: list[bytes] = []

    @contextmanager
    def talking(self) -> Iterator[None]:
        quiet = threading.Event()

        def talk() -> None:
            while not quiet.is_set():
                if not self._server.connected(0.05):
                    continue
                count = self._random.randint(1, 40)
                lines = [self._line(len(self.sent) + one) for one in range(count)]
                self.sent += lines
                self._server.send(b"".join(lines))
                quiet.wait(0.02)

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield
        finally:
            quiet.set()
            thread.join()

    def _line(self, number: int) -> bytes:
        words = self._random.choices(WORDS, k=self._random.randint(0, 9))
        return f"{str(number).translate(MARKS)} {' '.join(words)}\n".encode()


def journalled(folder: Path) -> list[bytes]:
    """The lines in a journal, read without the product's own reader."""
    if not (folder / "journal.sqlite").exists():
        return []
    with contextlib.closing(sqlite3.connect(folder / "journal.sqlite", timeout=30)) as database:
        has_frames = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'frames'").fetchone()
        rows = database.execute("SELECT lines FROM frames ORDER BY start").fetchall() if has_frames else []
    return [line for (lines,) in rows for line in lines.splitlines(keepends=True)]


def counted(folder: Path) -> Counter[str]:
    """The newest count of each word. A count that was written twice is an error: an epoch was repeated."""
    rows = [json.loads(line) for path in folder.glob("*.json") for line in path.read_text().splitlines()]
    said = Counter((row["word"], row["count"]) for row in rows)
    assert not [one for one, times in said.items() if times > 1], "an epoch became visible twice"
    newest: Counter[str] = Counter()
    for word, count in said:
        newest[word] = max(newest[word], count)
    return newest


def true_counts(lines: list[bytes]) -> Counter[str]:
    return Counter(word for line in lines for word in re.split(r"\W+", line.decode().lower()) if word)


def test_the_word_count_survives_kill_9_with_the_right_counts(tmp_path: Path) -> None:
    checkpoints, counts, journal = tmp_path / "state", tmp_path / "counts", tmp_path / "state" / "words-journal"
    options = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "512m",
    }

    def start() -> JobProcess:
        environment = {
            "PORT": str(server.port),
            "HOST": "127.0.0.1",
            "CHECKPOINTS": str(checkpoints),
            "COUNTS": str(counts),
            OPTIONS_VARIABLE: json.dumps(options),
        }
        return JobProcess(ROOT / "examples" / "word_count.py", [], tmp_path / "runs", environment=environment)

    with LineServer() as server, ExitStack() as runs:
        talker = Talker(server)
        with talker.talking():
            with start() as run:
                until(lambda: len(run.events("completed")) >= 2, lambda: f"two epochs\n{run.tail()}", 90)
                run.kill()  # SIGKILL to driver, JVM and workers, whatever they are doing
            before = len(journalled(journal))
            run = runs.enter_context(start())
            until(lambda: run.events("completed"), lambda: f"an epoch after the restart\n{run.tail()}", 90)
        assert server.send(b"goodbye\n")
        until(lambda: b"goodbye\n" in journalled(journal), lambda: f"the last line\n{run.tail()}", 90)
        truth = true_counts(through := journalled(journal))
        until(lambda: counted(counts) == truth, lambda: f"{counted(counts)} to be {truth}\n{run.tail()}", 90)
        run.terminate()
        assert run.wait() == 0, run.tail()
    assert counted(counts) == truth
    assert 0 < before < len(through)

    # What came through is what was sent, in order, each line once. Missing is at most one stretch: what was on its way
    # when the job died.
    numbers = [int(line.split()[0].translate(DIGITS)) for line in through[:-1]]
    assert [talker.sent[number] for number in numbers] == through[:-1]
    gaps = [after - before for before, after in pairwise(numbers) if after != before + 1]
    assert len(gaps) <= 1
    assert min(gaps, default=1) > 0
