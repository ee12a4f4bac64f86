"""The table of options in the reference: made from the code, every row shown by a test that is there."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.settings_table import BEGIN, END, SHOWN_BY, insert_table, table

from penstock.config import Checkpoints, StateBackend
from penstock.config.levels import ALL as OPTIONS
from penstock.config.levels import BY_KEY
from penstock.config.operations import Availability, Log, Recovery, Rest
from penstock.config.option import Option
from penstock.config.restart_strategy import RestartStrategy

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "settings.md"

every_option = pytest.mark.parametrize("option", OPTIONS, ids=[option.key for option in OPTIONS])


def test_the_page_has_the_table_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert page == insert_table(page), "run: python scripts/settings_table.py docs/reference/settings.md"


def test_the_command_writes_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    subprocess.run([sys.executable, "scripts/settings_table.py", str(page)], check=True, cwd=ROOT)
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}\n{table()}\n{END}\nafter\n"


@every_option
def test_every_option_is_shown_by_tests_that_are_there(option: Option) -> None:
    for test in SHOWN_BY[option.key]:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), f"{path} is not there"
        assert re.search(rf"def {name}\(", (ROOT / path).read_text(encoding="utf-8")), f"{path} has no {name}"


@every_option
def test_the_default_in_the_table_is_the_default_in_python(option: Option) -> None:
    part, _, name = option.name.rpartition(".")
    written = option.parse(option.default, option.key) if option.default else None
    match option.part:
        case "checkpoints" if option.name == "storage_kind":
            assert written == "filesystem"
        case "checkpoints":
            seconds = getattr(Checkpoints(), f"{name}_seconds", None)
            size = Checkpoints().inflight_bytes if name == "inflight_limit" else None
            assert written == next(
                one for one in (seconds, size, getattr(Checkpoints(), name)) if one is not None or not option.default
            )
        case "restart" if part:
            makes = getattr(RestartStrategy, part.replace("-", "_"))
            default = inspect.signature(makes).parameters[name].default
            if default is None:  # it depends on what else is given
                default = getattr(makes(), name)
            assert written == (option.parse(default, name) if isinstance(default, str) else default)
        case "recovery":
            assert written == getattr(Recovery(), name)
        case "availability":
            assert written == getattr(Availability(), name)
        case "rest":
            assert written == getattr(Rest(), name)
        case "log":
            assert written == getattr(Log(), name)
        case "state" if name != "kind":
            assert inspect.signature(StateBackend.rocksdb).parameters[name].default is None


def test_no_two_options_have_a_key_in_common() -> None:
    assert len(BY_KEY) == sum(1 + len(option.aliases) for option in OPTIONS)
