"""The oldest version of Spark that is supported, in `make test`: state, a death after a decision, and recovery from
Spark's log, with both backends. The whole core, on every version: `make matrix`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.supply.versions import VERSIONS
from tests.support.environments import environment
from tests.support.jobs.upgraded import BACKENDS, EPOCHS, KEYS, PER_EPOCH
from tests.support.quick_jvm import PLAIN
from tests.support.quick_jvm import VARIABLE as JAVA_OPTIONS
from tests.support.upgraded import counts_in, run_under


@pytest.mark.timeout(600)  # where `make test` did not bring that Spark, its 400 MB come first, once
def test_the_oldest_version_goes_on_after_a_decision(tmp_path: Path) -> None:
    run_under(environment(VERSIONS[0].patch), "survive", tmp_path, **{JAVA_OPTIONS: PLAIN})
    per_key = PER_EPOCH // KEYS
    whole = {key: [per_key * (epoch + 1) for epoch in range(EPOCHS)] for key in range(KEYS)}
    for backend in BACKENDS:
        assert counts_in(tmp_path / backend / "main") == whole, f"{backend}: none lost, none doubled"
        assert json.loads((tmp_path / backend / "recovered").read_text()) == ["finished", 2]
