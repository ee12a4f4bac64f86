"""A writer in a process of its own that dies at once after pre-commit, as a lost executor does.

Run by `SinkContract` as `python -m penstock.testing.sink_process`: a pickled request on stdin, the payload as JSON on
stdout, then SIGKILL to itself. Nothing that lived only in this process can help a later commit.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.contracts.sink import TwoPhaseSink, WriterScope


def prepare_and_die(sink: TwoPhaseSink, scope: WriterScope, batch: pa.RecordBatch, patience: float) -> dict[str, Any]:
    """The payload of a writer whose process was killed right after it prepared `batch`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "penstock.testing.sink_process"],
        input=pickle.dumps((sink, scope, batch)),
        capture_output=True,
        env=environment,
        timeout=patience,
        check=False,
    )
    if done.returncode != -signal.SIGKILL:
        raise AssertionError(f"the writer's process failed before it could be killed:\n{done.stderr.decode()}")
    payload: dict[str, Any] = json.loads(done.stdout)
    return payload


def main() -> None:
    sink, scope, batch = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent that started this process
    writer = sink.open_writer(scope)
    writer.write(batch)
    sys.stdout.write(json.dumps(dict(writer.pre_commit())))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
