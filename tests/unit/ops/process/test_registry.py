"""The jobs of this machine: what is written, what is believed, what is forgotten."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import TopicMissing
from penstock.ops.process import lifeline
from penstock.ops.process import registry as registries
from penstock.ops.process.registry import (
    Entry,
    Registration,
    Registry,
    State,
    SupervisorEntry,
    earlier,
    error_fields,
    expect_run,
    expected_run,
    history_folder,
    home,
)
from penstock.processes import is_running, mark
from tests.support.waiting import until

ID = "0123456789abcdef" * 2


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(registries, "_expected", None)
    return Registry()


def mine(**facts: object) -> Entry:
    """An entry whose driver is this very process."""
    return Entry(ID, "payments", **{"pid": os.getpid(), "pid_mark": mark(os.getpid()), **facts})  # type: ignore[arg-type]


def file(tmp_path: Path, id: str = ID) -> Path:
    return tmp_path / "home" / "jobs" / f"{id}.json"


def test_where_it_is(tmp_path: Path) -> None:
    assert home({"PENSTOCK_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert home({"XDG_STATE_HOME": "/b"}) == Path("/b/penstock")
    assert home({}) == Path.home() / ".local" / "state" / "penstock"


def test_what_is_written_is_read(registry: Registry) -> None:
    entry = mine(state=State.RUNNING, start=5, address="127.0.0.1:1", token="t", error={"error": "E", "happened": "x"})
    registry.put(entry)
    [found] = registry.entries()
    assert found.modified > 0
    assert registry.get(ID) == found
    assert Entry(**{**vars(found), "modified": 0}) == entry


def test_only_its_owner_reads_it(registry: Registry, tmp_path: Path) -> None:
    registry.put(mine(token="secret"))
    assert stat.S_IMODE(file(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(file(tmp_path).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert "secret" not in repr(mine(token="secret"))


def test_a_folder_that_others_may_look_into_is_closed(registry: Registry, tmp_path: Path) -> None:
    file(tmp_path).parent.mkdir(parents=True)
    file(tmp_path).parent.chmod(0o777)
    registry.put(mine())
    assert stat.S_IMODE(file(tmp_path).parent.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_s_is_not_used(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder could put another address and another token in the place of ours."""
    registry.put(mine(token="secret"))
    registry.open_log(ID).close()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="belongs to another user"):
        registry.put(mine(token="secret"))
    with pytest.raises(PermissionError, match="belongs to another user"):
        registry.open_log(ID)
    assert registry.read_entry(ID) is None  # nor is what another user has put there believed


def test_a_link_in_the_place_of_a_file_is_not_followed(registry: Registry, tmp_path: Path) -> None:
    registry.put(mine())
    elsewhere = tmp_path / "elsewhere"
    file(tmp_path).rename(elsewhere)
    file(tmp_path).symlink_to(elsewhere)
    assert registry.read_entry(ID) is None
    log = tmp_path / "home" / "logs" / f"{ID}.log"
    log.parent.mkdir()
    log.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        registry.open_log(ID)
    assert not (tmp_path / "victim").exists()


def test_a_folder_that_cannot_be_made_is_said_and_not_tried_for_ever(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "home", Path("/proc/nobody/home")):
        with pytest.raises(OSError, match=r"Not a directory|No such file|Permission"):
            Registry(place).put(mine())


def test_a_log_is_its_owner_s_alone(registry: Registry, tmp_path: Path) -> None:
    with registry.open_log(ID) as log:
        log.write(b"a row in clear\n")
    assert stat.S_IMODE(registry.log_file(ID).stat().st_mode) == 0o600
    assert stat.S_IMODE(registry.log_file(ID).parent.stat().st_mode) == 0o700
    assert "secret" not in str(mine(token="secret").public())


def test_a_log_that_grows_too_large_begins_anew(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "MAX_LOG_BYTES", 10)
    monkeypatch.setattr(registries, "_LOG_SECONDS", 0.01)
    file = registry.log_file(ID)
    with registry.open_log(ID) as log, registries.kept_small(file):
        for text in (b"0123456789", b"abcdefghij", b"klm"):
            log.write(text)
            log.flush()
            if text[:1] == b"a":
                until(lambda: file.stat().st_size == 0, "the log to begin anew")
    assert (file.read_bytes(), earlier(file).read_bytes()) == (b"klm", b"abcdefghij")
    assert stat.S_IMODE(earlier(file).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', f'{{"version": 2, "id": "{ID}"}}'])
def test_what_cannot_be_understood_is_not_there(registry: Registry, tmp_path: Path, text: str) -> None:
    registry.put(mine())
    file(tmp_path, "f" * 32).write_text(text)
    assert [entry.id for entry in registry.entries()] == [ID]
    registry.prune()
    assert file(tmp_path, "f" * 32).exists()  # a newer version's is not ours to delete


def test_a_field_of_a_later_version_is_left_out(registry: Registry, tmp_path: Path) -> None:
    registry.put(mine())
    file(tmp_path).write_text(json.dumps({**json.loads(file(tmp_path).read_text()), "colour": "red"}))
    assert registry.get(ID) is not None


def test_no_id_leads_out_of_the_folder(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert registry.get("../../x") is None


def ended_process() -> tuple[int, str]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        before = mark(process.pid)
        assert before is not None
        assert is_running(process.pid, before)
    assert not is_running(process.pid, before)
    return process.pid, before


def test_a_process_that_is_gone_has_failed(registry: Registry) -> None:
    pid, before = ended_process()
    registry.put(mine(state=State.RUNNING, pid=pid, pid_mark=before))
    found = registry.get(ID)
    assert found is not None
    assert found.state is State.FAILED
    assert found.end == found.modified
    assert found.error is not None
    assert "has ended and left no message" in found.error["happened"]


def test_a_run_that_died_ended_with_its_last_event_and_its_address_is_gone(registry: Registry, tmp_path: Path) -> None:
    """The file is written where the state changes: once, in a run of days. The port may be another program's by now."""
    pid, before = ended_process()
    facts = {"pid": pid, "pid_mark": before, "address": "127.0.0.1:8081", "token": "t", "certificate": "c"}
    registry.put(mine(state=State.RUNNING, **facts))
    story = history_folder(ID) / "story-00000001.jsonl"
    story.parent.mkdir(parents=True)
    story.write_text("{}\n")
    entry = registry.read_entry(ID)
    assert entry is not None
    last = entry.modified + 3_600_000
    os.utime(story, ns=(0, last * 1_000_000))
    [found] = registry.entries()
    assert found == registry.get(ID)
    assert (found.end, found.address, found.token, found.certificate) == (last, None, None, None)
    me = {"supervisor": os.getpid(), "supervisor_mark": mark(os.getpid())}
    registry.put(mine(state=State.RUNNING, **facts, **me))
    [found] = registry.entries()
    assert (found.state, found.end, found.address, found.token) == (State.RESTARTING, None, None, None)


def test_a_number_used_again_is_another_process(registry: Registry) -> None:
    registry.put(mine(state=State.RUNNING, pid_mark="another boot, another time"))
    found = registry.get(ID)
    assert found is not None
    assert found.state is State.FAILED


def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet waited for
    assert mark(process.pid) is None
    process.wait()


def test_a_home_that_machines_share(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run elsewhere is neither listed here nor taken for dead because its process is not here, nor forgotten."""
    monkeypatch.setattr(registries, "MAX_ENDED_RUNS", 0)
    pid, before = ended_process()
    registry.put(mine(state=State.RUNNING, host="another", pid=pid, pid_mark=before))
    assert registry.entries() == []
    registry.prune()
    found = registry.get(ID)
    assert found is not None
    assert found.state is State.RUNNING


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (State.RUNNING, State.RESTARTING), (State.FAILING, State.FAILING), (State.CREATED, State.CREATED),
        (State.FINISHED, State.FINISHED),
    ],
)  # fmt: skip
def test_between_two_drivers_it_restarts(registry: Registry, written: State, seen: State) -> None:
    pid, before = ended_process()
    supervisor = {"supervisor": os.getpid(), "supervisor_mark": mark(os.getpid())}
    registry.put(mine(state=written, pid=pid, pid_mark=before, **supervisor))
    found = registry.get(ID)
    assert found is not None
    assert found.state is seen


def test_the_oldest_that_have_ended_are_forgotten(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "MAX_ENDED_RUNS", 2)
    for number in range(4):
        run = f"{number:032x}"
        registry.put(Entry(run, "payments", State.FINISHED, start=number, end=number))
        registry.log_file(run).parent.mkdir(exist_ok=True)
        registry.log_file(run).write_text("log")
    registry.put(mine(state=State.RUNNING, start=0))
    registry.prune()
    assert [entry.start for entry in registry.entries()] == [3, 2, 0]
    assert sorted(path.stem for path in (tmp_path / "home" / "logs").iterdir()) == [f"{n:032x}" for n in (2, 3)]


def test_a_registry_that_cannot_be_written_stops_nothing(
    registry: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        one = registries.register_driver("payments", "/checkpoints")
        one.write()
        one.update(state=State.RUNNING)
        one.update(state=State.FINISHED)
    assert one.entry.state is State.FINISHED
    assert caplog.text.count("cannot be written") == 1
    assert registry.entries() == []


def test_a_driver_makes_an_entry_of_its_own(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["jobs/payments.py", "--password", "hunter2"])
    one = registries.register_driver("payments", "s3a://key:hunter2@bucket/checkpoints")
    one.write()
    [found] = registry.entries()
    assert (found.name, found.state, found.pid) == ("payments", State.CREATED, os.getpid())
    assert found.script.endswith("/jobs/payments.py")
    assert found.storage == "s3a://key:***@bucket/checkpoints"
    assert "hunter2" not in str(found.public())
    assert registries.register_driver("payments", "/x").entry.id != found.id


def test_the_id_survives_a_restart_of_the_driver(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = SupervisorEntry(Path("payments_job.py"))
    begun = registry.get(supervisor.id)
    assert begun is not None
    assert (begun.name, begun.state, begun.pid) == ("payments_job", State.CREATED, None)
    for restarts in range(3):
        expect_run(supervisor.id)
        one = registries.register_driver("payments", "/checkpoints")
        one.write()
        assert (one.entry.id, one.entry.restarts, one.entry.name) == (supervisor.id, restarts, "payments")
        assert expected_run() is None  # a second job of the same process is another run
        one.update(state=State.FAILING, error=error_fields(TopicMissing("No topic.")))
        supervisor({"event": "supervisor", "action": "restarting", "reason": "ended with status 75"})
        found = registry.read_entry(supervisor.id)
        assert found is not None
        assert (found.state, found.end) == (State.RESTARTING, None)
        assert found.start == begun.start
    assert len(registry.entries()) == 1


def test_who_waits_for_the_lease_is_suspended(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = SupervisorEntry(Path("job.py"))
    supervisor({"event": "supervisor", "action": "awaits_lease", "host": "one", "turn": 3})
    found = registry.get(supervisor.id)
    assert found is not None
    assert (found.state, found.lease) == (State.SUSPENDED, "turn 3, on one")
    expect_run(supervisor.id)
    monkeypatch.setattr(lifeline, "_lease", {"turn": 4, "host": "two", "here": True})
    one = registries.register_driver("payments", "/checkpoints")
    assert (one.entry.state, one.entry.lease) == (State.CREATED, "turn 4, here")
    one.update(state=State.RUNNING, address="127.0.0.1:1", token="t", pid=None)
    supervisor({"event": "supervisor", "action": "lost_turn", "reason": "ended with status 76"})
    found = registry.get(supervisor.id)
    assert found is not None
    assert (found.state, found.lease, found.address, found.token) == (State.SUSPENDED, None, None, None)


@pytest.mark.parametrize(
    ("left", "action", "ended"),
    [
        (State.RUNNING, "failed", State.FAILED), (State.FAILING, "failed", State.FAILED),
        (State.FAILING, "gave_up", State.FAILED), (State.FAILING, "stopped", State.FAILED),
        (State.FINISHED, "done", State.FINISHED), (State.CANCELED, "done", State.CANCELED),
        (State.CANCELED, "stopped", State.CANCELED), (State.FINISHED, "stopped", State.FINISHED),
        (State.CREATED, "stopped", State.CANCELED), (State.CREATED, "done", State.FINISHED),
    ],
)  # fmt: skip
def test_what_a_supervisor_makes_of_an_end(registry: Registry, left: State, action: str, ended: State) -> None:
    supervisor = SupervisorEntry(Path("job.py"))
    begun = registry.read_entry(supervisor.id)
    assert begun is not None
    Registration(begun, registry).update(state=left, name="payments", savepoint="/sp")
    supervisor({"event": "supervisor", "action": "started", "pid": 1})
    supervisor({"event": "supervisor", "action": action, "reason": "ended with status 1", "status": 1})
    found = registry.read_entry(supervisor.id)
    assert found is not None
    assert (found.state, found.name, found.savepoint) == (ended, "payments", "/sp")
    assert (found.error is not None) == (action in ("failed", "gave_up"))
    assert found.end is not None or left.ended


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None), ("name", 7), ("start", "soon"), ("start", None), ("end", "x"), ("pid", "1"), ("address", 7),
        ("token", ["t"]), ("error", "x"), ("error", ["x"]), ("restarts", None), ("storage", {}), ("state", 7),
    ],
)  # fmt: skip
def test_an_entry_with_a_wrong_field_is_not_there_and_hides_no_other(
    registry: Registry, tmp_path: Path, field: str, value: object
) -> None:
    other = "f" * 32
    registry.put(mine(start=5))
    registry.put(Entry(**{**vars(mine(start=6)), "id": other}))
    body = json.loads(file(tmp_path).read_text())
    file(tmp_path).write_text(json.dumps({**body, field: value}))
    assert [entry.id for entry in registry.entries()] == [other]
    assert registry.get(ID) is None
