"""Notebooks: the example runs in a real kernel, and interrupting a cell stops its job cleanly."""

from __future__ import annotations

import queue
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pyarrow.parquet as pq
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.support.verdicts import assert_none, number_anomalies
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
DESCRIBED = """
from penstock import Checkpoints, DataGenSource, FileSink, Job
job = Job({name!r}, checkpoints=Checkpoints(interval="100ms", storage={storage!r}))
numbers = job.read(DataGenSource(10_000_000, max_rows_per_epoch=100), uid="numbers")
job.write(numbers.select("id"), FileSink({out!r}), uid="out")
"""

pytestmark = pytest.mark.filterwarnings("ignore:Proactor|zmq:RuntimeWarning")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIVE", str(tmp_path / "payments"))
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))


def kernel() -> KernelManager:
    """Of this very environment, whatever kernels are installed on the machine."""
    manager = KernelManager()
    spec = manager.kernel_spec
    assert spec is not None
    spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return manager


def test_the_example_runs_as_it_is(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLE, as_version=4)
    client = NotebookClient(notebook, km=kernel(), timeout=200, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    cells = {cell["id"]: cell for cell in notebook.cells}

    def shown(name: str) -> str:
        return "\n".join(
            str(output.get("data", {}).get("text/html") or output.get("text") or output.get("data"))
            for output in cells[name].get("outputs", ())
        )

    assert "payments → spark → large: exactly-once" in shown("describe")
    assert "<table>" in shown("start")
    assert "ended" in shown("wait"), "the progress in the cell is that of the end"
    assert "epoch 4: " in shown("wait")
    assert "complete after" in shown("epoch")
    counted = re.search(r"(\d+) rows, (\d+) of them different", shown("rows"))
    assert counted
    assert counted[1] == counted[2] != "0"


class Kernel:
    """A kernel that runs one cell after the other, as a notebook does."""

    def __init__(self) -> None:
        self.manager = kernel()
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=100)

    def begin(self, code: str) -> str:
        return str(self.client.execute(code, store_history=False))

    def end(self, cell: str) -> dict[str, Any]:
        """The reply, and below `text` all that the cell printed."""
        reply = self._of(cell, self.client.get_shell_msg)["content"]
        printed = ""
        while (message := self._of(cell, self.client.get_iopub_msg))["content"].get("execution_state") != "idle":
            printed += message["content"].get("text", "")
        return {**reply, "text": printed}

    def run(self, code: str) -> str:
        reply = self.end(self.begin(code))
        assert reply["status"] == "ok", reply
        return str(reply["text"])

    def _of(self, cell: str, read: Any) -> dict[str, Any]:
        while True:
            try:
                message: dict[str, Any] = read(timeout=200)
            except queue.Empty:
                raise AssertionError("the kernel does not answer") from None
            if message["parent_header"].get("msg_id") == cell:
                return message

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextmanager
def running_kernel() -> Iterator[Kernel]:
    made = Kernel()
    try:
        yield made
    finally:
        made.close()


def numbers(out: Path) -> list[int]:
    files = [file for file in out.glob("*.parquet") if not file.name.startswith((".", "_"))]
    return [value for file in files for value in pq.read_table(file, columns=["id"]).column("id").to_pylist()]


def test_an_interrupted_cell_stops_its_job(tmp_path: Path) -> None:
    """The first cell makes the session, too: then PySpark's own handler would cancel the epoch under way."""
    waits = ("job.run()", "running = job.start()\nrunning.wait()")
    with running_kernel() as kernel:
        for name, wait in zip(("first", "second"), waits, strict=True):
            out = tmp_path / name
            described = DESCRIBED.format(name=name, storage=str(tmp_path / "checkpoints"), out=str(out))
            cell = kernel.begin(described + wait)
            until(lambda: len(numbers(out)) >= 300, "some epochs", 150)  # noqa: B023
            kernel.manager.interrupt_kernel()
            assert kernel.end(cell)["status"] == "ok", "the interrupt is taken, and no error"
            seen = numbers(out)
            assert_none(number_anomalies(range(len(seen)), seen))
        assert kernel.run("print(running.running, running.error)").strip() == "False None"

        third = tmp_path / "third"
        described = DESCRIBED.format(name="third", storage=str(tmp_path / "checkpoints"), out=str(third))
        kernel.run(f"{described}running = job.start()")
        until(lambda: len(numbers(third)) >= 300, "some epochs", 150)
        assert kernel.run("print(running.running)").strip() == "True", "the cell is free while the job runs"
        assert kernel.run("print(running.page)").startswith("http://127.0.0.1:")
        assert "running" in kernel.run("print(running._repr_html_())")
        kernel.run("running.stop()")
        seen = numbers(third)
        assert_none(number_anomalies(range(len(seen)), seen))
        cell = kernel.begin("job.start()")
        assert kernel.end(cell)["ename"] == "ConfigurationError"
