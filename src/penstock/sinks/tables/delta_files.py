"""Objects of a Delta table through `deltalake`'s own client, which also writes the table's log.

It takes each option under several names, and what is not given from the environment and from files of AWS. A second
client, asked the same, could come to another store than the log is in.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler


class DeltaFiles(DeltaStorageHandler):
    """What `deltalake` offers pyarrow, with streams that take what pyarrow writes."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_Bytes(self._handler.open_output_stream(path, metadata)), mode="w")


class _Bytes(io.RawIOBase):
    """The library's stream takes `bytes` alone, and pyarrow hands over its buffers."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._stream.tell())

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self._stream.write(taken)
        return len(taken)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
