"""Checkpoints on a path of one machine, where tasks run on others."""

from __future__ import annotations

import pytest

from penstock import Checkpoints
from penstock.errors import StorageNotShared
from penstock.spark.masters import require_shared


def test_a_path_of_one_machine_is_refused_where_tasks_run_on_others() -> None:
    for location in ("/var/lib/checkpoints", "file:///var/lib/checkpoints", "relative"):
        for master in ("spark://10.0.0.7:7077", "yarn"):
            with pytest.raises(StorageNotShared, match="storage-is-shared") as refused:
                require_shared(location, master, is_shared=False)
            assert refused.value.safe == "nothing was started."
            assert not refused.value.retryable
        require_shared(location, "yarn", is_shared=Checkpoints(storage_is_shared=True).storage_is_shared)
        require_shared(location, "spark://127.0.0.1:7077", is_shared=False)
    require_shared("hdfs://name/checkpoints", "yarn", is_shared=False)
