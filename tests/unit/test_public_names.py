"""The package's face: every public name is there, and a worker that needs little imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock


def test_every_public_name_is_found_where_it_is_said_to_be() -> None:
    assert sorted(penstock.__all__) == sorted(penstock._WHERE)
    for name in penstock.__all__:
        assert getattr(penstock, name).__name__ == name
    assert set(penstock.__all__) <= set(dir(penstock))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Jobb'"):
        penstock.Jobb  # noqa: B018


def test_a_task_imports_neither_the_job_nor_its_servers() -> None:
    code = "import sys, penstock.epoch.task, penstock.sinks.kafka; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "penstock.sinks.kafka" in told
    assert {"penstock.job", "starlette", "pyspark"}.isdisjoint(told)
