"""Small durable files with one strong promise: of two creates of one name, exactly one succeeds.

Everything the ledger writes goes through `Storage`. Names are relative, with `/` between folders. How a create is
atomic: see `storage.local` and `storage.hadoop`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlparse

from penstock.errors import LedgerError, StorageFull

log = logging.getLogger("penstock")

RACERS, PROBES = 4, 3  # creates of one name at a time; races at a start


class AlreadyExists(Exception):
    """The name exists already. Not an error by itself: the caller decides."""


class Storage(ABC):
    """A folder of small files."""

    location: str
    scheme: str  # of the location: `file`, `hdfs`, `s3a`, …
    forgetful: ClassVar[bool] = False
    """Whether a power cut takes what was not synced, and it is cheap to see what is there."""

    def sync(self) -> bool:
        """Make durable what others have written below this folder; False where there is no way to ask for it."""
        return False

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Durable and whole under `name` when this returns; `AlreadyExists` if the name was taken. After any other
        error the file may or may not be there: only reading it tells."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The file's bytes, or None where there is no such file."""

    @abstractmethod
    def list(self, folder: str) -> list[str]:
        """Names (without the folder) directly below `folder`, sorted; empty where there is no such folder."""

    @abstractmethod
    def sizes(self, folder: str = "") -> dict[str, int]:
        """Every file below `folder`, by its name from the root, and its bytes. Hidden files are not seen."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Gone when this returns; no error if it was gone before."""

    @abstractmethod
    def delete_folder(self, folder: str) -> bool:
        """The folder and all that is in it, hidden files too, are gone when this returns. Whether it was there."""

    def link(self, name: str, other: str) -> None:
        """`other` is the file `name` from now on, too, if the file system allows it. Only where it is `forgetful`."""
        raise NotImplementedError

    def settle(self, folder: str) -> None:
        """The names found in `folder` survive a power cut. Only a local disk shows names before they are durable."""
        return


@contextlib.contextmanager
def tidying(location: str) -> Iterator[None]:
    """Around the removal of old files: a failure is logged, and the next removal takes what this one left."""
    try:
        yield
    except Exception as error:
        log.warning("old files in %s could not be removed, which is tried again later: %s", location, error)


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turns the operating system's refusals into the ledger's."""
    try:
        yield
    except OSError as error:
        raise refused(what, str(error), full=is_full(error)) from error


def refused(what: str, why: str, *, full: bool) -> LedgerError:
    if full:
        return StorageFull(
            f"No space left while {what}: {why}.",
            safe="no decision was lost: an epoch whose decision could not be written is replayed.",
            to_do="free space where the checkpoints are; the job then goes on if its restart strategy retries.",
        )
    return LedgerError(
        f"The storage refused while {what}: {why}.",
        safe="nothing was decided by this attempt that a restart would not find.",
        to_do="see that the location exists, is reachable and may be written by this user.",
    )


def local_path(location: str) -> Path | None:
    """The path behind a plain or `file:` location, None for any other scheme.

    Read as Hadoop reads it, character by character: `%20`, `#` and `?` are part of the name. Another reading would put
    the ledger beside a checkpoint that is not the query's."""
    scheme = urlparse(location).scheme
    if scheme == "file":
        rest = location.partition(":")[2]
        return Path("/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest).absolute()
    return Path(location).absolute() if scheme == "" else None


def same_place(one: str, other: str) -> bool:
    path, its = local_path(one), local_path(other)
    if path is not None and its is not None:
        return path.resolve() == its.resolve()
    return one.rstrip("/") == other.rstrip("/")


def race(storage: Storage, name: str) -> list[bytes]:
    """What those wrote whose create of `name` succeeded. Losers may fail in any way that storage under contention has;
    where none succeeded, the first such error is raised."""
    start = threading.Barrier(RACERS)
    won: list[bytes] = []
    failed: list[Exception] = []

    def run(number: int) -> None:
        data = b"%d" % number
        start.wait()
        try:
            storage.create(name, data)
        except AlreadyExists:
            return
        except Exception as error:
            failed.append(error)
        else:
            won.append(data)

    threads = [threading.Thread(target=run, args=(number,), name="penstock-probe") for number in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not won and failed:
        raise failed[0]
    return won
