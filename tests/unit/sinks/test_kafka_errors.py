"""Codes of the clients as errors that say what to do."""

from __future__ import annotations

import pytest

from penstock.contracts.sink import CheckContext
from penstock.errors import (
    AccessDenied,
    ConfigurationError,
    DataError,
    PenstockError,
    PreCommitFailed,
    SystemUnavailable,
    TimeoutsContradict,
    TopicMissing,
    ValueTooLarge,
)
from penstock.kafka import errors
from penstock.kafka.librdkafka import Undelivered
from penstock.sinks.kafka import sink


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (29, AccessDenied),
        (53, AccessDenied),
        (58, AccessDenied),
        (-169, AccessDenied),
        (-181, AccessDenied),
        (3, TopicMissing),
        (-188, TopicMissing),
        (-190, DataError),
        (50, TimeoutsContradict),
        (17, DataError),
        (32, DataError),
        (44, DataError),
        (87, DataError),
        (-138, DataError),
        (33, ConfigurationError),
        (35, ConfigurationError),
        (43, ConfigurationError),
        (76, ConfigurationError),
        (-165, ConfigurationError),
        (2, PreCommitFailed),
        (19, PreCommitFailed),
        (100, PreCommitFailed),
        (-187, SystemUnavailable),
        (-195, SystemUnavailable),
        (-192, SystemUnavailable),
        (47, PreCommitFailed),
        (-144, PreCommitFailed),
    ],
)
def test_codes(code: int, kind: type[PenstockError]) -> None:
    error = errors.from_code(code, "the reason", servers="s:1", doing="testing", topic="t", seconds=2)
    assert type(error) is kind
    assert error.safe
    assert error.to_do


def test_the_cause_counts_not_what_followed_from_it() -> None:
    failed = [Undelivered(-152, "purged", "t", 10), Undelivered(10, "too large", "t", 7_000_000)]
    error = errors.from_undelivered(failed, total=2, servers="s", limit="option is 5", seconds=1)
    assert isinstance(error, ValueTooLarge)
    assert "7,000,000" in str(error)
    assert "option is 5" in str(error)


def test_rows_that_a_topic_never_takes_are_not_tried_again() -> None:
    failed = [Undelivered(-138, "another row of the batch", "t", 10)] * 100
    error = errors.from_undelivered(failed, total=9_000, servers="s", limit="", seconds=1)
    assert isinstance(error, DataError)
    assert not error.retryable
    assert "'t'" in error.happened
    assert "a key" in error.to_do


def test_an_epoch_must_fit_into_a_transaction() -> None:
    sink.check_epoch_fits(CheckContext("j", 10, 600), 900)
    with pytest.raises(TimeoutsContradict, match=r"60 s.*610 s"):
        sink.check_epoch_fits(CheckContext("j", 10, 600), 60)


def test_a_transaction_must_fit_the_broker() -> None:
    sink.check_broker_limit(900, 900)
    sink.check_broker_limit(900, None)
    with pytest.raises(TimeoutsContradict, match=r"1000 s.*900 s"):
        sink.check_broker_limit(1000, 900)


def test_warnings() -> None:
    assert sink.limit_warnings("t", sink.Limits(900, 3, 2, 2_000_000), 1_000_000) == []
    assert "replication factor 1" in sink.limit_warnings("t", sink.Limits(900, 1, 1, 2_000_000), 1_000_000)[0]
    assert "min.insync.replicas=1" in sink.limit_warnings("t", sink.Limits(900, 3, 1, 2_000_000), 1_000_000)[0]
    assert "batch.size" in sink.limit_warnings("t", sink.Limits(900, 3, 2, 1000), 1_000_000)[0]
