"""Storage in a dictionary behind a lock."""

from __future__ import annotations

import threading

from penstock.storage.storage import AlreadyExists, Storage


class MemoryStorage(Storage):
    forgetful = True

    def __init__(self, location: str = "memory:") -> None:
        self.location = location
        self.scheme = "memory"
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, name: str, data: bytes) -> None:
        with self._lock:
            if name in self._files:
                raise AlreadyExists(name)
            self._files[name] = data

    def read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def list(self, folder: str) -> list[str]:
        start = f"{folder.rstrip('/')}/" if folder else ""
        with self._lock:
            return sorted({name[len(start) :].partition("/")[0] for name in self._files if name.startswith(start)})

    def sizes(self, folder: str = "") -> dict[str, int]:
        start = f"{folder}/" if folder else ""
        with self._lock:
            names = sorted(name for name in self._files if name.startswith(start) and "/." not in f"/{name}")
            return {name: len(self._files[name]) for name in names}

    def link(self, name: str, other: str) -> None:
        with self._lock:
            if name in self._files:
                self._files[other] = self._files[name]

    def delete(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)

    def delete_folder(self, folder: str) -> bool:
        with self._lock:
            names = [name for name in self._files if name.startswith(f"{folder}/")]
            for name in names:
                del self._files[name]
        return bool(names)
