"""A mount that shows old listings is told from one that does not, and refused before anything is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.checkpoint.open import ledger_at
from penstock.config import Checkpoints
from penstock.config.operations import Availability
from penstock.errors import StorageNotCoherent
from penstock.ops.turn import lease_of
from penstock.storage import durable as mounts
from penstock.storage.durable import mount_of

ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro"
NO_SPARK: Any = None  # an address with a scheme needs none


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`mounted(kind, options)`: as if `checkpoints` in the test's folder were such a mount; its path."""
    table, folder = tmp_path / "mountinfo", tmp_path / "check points"
    monkeypatch.setattr(mounts, "_TABLE", table)

    def mount(kind: str, options: str, *more: str) -> Path:
        point = str(folder).replace(" ", "\\040")
        line = f"36 22 0:45 / {point} rw,noatime shared:7 - {kind} server:/export {options}"
        odd = [
            "nonsense",
            "1 2 - nfs4 server:/x rw",
            "40 22 0:9 / / rw - nfs4 rw",
            "41 22 0:9 / / - nfs4 server:/x rw",
            "\udcff",
        ]
        text = "\n".join([line, ROOT, *more, *odd, ""])
        table.write_text(text, errors="surrogateescape")
        return folder

    return mount


def kind_of(folder: Path) -> str:
    mount = mount_of(folder)
    assert mount is not None
    return mount.kind


STALE = [
    ("nfs4", "rw,vers=4.2,hard,proto=tcp"),
    ("nfs", "rw,vers=3,acdirmin=1,acdirmax=5"),
    ("nfs4", "rw,acregmin=0,acregmax=0,acdirmin=0"),
    ("cifs", "rw,cache=strict,actimeo=1"),
    ("smb3", "rw,actimeo=10"),
    ("fuse.sshfs", "rw,user_id=0"),
]
FRESH = [
    ("nfs4", "rw,sync,noac,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0"),
    ("nfs", "rw,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0"),
    ("cifs", "rw,cache=none,actimeo=0"),
    ("ceph", "rw,acl"),
    ("ext4", "rw"),
    ("lustre", "rw"),
]


@pytest.mark.parametrize(("kind", "options"), STALE)
def test_a_mount_that_may_show_old_listings_is_refused_before_a_generation_is_registered(
    mounted: Any, kind: str, options: str
) -> None:
    folder = mounted(kind, options)
    with pytest.raises(StorageNotCoherent, match=rf"trusted-schemes={kind}\.") as refused:
        ledger_at(f"file:{folder}/job/out/ledger", NO_SPARK, retained=100)
    assert f"mount of {kind} at {folder} " in refused.value.happened
    remount = "" if kind == "fuse.sshfs" else "mount it with the option actimeo=0 on every machine; or "
    assert refused.value.to_do.startswith(f"{remount}keep checkpoints on a local disk")
    trusted = Checkpoints(trusted_schemes=kind).trusted_schemes
    ledger_at(f"file:{folder}/job/out/ledger", NO_SPARK, retained=100, trusted=trusted)
    assert not folder.exists(), "nothing was written"


@pytest.mark.parametrize(("kind", "options"), FRESH)
def test_a_mount_that_shows_what_others_create_is_taken(mounted: Any, kind: str, options: str) -> None:
    ledger_at(f"file:{mounted(kind, options)}/job/out/ledger", NO_SPARK, retained=100)


def test_the_lease_is_refused_there_before_it_is_taken(mounted: Any) -> None:
    folder = mounted("nfs4", "rw")
    settings: Any = SimpleNamespace(availability=Availability(lease=10.0))
    with pytest.raises(StorageNotCoherent):
        lease_of("job", settings, Checkpoints(storage=f"file:{folder}"), NO_SPARK)


def test_the_innermost_mount_counts_and_of_two_at_one_place_the_last(mounted: Any) -> None:
    folder = mounted("nfs4", "rw", ROOT.replace(" / / ", " / /elsewhere ").replace("ext4", "xfs"))
    assert [kind_of(path) for path in (folder, folder / "a" / "b", folder.parent)] == ["nfs4", "nfs4", "ext4"]
    assert kind_of(folder.with_name(folder.name + "-2")) == "ext4", "a name that only begins alike"
    point = str(folder).replace(" ", "\\040")
    mounted("nfs4", "rw", f"37 22 0:46 / {point} rw - tmpfs tmpfs rw")
    assert kind_of(folder) == "tmpfs"


def test_a_link_leads_to_the_mount_that_it_names(mounted: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(mounted("nfs4", "rw"))
    assert kind_of(tmp_path / "link" / "job") == "nfs4"


def test_where_the_system_tells_nothing_of_mounts_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_TABLE", tmp_path / "no such file")
    assert mount_of(tmp_path) is None
    ledger_at(f"file:{tmp_path}/ledger", NO_SPARK, retained=100)


def test_this_machine_tells_of_its_own_mounts(tmp_path: Path) -> None:
    mount = mount_of(tmp_path)
    assert mount is None or tmp_path.resolve().is_relative_to(mount.point)
