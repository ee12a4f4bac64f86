"""Every error survives the way to another process."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from penstock import errors
from penstock.errors import PenstockError, from_json

ALL = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)]
CURED_BY_TIME = {
    "BarrierOverwritten", "CheckpointExpired", "ClusterUnavailable", "CredentialsExpired", "EpochError", "FilesMissing",
    "LedgerError", "OutcomeUnknown", "PreCommitFailed", "SchemaUnknown", "SparkUnresponsive", "StorageFull",
    "StrayTask", "SystemUnavailable", "WritersLost",
}  # fmt: skip


def test_what_time_can_cure() -> None:
    assert {kind.__name__ for kind in ALL if kind.retryable} == CURED_BY_TIME


@pytest.mark.parametrize("kind", ALL)
def test_the_way_to_another_process(kind: type[PenstockError]) -> None:
    error = kind("It broke: {'}\".", safe="all of it.", to_do="mend it.\nThen start.")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), from_json(error.to_json())):
        assert type(again) is kind
        assert (again.happened, again.safe, again.to_do) == (error.happened, error.safe, error.to_do)
        assert str(again) == "It broke: {'}\".\nSafe: all of it.\nTo do: mend it.\nThen start."
    assert "\n" not in error.to_json()


def test_an_error_from_a_newer_version_keeps_its_words() -> None:
    again = from_json('{"error": "NotInventedYet", "happened": "It broke."}')
    assert type(again) is PenstockError
    assert str(again) == "It broke."
    assert not again.retryable


def test_a_users_own_error_is_found_by_its_name() -> None:
    class OfAUser(errors.DataError):
        pass

    assert type(from_json(OfAUser("no").to_json())) is OfAUser
