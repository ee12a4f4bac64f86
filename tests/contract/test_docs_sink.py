"""The sink that the documentation shows how to write, run as it stands there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.sink_contract import SinkContract

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-sink.md"
SNIPPET = re.compile(r"<!-- runnable: (\S+) -->\n```python\n(.*?)\n```", re.DOTALL)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the page's test module defines; its files are importable, also for the processes that tests kill."""
    folder = tmp_path_factory.mktemp("shown")
    files = dict(SNIPPET.findall(PAGE.read_text(encoding="utf-8")))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    names: dict[str, Any] = {}
    exec(compile(files["test_sqlite_sink.py"], "test_sqlite_sink.py", "exec"), names)
    yield names
    sys.path.remove(str(folder))
    sys.modules.pop("sqlite_sink", None)


class TestShownSink(SinkContract):
    @pytest.fixture(autouse=True)
    def harness_for_this_test(self, shown: dict[str, Any], tmp_path: Path) -> None:
        self.harness = shown["SQLiteHarness"](str(tmp_path / "target.db"))


def test_the_shown_simulation_passes(shown: dict[str, Any], tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    text = dict(SNIPPET.findall(PAGE.read_text(encoding="utf-8")))["test_sqlite_simulation.py"]
    exec(compile(text, "test_sqlite_simulation.py", "exec"), names)
    names["test_the_sink_in_simulation"](tmp_path)


def test_the_page_uses_the_whole_suite(shown: dict[str, Any]) -> None:
    assert issubclass(shown["TestSQLiteSink"], SinkContract)
