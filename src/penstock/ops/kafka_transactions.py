"""Kafka transactions without the job's file: found by the names that its ledger has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from penstock.contracts.sink import TwoPhaseSink
from penstock.deadline import Deadline
from penstock.engine.settlement import JobLedgers, QueryLedger
from penstock.errors import ConfigurationError
from penstock.kafka.connections import Connections
from penstock.kafka.settings import normalise
from penstock.ops.transactions import LOOK_SECONDS
from penstock.sinks.kafka.sink import KafkaSink
from penstock.sinks.kafka.transactions import TransactionClient

_ID = re.compile(r"^(?P<name>.+)-g\d{6,}-[0-9a-f]{12}$")
_TIMEOUT = 60.0  # of a transaction; this client opens none


def kafka_sinks(ledgers: JobLedgers, servers: str, options: Mapping[str, str]) -> dict[str, TwoPhaseSink]:
    """A sink for each uid of the job that may be Kafka, with the id prefix that its ids show."""
    sinks: dict[str, TwoPhaseSink] = {}
    client = TransactionClient(Connections(servers, normalise(options)), transaction_timeout=_TIMEOUT)
    with closing(client):
        everywhere = list(client.list_open("", Deadline(LOOK_SECONDS)))
    for query in ledgers.queries:
        for uid in query.sinks:
            known = _ids(query, uid)
            if known is not None:
                prefix = _own_prefix(f"{ledgers.job}:{uid}", [*known, *everywhere])
                sinks[uid] = KafkaSink(servers=servers, transactional_id_prefix=prefix, options=dict(options))
    return sinks


def client_options(file: Path) -> tuple[str | None, dict[str, str]]:
    """`bootstrap.servers`, if set, and the other settings of a client's properties file."""
    options: dict[str, str] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        key, equals, value = line.strip().partition("=")
        if not key or key.startswith(("#", "!")):
            continue
        if not equals:
            raise ConfigurationError(
                f"Line {number} of {file} is not key=value.", safe="nothing was changed.", to_do="correct the file."
            )
        options[key.strip()] = value.strip()
    return options.pop("bootstrap.servers", None), options


def _ids(query: QueryLedger, uid: str) -> list[str] | None:
    """The ids that the last manifests name for a sink; None if they show that it is not Kafka."""
    epoch = query.state().epoch
    payloads = [
        committable.payload.get("prepared") or committable.payload
        for number in (epoch, epoch - 1)
        for manifest in query.ledger.manifests(number)
        for committable in manifest.decision.to_commit
        if committable.sink == uid
    ]
    ids = [str(payload["transactional_id"]) for payload in payloads if payload.get("transactional_id")]
    other = [payload for payload in payloads if "transactional_id" not in payload and "log" not in payload]
    return None if other and not ids else ids


def _own_prefix(name: str, ids: Iterable[str]) -> str | None:
    """The user's part of the ids of sink `name`."""
    splits = (_split(match["name"]) for match in map(_ID.match, ids) if match is not None)
    return next((parts[0] for parts in splits if parts is not None and parts[1] == name), None)


def _split(id_name: str) -> tuple[str, str] | None:
    """The user's part and `job:uid`, where the length at the end says which is which."""
    rest, _, length = id_name.rpartition(":")
    if not length.isdecimal() or ":" not in rest or rest[int(length) : int(length) + 1] != "-":
        return None
    return rest[: int(length)], rest[int(length) + 1 :]
