"""A checksum says by which rule it was made, and a replay follows the rule of what it must equal."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.checkpoint.decision import Committable
from penstock.engine.checksum import FLAT, HASH_COLUMN, MODULO, NESTED, checksum_of, rules_of, sum_of_hashes


def test_checksums_of_earlier_versions_are_those_of_flat_rows() -> None:
    assert checksum_of(2**64 - 1, FLAT) == 2**64 - 1
    assert checksum_of(2**64 + 5, FLAT) == 5
    assert checksum_of(2**64 + 5, NESTED) == 2**64 + 5
    old, new = (Committable(sink, 0, 3, checksum_of(7, rule)) for sink, rule in (("old", FLAT), ("new", NESTED)))
    assert rules_of([old, new, Committable("empty", 0, 0, 0)]) == {"old": FLAT, "new": NESTED}


def test_a_hash_of_any_sign_and_place_is_summed() -> None:
    hashes = pa.array([1, -1, 2**63 - 1, -(2**63)], pa.int64())
    batch = pa.RecordBatch.from_arrays([hashes], names=[HASH_COLUMN])
    expected = int(np.sum(hashes.to_numpy().view(np.uint64)[1:], dtype=np.uint64))
    assert sum_of_hashes(batch.slice(1)) == expected % MODULO
