"""An object store in memory, as `penstock.storage.s3.S3Folder` shows it: objects, and multipart uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.errors import SystemUnavailable
from penstock.storage.s3 import Upload
from tests.support.simulation.schedule import Scheduler

_T = TypeVar("_T")


@dataclass
class Bucket:
    """`moved`: objects that a reader has taken away."""

    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, str, dict[int, bytes]]] = field(default_factory=dict)  # id: name, mark, parts
    moved: list[tuple[str, bytes]] = field(default_factory=list)
    completed: set[str] = field(default_factory=set)  # to complete one of these again does nothing, and succeeds
    away_until: float = 0.0
    begun: int = 0

    def take_away(self) -> None:
        """A reader moves every finished object out of the folder."""
        for name in [name for name in self.objects if name.startswith("part-")]:
            self.moved.append((name, self.objects.pop(name)[0]))

    def abort_all(self, spared: Callable[[], bool]) -> None:
        """A rule of the bucket ends open uploads."""
        self.uploads = {number: upload for number, upload in self.uploads.items() if spared()}

    def visible(self) -> list[bytes]:
        there = [(name, data) for name, (data, _) in self.objects.items() if name.startswith("part-")]
        return [data for _, data in sorted([*there, *self.moved])]


class SimulatedFolder:
    """Stands in for `S3Folder`."""

    location = "s3://simulated/out"

    def __init__(self, bucket: Bucket, schedule: Scheduler) -> None:
        self._bucket, self._schedule = bucket, schedule

    def _call(self, label: str, work: Callable[[], _T]) -> _T:
        def answered() -> _T:
            if self._bucket.away_until > self._schedule.now:
                raise _lost()
            return work()

        return self._schedule.call(label, answered, _lost)

    def put(self, name: str, data: bytes) -> None:
        self._call(f"put {name}", lambda: self._bucket.objects.__setitem__(name, (data, "")))

    def read(self, name: str) -> bytes | None:
        return self._call(f"get {name}", lambda: self._bucket.objects.get(name, (None, ""))[0])

    def mark(self, name: str) -> str | None:
        return self._call(f"get {name}", lambda: self._bucket.objects.get(name, (b"", None))[1])

    def remove(self, name: str) -> None:
        self._call(f"remove {name}", lambda: self._bucket.objects.pop(name, None))

    def names(self, start: str) -> list[str]:
        return self._call("get names", lambda: sorted(name for name in self._bucket.objects if name.startswith(start)))

    def begin(self, name: str, mark: str) -> str:
        def begin() -> str:
            self._bucket.begun += 1
            number = f"u{self._bucket.begun}"
            self._bucket.uploads[number] = (name, mark, {})
            return number

        return self._call(f"begin {name}", begin)

    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str | None:
        def put() -> str | None:
            if upload not in self._bucket.uploads:
                return None
            self._bucket.uploads[upload][2][number] = data
            return f"{upload}-{number}-{len(data)}"

        return self._call(f"upload {name}", put)

    def parts(self, name: str, upload: str) -> list[str] | None:
        def parts() -> list[str] | None:
            if upload not in self._bucket.uploads:
                return None
            held = self._bucket.uploads[upload][2]
            return [f"{upload}-{number}-{len(data)}" for number, data in sorted(held.items())]

        return self._call(f"get parts of {name}", parts)

    def complete(self, name: str, upload: str, etags: Sequence[str]) -> bool:
        def complete() -> bool:
            if upload not in self._bucket.uploads:
                return upload in self._bucket.completed
            self._bucket.completed.add(upload)
            _, mark, parts = self._bucket.uploads.pop(upload)
            self._bucket.objects[name] = (b"".join(data for _, data in sorted(parts.items())), mark)
            return True

        return self._call(f"commit {name}", complete)

    def abort(self, name: str, upload: str) -> None:
        self._call(f"abort {name}", lambda: self._bucket.uploads.pop(upload, None))

    def uploads(self, start: str, most: int | None = None) -> list[Upload]:
        return self._call(
            "get uploads",
            lambda: [
                Upload(name, number, 0.0)
                for number, (name, _, _) in self._bucket.uploads.items()
                if name.startswith(start)
            ],
        )


def _lost() -> Any:
    return SystemUnavailable("S3 did not answer.")
