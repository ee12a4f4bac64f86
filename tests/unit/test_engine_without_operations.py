"""What must be proven does not load what merely operates it."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORBIDDEN = ("penstock.ops", "penstock.cli", "penstock.dev")
DROPIN = """
from types import SimpleNamespace
import penstock
from tests.support.memory_sink import MemorySink
conf = SimpleNamespace(get=lambda name, default=None: default)
spark = SimpleNamespace(conf=conf, version="4.2.0", sparkContext=SimpleNamespace(master="local[2]"))
penstock.exactly_once(MemorySink(), uid="out", spark=spark)
"""


@pytest.mark.parametrize(
    "program",
    [
        "import penstock",
        DROPIN,
        "from penstock import Job",
        "import penstock.engine.coordinator",
        "import penstock.engine.run",
        "import penstock.engine.task",
    ],
)
def test_only_a_run_loads_operations(program: str) -> None:
    look = f"import sys\nprint([name for name in sys.modules if name.startswith({FORBIDDEN})])"
    answer = subprocess.check_output([sys.executable, "-c", f"{program}\n{look}"], text=True)
    assert answer.strip() == "[]"
