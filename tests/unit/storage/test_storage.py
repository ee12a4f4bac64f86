"""Local storage: whole and durable or not there at all, one creator per name, and refusals with names of ours."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import LedgerError, StorageFull
from penstock.failpoints import hooked
from penstock.storage import durable, local
from penstock.storage.durable import ensure_folder
from penstock.storage.local import LocalStorage
from penstock.storage.storage import AlreadyExists, Storage, local_path
from tests.support.memory_storage import MemoryStorage
from tests.support.power import Steps


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return LocalStorage(tmp_path / "root") if request.param == "local" else MemoryStorage()


def test_a_name_is_created_once(storage: Storage) -> None:
    storage.create("folder/name", b"first")
    with pytest.raises(AlreadyExists):
        storage.create("folder/name", b"second")
    assert storage.read("folder/name") == b"first"


def test_what_is_not_there(storage: Storage) -> None:
    assert storage.read("nothing") is None
    assert storage.read("nothing/inside") is None
    assert storage.list("nothing") == []
    storage.delete("nothing")


def test_listing_and_deleting(storage: Storage) -> None:
    for name in ("b", "a", "c"):
        storage.create(f"folder/{name}", name.encode())
    storage.create("other/d", b"")
    assert storage.list("folder") == ["a", "b", "c"]
    storage.delete("folder/b")
    assert storage.list("folder") == ["a", "c"]
    storage.create("folder/b", b"again")
    assert storage.read("folder/b") == b"again"


def test_a_further_name_keeps_what_the_first_one_had(storage: Storage) -> None:
    storage.create("state/1", b"ours")
    storage.create("state/2", b"other")
    for _ in range(2):
        storage.link("state/1", "kept/deep/1")
    storage.delete("state/1")
    storage.create("state/1", b"")
    storage.link("nothing", "state/2")
    assert [storage.read(name) for name in ("state/1", "state/2", "kept/deep/1")] == [b"", b"other", b"ours"]
    storage.link("kept/deep/1", "state/1")
    storage.link("kept/deep/1", "state/1")
    assert storage.read("state/1") == b"ours"
    assert (storage.list("kept/deep"), storage.list("state")) == (["1"], ["1", "2"])
    if isinstance(storage, LocalStorage):
        assert sorted(os.listdir(storage.root / "state")) == ["1", "2"], "nothing is left of the way"


def test_a_further_name_that_the_file_system_does_not_allow_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "protected_hardlinks")

    storage = LocalStorage(tmp_path)
    storage.create("state/1", b"another user's")
    monkeypatch.setattr(os, "link", refuse)
    storage.link("state/1", "kept/1")
    assert storage.list("kept") == []


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_of_eight_threads_one_wins(kind: str, tmp_path: Path) -> None:
    one = MemoryStorage()
    for attempt in range(20):
        start = threading.Barrier(8)
        won: list[int] = []

        def create(number: int, start: threading.Barrier = start, won: list[int] = won, attempt: int = attempt) -> None:
            mine = LocalStorage(tmp_path / "root") if kind == "local" else one
            start.wait()
            try:
                mine.create(f"race/{attempt}", str(number).encode())
            except AlreadyExists:
                return
            won.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [winner] = won
        reader = LocalStorage(tmp_path / "root") if kind == "local" else one
        assert reader.read(f"race/{attempt}") == str(winner).encode()


def test_of_eight_processes_one_wins(tmp_path: Path) -> None:
    """They wait for one another, then all create the same hundred names."""
    script = """
import sys, time
from pathlib import Path
from penstock.storage.local import LocalStorage
from penstock.storage.storage import AlreadyExists
root, number = Path(sys.argv[1]), sys.argv[2]
storage = LocalStorage(root)
storage.create(f"ready/{number}", b"")
while len(storage.list("ready")) < 8:
    time.sleep(0.001)
for name in range(100):
    try:
        storage.create(f"race/{name}", number.encode())
        print(name)
    except AlreadyExists:
        pass
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, env=environment, text=True)
        for number in range(8)
    ]
    won = {number: process.communicate(timeout=60)[0].split() for number, process in enumerate(processes)}
    assert [process.returncode for process in processes] == [0] * 8
    assert sorted(int(name) for names in won.values() for name in names) == list(range(100))
    storage = LocalStorage(tmp_path)
    for number, names in won.items():
        assert all(storage.read(f"race/{name}") == str(number).encode() for name in names)


def test_half_a_write_is_never_seen(tmp_path: Path) -> None:
    """Until the name is there the bytes stand aside; a failure in between leaves nothing behind."""
    storage = LocalStorage(tmp_path)
    seen: list[object] = []

    def look() -> None:
        seen.append((storage.read("folder/name"), storage.list("folder"), len(os.listdir(tmp_path / "folder"))))
        raise KeyError

    with hooked("ledger.aside", look), pytest.raises(KeyError):
        storage.create("folder/name", b"content")
    assert seen == [(None, [], 1)]
    assert os.listdir(tmp_path / "folder") == []


def test_the_bytes_are_synced_before_the_name_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    ensure_folder(tmp_path)
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), fsync(handle)))
    monkeypatch.setattr(os, "link", lambda *names: (steps.append("link"), link(*names)))
    storage = LocalStorage(tmp_path)
    storage.create("folder/name", b"")
    assert steps == ["sync", "sync", "link", "sync"]  # the new folder's entry, the bytes, the name, the name's entry
    steps.clear()
    storage.create("folder/other", b"")
    assert steps == ["sync", "link", "sync"]


def test_a_name_that_somebody_else_gave_is_durable_before_anybody_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its creator may have died between the link and the sync of the folder.
    storage = LocalStorage(tmp_path)
    storage.create("epochs/name", b"")
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    with pytest.raises(AlreadyExists):
        storage.create("epochs/name", b"")
    assert str(tmp_path / "epochs") in synced
    synced.clear()
    storage.settle("epochs")
    assert synced == [str(tmp_path / "epochs")]
    storage.settle("nothing/here")


def test_two_containers_of_one_mount_do_not_write_into_each_other_s_file(tmp_path: Path) -> None:
    # Every container has a process 1, and counts from 0.
    aside = []
    program = (
        "import os, sys; from pathlib import Path; from penstock.storage.local import LocalStorage\n"
        "os.getpid = lambda: 1; link = os.link; os.link = lambda old, new: (print(old), link(old, new))\n"
        "LocalStorage(Path(sys.argv[1])).create('folder/name', b'')"
    )
    for number in range(2):
        told = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / str(number))], check=True, capture_output=True, text=True
        )
        aside.append(Path(told.stdout.strip()).name)
    assert len(set(aside)) == 2


def test_what_a_run_that_died_wrote_aside_is_in_nobodys_way(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)

    class Died(BaseException):
        pass

    def die() -> None:
        os.unlink = lambda name: (_ for _ in ()).throw(Died)  # type: ignore[assignment, misc]
        raise Died

    unlink = os.unlink
    try:
        with hooked("ledger.aside", die), pytest.raises(Died):
            storage.create("folder/name", b"half")
    finally:
        os.unlink = unlink
    assert len(os.listdir(tmp_path / "folder")) == 1
    assert storage.list("folder") == []
    storage.create("folder/name", b"whole")
    assert storage.read("folder/name") == b"whole"


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, LedgerError), (errno.EACCES, LedgerError)],
)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[LedgerError]) -> None:
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    storage = LocalStorage(tmp_path)
    storage.create("folder/before", b"")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(kind) as refused:
            storage.create("folder/name", b"")
    assert type(refused.value) is kind
    assert str(tmp_path / "folder/name") in refused.value.happened
    assert refused.value.safe
    assert refused.value.to_do
    assert storage.list("folder") == ["before"]
    assert refused.value.retryable


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    (tmp_path / "name").mkdir()
    with pytest.raises(LedgerError, match="reading"):
        storage.read("name")
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="writing"):
        storage.create("file/inside", b"")
    assert storage.list("file") == []


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a/b c%20d#e?f", "/a/b c%20d#e?f"),
        ("file:///a/b c%20d#e?f", "/a/b c%20d#e?f"),
        ("file://localhost/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("hdfs://host/a", None),
        ("s3a://bucket/a", None),
        ("memory:", None),
    ],
)
def test_local_path(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))


def test_a_relative_path_is_made_absolute() -> None:
    assert local_path("a/b") == Path.cwd() / "a/b"


@pytest.mark.parametrize(
    ("kind", "message", "taken"),
    [
        ("org.apache.hadoop.fs.FileAlreadyExistsException", "rename", True),
        ("org.apache.hadoop.fs.PathExistsException", "`a': File exists", True),
        (
            "org.apache.hadoop.fs.s3a.RemoteFileChangedException",
            "(Service: S3, Status Code: 412):PreconditionFailed",
            True,
        ),
        ("org.apache.hadoop.fs.s3a.RemoteFileChangedException", "file has changed while it was read", False),
        ("org.apache.hadoop.fs.s3a.AWSServiceIOException", "(Service: S3, Status Code: 503): SlowDown", False),
    ],
)
def test_how_hadoop_says_that_a_name_is_taken(kind: str, message: str, taken: bool) -> None:
    """As a real S3 and a real HDFS have said it: `test_s3.py`, `test_hdfs.py`."""
    from penstock.storage.hadoop import _was_first

    assert _was_first(kind, message) is taken


# Where the kernel hands no sync of a whole file system on


def test_each_changed_file_and_its_folder_are_synced_where_the_file_system_is_not_synced_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "syncs_as_one", lambda _: False)
    root = tmp_path / "spark"
    for name in ("offsets/0", "state/0/0/1.delta", "state/0/1/1.delta"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    steps = Steps(root, monkeypatch)
    storage = LocalStorage(root)

    def synced() -> set[str]:
        steps.did.clear()
        assert storage.sync()
        return {name for name in steps.synced if not name.startswith("..")}

    folders = {".", "offsets", "state", "state/0", "state/0/0", "state/0/1"}
    assert synced() == folders | {"offsets/0", "state/0/0/1.delta", "state/0/1/1.delta"}
    assert synced() == set(), "nothing has changed"
    (root / "state/0/0/2.delta").write_text("x")
    os.replace(root / "state/0/1/1.delta", root / "state/0/1/2.delta")
    assert synced() == {"state/0/0", "state/0/0/2.delta", "state/0/1", "state/0/1/2.delta"}
    (root / "aside").write_text("y")
    os.replace(root / "aside", root / "offsets/0")
    assert synced() == {"offsets", "offsets/0"}, "another file under the same name"
    (root / "state/0/0/2.delta").unlink()
    assert synced() == {"state/0/0"}


@pytest.mark.parametrize(("kind", "one"), [(0xEF53, True), (0x9123683E, True), (0x65735546, False), (0x6969, False)])
def test_only_file_systems_that_carry_it_out_are_synced_as_one(
    monkeypatch: pytest.MonkeyPatch, kind: int, one: bool
) -> None:
    """ext4 and Btrfs do; FUSE is not asked, and NFS is not known to."""

    def statfs(path: bytes, about: Any) -> int:
        assert path == b"/"
        about.raw = kind.to_bytes(8, sys.byteorder)
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(statfs=statfs, syncfs=None))
    assert durable.syncs_as_one("/") is one
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(statfs=lambda *_: -1, syncfs=None))
    assert not durable.syncs_as_one("/"), "what is not known is synced file by file"
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(statfs=statfs))
    assert not durable.syncs_as_one("/")


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path, kind: str) -> None:
    storage: Storage = LocalStorage(tmp_path) if kind == "local" else MemoryStorage()
    storage.create("state/0/0/1.delta", b"abc")
    storage.create("state/0/.1.crc", b"x")
    storage.create("offsets/0", b"")
    assert storage.sizes() == {"offsets/0": 0, "state/0/0/1.delta": 3}
    assert storage.sizes("state") == {"state/0/0/1.delta": 3}
    assert storage.delete_folder("state")
    assert not storage.delete_folder("state")
    assert storage.read("state/0/.1.crc") is None
    assert storage.sizes() == {"offsets/0": 0}


@pytest.mark.parametrize("fails", [False, True])
def test_a_file_system_is_synced_through_any_of_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    handles: list[int] = []

    def syncfs(handle: int) -> int:
        assert os.fstat(handle).st_ino == tmp_path.stat().st_ino
        handles.append(handle)
        ctypes.set_errno(errno.EIO)
        return -1 if fails else 0

    def library(name: None, use_errno: bool = False) -> Any:
        assert name is None
        assert use_errno
        return SimpleNamespace(syncfs=syncfs)

    monkeypatch.setattr(ctypes, "CDLL", library)
    if fails:
        with pytest.raises(OSError, match="Input/output error") as raised:
            durable.sync_file_system(tmp_path)
        assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(tmp_path))
    else:
        durable.sync_file_system(tmp_path)
    [handle] = handles
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, in its order."""
    paths: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (paths.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    return paths


def test_a_sync_leaves_no_handle(tmp_path: Path, synced: list[str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    durable.sync(tmp_path)
    assert synced == [str(tmp_path)]
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_spark_removes_while_all_is_synced_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    (tmp_path / "there").write_text("x")
    (tmp_path / "removed").write_text("x")
    walk, lstat = list(os.walk(tmp_path)), os.lstat
    monkeypatch.setattr(os, "walk", lambda root: [(where, below, [*names, "gone"]) for where, below, names in walk])

    def look(path: str) -> os.stat_result:
        status = lstat(path)
        if path.endswith("removed"):
            (tmp_path / "removed").unlink()
        return status

    monkeypatch.setattr(os, "lstat", look)
    seen = durable.sync_below(tmp_path, {})
    assert synced == [str(tmp_path / "there"), str(tmp_path)]
    assert seen.keys() == {str(tmp_path), str(tmp_path / "there"), str(tmp_path / "removed")}


def test_a_folder_that_another_process_makes_meanwhile_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    looks, is_dir = iter([False]), Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: next(looks, True) and is_dir(path))
    ensure_folder(folder)
    assert str(tmp_path) in synced


def test_of_each_folder_that_was_found_the_name_is_synced_once(tmp_path: Path, synced: list[str]) -> None:
    """A process that finds a folder cannot know whether the one that made it has synced its name."""
    for name in ("a/x", "b/y"):
        (tmp_path / name).mkdir(parents=True)
    ensure_folder(tmp_path / "a/x")
    assert synced[:2] == [str(tmp_path / "a"), str(tmp_path)]
    synced.clear()
    ensure_folder(tmp_path / "b/y")
    assert synced == [str(tmp_path / "b"), str(tmp_path)]
    synced.clear()
    ensure_folder(tmp_path / "b/y")
    assert synced == []
    (tmp_path / "b/y").rename(tmp_path / "b/z")
    ensure_folder(tmp_path / "b/z")
    assert synced == [str(tmp_path / "b")], "the same folder under another name"


def test_a_folder_above_that_may_not_be_read_is_passed_over_unless_it_was_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = durable.sync

    def refused(path: Path) -> None:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        sync(path)

    monkeypatch.setattr(durable, "sync", refused)
    (tmp_path / "old").mkdir()
    ensure_folder(tmp_path / "old")
    ensure_folder(tmp_path / "old" / "below")
    with pytest.raises(PermissionError):
        ensure_folder(tmp_path / "new")
