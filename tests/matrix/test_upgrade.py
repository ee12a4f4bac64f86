"""What one version of Spark has left, the next one takes up: checkpoints with state, an epoch that was decided and not
committed, and savepoints of both kinds, with both backends. `make matrix` runs it for each neighbouring pair; in
`make long` it is the oldest version supported and the one of the lock."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from penstock.supply.versions import VERSIONS, installed_version
from tests.support.environments import environment
from tests.support.jobs.upgraded import BACKENDS, KEYS, KINDS, PER_EPOCH
from tests.support.upgraded import counts_in, run_under

OLDER = "PENSTOCK_OLDER_PYTHON"
"""The Python of an environment with the version before; set by `make matrix`."""


@pytest.fixture(scope="module")
def older() -> Path:
    named = os.environ.get(OLDER)
    if named is None and installed_version() is VERSIONS[0]:
        pytest.skip("there is no version before the oldest one")
    return Path(named) if named is not None else environment(VERSIONS[0].patch)


@pytest.mark.long
@pytest.mark.core("upgrade")
@pytest.mark.timeout(600)  # two sessions, twelve starts of a query; the first time also 400 MB of another Spark
def test_the_next_version_takes_up_what_the_one_before_left(older: Path, tmp_path: Path) -> None:
    run_under(older, "leave", tmp_path)
    decided = {}
    for backend in BACKENDS:
        commits = {int(path.name) for path in _log(tmp_path, backend).joinpath("commits").glob("[0-9]*")}
        offsets = {int(path.name) for path in _log(tmp_path, backend).joinpath("offsets").glob("[0-9]*")}
        assert max(offsets) == max(commits) + 1, "the last epoch is decided and not committed"
        decided[backend] = max(offsets)

    run_under(Path(sys.executable), "go-on", tmp_path)
    per_key = PER_EPOCH // KEYS
    for backend in BACKENDS:
        assert json.loads((tmp_path / backend / "recovered").read_text()) == ["finished", decided[backend] + 1]
        whole = counts_in(tmp_path / backend / "main")
        assert len(whole) == KEYS
        for made in whole.values():
            assert made == list(range(per_key, len(made) * per_key + 1, per_key)), "none lost, none doubled"
        for kind in KINDS:
            out = tmp_path / backend / f"from-{kind}"
            if not out.exists():
                assert (backend, kind) == ("rocksdb", "canonical")
                assert not installed_version().rewrites_rocksdb
                continue
            saved = json.loads((Path((tmp_path / backend / kind).read_text()) / "_metadata").read_text())["body"]
            first = (saved["queries"]["counts"]["epoch"] + 2) * per_key
            found = counts_in(out)
            assert len(found) == KEYS
            for made in found.values():
                assert made == list(range(first, first + len(made) * per_key, per_key)), "on from the savepoint"


def _log(folder: Path, backend: str) -> Path:
    (found,) = folder.glob(f"{backend}/checkpoints-main/upgraded/counts/spark*")
    return found
