"""What the system tells of processes: asked of real ones, and where it tells nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import processes
from tests.support.waiting import until

GONE = 2**22 + 1  # above the largest number that Linux gives out


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """The leader of a session of two processes."""
    text = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", text], start_new_session=True) as process:
        until(lambda: len(processes.session_members(process.pid)) == 2, "both processes to run", 20)
        yield process
        processes.end_session(process.pid, 0)


def test_a_process_is_described_as_it_is(sleeper: subprocess.Popen[bytes]) -> None:
    began, own = processes.start_time(sleeper.pid), processes.start_time(os.getpid())
    assert began is not None
    assert own is not None
    assert own - 1 <= began <= time.time() + 1
    assert processes.stat_fields(sleeper.pid)[0] in "SRD"
    assert b"time.sleep(60)" in (processes.command_line(sleeper.pid) or b"")
    assert processes.is_running(sleeper.pid, processes.mark(sleeper.pid))


def test_a_session_is_ended_with_all_it_holds(sleeper: subprocess.Popen[bytes]) -> None:
    members = processes.session_members(sleeper.pid)
    assert sleeper.pid in members
    assert processes.end_session(sleeper.pid, 0) == sorted(members)
    assert processes.session_members(sleeper.pid) == []
    assert processes.stat_fields(sleeper.pid)[0] == "Z", "this process has not asked for its status yet"
    assert processes.mark(sleeper.pid) is None
    assert processes.start_time(sleeper.pid) == float("inf")
    assert sleeper.pid not in processes.all_running()


def test_a_driver_may_open_as_many_files_as_its_hard_limit_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
        processes.raise_file_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == min(before[1], 1 << 16) or before[1] == resource.RLIM_INFINITY
        assert hard == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_that_is_gone() -> None:
    assert processes.mark(GONE) is None
    assert processes.start_time(GONE) is None
    assert processes.stat_fields(GONE) == []
    assert processes.command_line(GONE) == b""


def test_without_proc_ps_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes.mark(os.getpid())
    assert processes.is_running(os.getpid(), processes.mark(os.getpid()))
    assert os.getpid() in processes.all_running()
    assert processes.command_line(os.getpid()) is None
    assert processes.start_time(os.getpid()) is None
