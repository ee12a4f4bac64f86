"""Settings from `-D`, code and file put together: who wins, what is refused, and how an error names both sides."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Checkpoints, Job, Mode, RestartStrategy, Retention, StateBackend
from penstock.config import levels
from penstock.config import resolve as settings
from penstock.config.resolve import Settings, resolve
from penstock.config.restart_strategy import build_strategy
from penstock.config.state import BOUNDED, CHANGELOG, HIGH_PRIORITY, LIMIT, PROVIDER, WRITE_BUFFERS, check_backend
from penstock.errors import ConfigurationError

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HASHMAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

Write = Callable[[str], None]
Define = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(levels.FILE_VARIABLE, raising=False)
    monkeypatch.delenv(levels.OPTIONS_VARIABLE, raising=False)
    monkeypatch.setattr(settings, "_logged", set())


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(text: str) -> None:
        (tmp_path / "penstock.yaml").write_text(text, encoding="utf-8")

    return write


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Define:
    def options(values: dict[str, Any]) -> None:
        monkeypatch.setenv(levels.OPTIONS_VARIABLE, json.dumps(values))

    return options


def row(found: Settings, key: str) -> tuple[str, str]:
    return next((one["value"], one["from"]) for one in found.rows() if one["key"] == key)


def refused(*arguments: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        resolve(*arguments)
    assert error.value.safe == "nothing was started."
    assert error.value.to_do
    return error.value


INTERVAL = "execution.checkpointing.interval"


def test_options_win_over_code_over_file_over_defaults(file: Write, define: Define) -> None:
    assert resolve().checkpoints == Checkpoints()
    assert row(resolve(), INTERVAL) == ("0 ms", "default")
    file(f"{INTERVAL}: 3 s")
    assert resolve().checkpoints.interval_seconds == 3
    assert row(resolve(), INTERVAL) == ("3 s", "penstock.yaml")
    code = Checkpoints(interval="2s")
    assert resolve(code).checkpoints.interval_seconds == 2
    assert row(resolve(code), INTERVAL) == ("2s", "code")
    define({INTERVAL: "1 s"})
    assert resolve(code).checkpoints.interval_seconds == 1
    assert row(resolve(code), INTERVAL) == ("1 s", "-D")


def test_code_counts_only_where_it_says_something(file: Write) -> None:
    """A default in the class is nobody's word; the same value written down is."""
    file(f"{INTERVAL}: 3 s\nexecution.checkpointing.timeout: 1 min")
    found = resolve(Checkpoints(timeout="10min")).checkpoints
    assert (found.interval_seconds, found.timeout_seconds) == (3, 600)
    assert resolve(Checkpoints(0.0)).checkpoints.interval_seconds == 0


def test_a_job_uses_them(file: Write) -> None:
    file(f"{INTERVAL}: 3 s\nrestart-strategy.type: off")
    job = Job("job")
    assert job.checkpoints.interval_seconds == 3
    assert job.settings.restart == RestartStrategy.none()


FLINK = """
jobmanager:
  rpc:
    address: localhost
  memory.process.size: 1600m
taskmanager.numberOfTaskSlots: 2
metrics.reporters: [one, two]
parallelism:
  default: 3
execution:
  checkpointing:
    interval: 10000          # Flink's bare numbers are milliseconds
    mode: AT_LEAST_ONCE
    externalized-checkpoint-retention: DELETE_ON_CANCELLATION
    timeout: PT5M
    savepoint-dir: s3://bucket/savepoints
state.backend: rocksdb
state.backend.incremental: true
state.checkpoints.dir: hdfs:///checkpoints
state.checkpoints.num-retained: 3
restart-strategy: failure-rate
restart-strategy.failure-rate.max-failures-per-interval: 4
"""


def test_a_flink_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.yaml").write_text(FLINK, encoding="utf-8")
    monkeypatch.setenv(levels.FILE_VARIABLE, "config.yaml")
    with caplog.at_level(logging.WARNING):
        found = resolve()
        resolve()
    checkpoints = found.checkpoints
    assert (checkpoints.interval_seconds, checkpoints.timeout_seconds, checkpoints.num_retained) == (10, 300, 3)
    assert (checkpoints.mode, checkpoints.retention) == (Mode.AT_LEAST_ONCE, Retention.DELETE)
    assert (checkpoints.storage, checkpoints.savepoint_dir) == ("hdfs:///checkpoints", "s3://bucket/savepoints")
    assert {key: one.value for key, one in found.derived_spark.items()} == {
        PROVIDER: ROCKSDB, BOUNDED: "true", "spark.sql.shuffle.partitions": "3",
    }  # fmt: skip
    assert found.restart == RestartStrategy.failure_rate(4, "1min", "1s")
    assert row(found, INTERVAL) == ("10000 ms", "config.yaml")
    said = [record.getMessage() for record in caplog.records]
    keys = "jobmanager.rpc.address jobmanager.memory.process.size taskmanager.numberOfTaskSlots metrics.reporters"
    assert said == [f"ignored settings of Flink: {keys.replace(' ', ', ')}, state.backend.incremental"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:\n  b: [", "is not YAML"), ("- a\n- b", "holds no settings"), ("just words", "holds no settings"),
        (f"{INTERVAL}: 1 s\n{INTERVAL}: 2 s", f"has {INTERVAL} in line 1 and again in line 2"),
        (f"execution: {{checkpointing: {{interval: 1 s}}}}\n{INTERVAL}: 2 s", "twice, nested and dotted"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(file: Write, text: str, said: str) -> None:
    file(text)
    assert said in refused().happened


def test_a_file_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(levels.FILE_VARIABLE, "missing.yaml")
    assert "missing.yaml cannot be read" in refused().happened


@pytest.mark.parametrize("text", ["", "\n# nothing\n", f"{INTERVAL}:\n"])
def test_a_file_that_says_nothing(file: Write, text: str) -> None:
    file(text)
    assert resolve().checkpoints.given == ()


@pytest.mark.parametrize("text", ["[1]", "{", "interval"])
def test_options_that_are_no_object(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(levels.OPTIONS_VARIABLE, text)
    assert "PENSTOCK_OPTIONS is not a JSON object" in refused().happened


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("execution.checkpointing.intervall", INTERVAL),
        ("execution.checkpointing.unalinged.enabled", "execution.checkpointing.unaligned.enabled"),
        ("state.backend.typ", "state.backend.type"), ("penstock.commit.timeout", "penstock.commit-timeout"),
        ("restart-strategy.fixed-delay.atempts", "restart-strategy.fixed-delay.attempts"),
        ("execution.checkpointing.max-concurrent", "execution.checkpointing.max-concurrent-checkpoints"),
    ],
)  # fmt: skip
def test_a_misspelt_key_is_refused_and_another_suggested(define: Define, key: str, meant: str) -> None:
    define({key: "1"})
    error = refused()
    assert error.happened == f"-D {key}=1: there is no such setting."
    assert error.to_do == f"did you mean {meant}?"


def test_a_key_like_no_other(file: Write) -> None:
    file("quux: 1")
    assert refused().happened == "quux=1 from penstock.yaml: there is no such setting."


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (INTERVAL, "often"), ("execution.checkpointing.mode", "twice"), ("state.backend.type", "forst"),
        ("execution.checkpointing.unaligned.enabled", "maybe"), ("parallelism.default", "0"),
        ("execution.checkpointing.num-retained", "many"), ("penstock.inflight.max-size", "big"),
        ("execution.checkpointing.storage", "s3"), ("restart-strategy.type", "always"),
        ("state.backend.rocksdb.memory.write-buffer-ratio", "2"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "x"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_read_names_key_and_place(file: Write, define: Define, key: str, text: str) -> None:
    define({key: text})
    assert refused().happened.startswith(f"-D {key}=")
    define({})
    file(f"{key}: {text}")
    assert refused().happened.startswith(f"penstock.yaml: {key}=")


def test_a_contradiction_names_both_sides_and_their_places(file: Write, define: Define) -> None:
    file("execution.checkpointing.mode: at_least_once")
    define({"execution.checkpointing.unaligned.enabled": "true"})
    assert refused().happened == (
        "-D execution.checkpointing.unaligned.enabled=true contradicts execution.checkpointing.mode=at_least_once"
        " from penstock.yaml: unaligned checkpoints exist for exactly_once."
    )
    assert refused(Checkpoints(mode="at_most_once")).happened.startswith(
        "-D execution.checkpointing.unaligned.enabled=true contradicts Checkpoints(mode=at_most_once) in the code"
    )
    assert resolve(Checkpoints(mode="exactly_once")).checkpoints.unaligned


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"execution.checkpointing.unaligned": "true"}, {"execution.checkpointing.max-concurrent-checkpoints": "2"}),
        ({"execution.checkpointing.max-concurrent-checkpoints": "2"}, {"execution.checkpointing.mode": "AT_MOST_ONCE"}),
        ({"execution.checkpointing.min-pause": "1 s"}, {"execution.checkpointing.max-concurrent-checkpoints": "2"}),
        ({"execution.checkpointing.storage": "jobmanager"}, {"state.checkpoints.dir": "/checkpoints"}),
        ({"state.backend.type": "hashmap"}, {"state.backend": "rocksdb"}),
        ({"parallelism.default": "2"}, {"spark.sql.shuffle.partitions": "3"}),
        ({"state.backend.type": "rocksdb"}, {PROVIDER: HASHMAP}),
        ({"state.changelog.enabled": "true", "state.backend.type": "rocksdb"}, {CHANGELOG: "false"}),
    ],
)
def test_contradictions(define: Define, one: dict[str, str], other: dict[str, str]) -> None:
    define(one)
    resolve()
    define(other)
    resolve()
    define({**one, **other})
    happened = refused().happened
    for key, value in [next(iter(one.items())), next(iter(other.items()))]:
        assert f"-D {key}={value}" in happened


@pytest.mark.parametrize(
    "line",
    [
        "execution.checkpointing.num-retained: 0", "state.backend.rocksdb.memory.fixed-per-slot: 5",
        "restart-strategy.exponential-delay.backoff-multiplier: 0.5",
    ],
)  # fmt: skip
def test_limits_that_cannot_be_meant_name_the_place(file: Write, line: str) -> None:
    file(line)
    assert f"{line.replace(': ', '=')} from penstock.yaml" in refused().happened


def test_storage_in_memory(file: Write, define: Define) -> None:
    file("execution.checkpointing.storage: jobmanager")
    assert resolve().checkpoints.storage == "memory:"
    assert Path(Job("job").checkpoints.storage).is_dir()
    assert (
        resolve(Checkpoints(storage="/folder")).checkpoints.storage == "/folder"
    )  # the code's word is above the file's
    define({"execution.checkpointing.storage": "filesystem"})
    assert resolve().checkpoints.storage == "penstock-checkpoints"
    assert resolve(Checkpoints(storage="memory:")).checkpoints.storage == "penstock-checkpoints"
    assert resolve(Checkpoints(storage="/folder")).checkpoints.storage == "/folder"


def test_settings_of_rocksdb(define: Define) -> None:
    def conf(backend: StateBackend | None) -> dict[str, str]:
        return {key: one.value for key, one in resolve(None, backend).derived_spark.items()}

    assert conf(None) == {}  # nobody asked: Spark's own, whatever that is
    assert conf(StateBackend.hashmap()) == {PROVIDER: HASHMAP}
    assert conf(StateBackend.rocksdb()) == {PROVIDER: ROCKSDB, BOUNDED: "true"}
    assert conf(StateBackend.rocksdb(changelog=True, managed_memory=False)) == {
        PROVIDER: ROCKSDB, CHANGELOG: "true", BOUNDED: "false",
    }  # fmt: skip
    full = StateBackend.rocksdb(memory_limit="1gb", write_buffer_ratio=0.25, high_priority_ratio=0.2)
    assert conf(full) == {
        PROVIDER: ROCKSDB, BOUNDED: "true", LIMIT: "1024", WRITE_BUFFERS: "0.25", HIGH_PRIORITY: "0.2",
    }  # fmt: skip
    memory = "state.backend.rocksdb.memory"
    define({f"{memory}.fixed-per-slot": "64 mb", f"{memory}.write-buffer-ratio": "0.4"})
    assert conf(full) == {
        PROVIDER: ROCKSDB, BOUNDED: "true", LIMIT: "64", WRITE_BUFFERS: "0.4", HIGH_PRIORITY: "0.2",
    }  # fmt: skip
    define({"state.backend.type": "hashmap"})
    assert conf(full) == {PROVIDER: HASHMAP}


@pytest.mark.parametrize("wrong", [{"memory_limit": 1000}, {"write_buffer_ratio": 1.5}, {"high_priority_ratio": -1}])
def test_settings_of_rocksdb_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        StateBackend.rocksdb(**wrong)


def test_what_spark_was_told_directly_stays() -> None:
    """A provider named by Spark's own setting is the backend; no default of ours is put beside it."""
    conf = {PROVIDER: ROCKSDB}
    assert resolve(None, None, None, conf).derived_spark == {}
    assert row(resolve(None, None, None, conf), "state.backend.type") == ("rocksdb", f"code, by {PROVIDER}")
    agreed = resolve(None, StateBackend.rocksdb(), None, {**conf, BOUNDED: "false"})
    assert {key: one.value for key, one in agreed.derived_spark.items()} == {PROVIDER: ROCKSDB}
    assert refused(None, StateBackend.hashmap(), None, conf).happened.startswith(
        f"StateBackend.hashmap() in the code contradicts {PROVIDER}={ROCKSDB} in the code"
    )


def test_options_of_another_backend_or_strategy_change_nothing(file: Write) -> None:
    file("state.changelog.enabled: true\nrestart-strategy.fixed-delay.delay: 1 s")
    found = resolve()
    assert (found.derived_spark, found.restart) == ({}, RestartStrategy.exponential_delay())
    assert row(found, "state.changelog.enabled") == ("true", "penstock.yaml")


@pytest.mark.parametrize(
    "key",
    [
        "execution.checkpointing.incremental", "execution.checkpointing.interval-during-backlog", "rest.bind-port",
        "execution.checkpointing.unaligned.forced", "state.backend.rocksdb.memory.fixed-per-tm", "state.backend.async",
        "state.backend.rocksdb.localdir", "execution.runtime-mode", "high-availability.type", "a-new.key.of.flink",
    ],
)  # fmt: skip
def test_keys_of_flink_s_families_are_ignored(define: Define, key: str) -> None:
    define({key: "1"})
    if key.startswith("a-new"):
        assert refused().happened == f"-D {key}=1: there is no such setting."
    else:
        assert row(resolve(), key) == ("", "-D, ignored")


def test_a_checkpoint_of_the_other_backend_is_refused() -> None:
    check_backend({PROVIDER: ROCKSDB}, {PROVIDER: ROCKSDB}, query="out")
    check_backend({PROVIDER: HASHMAP}, {}, query="out")
    check_backend({}, {PROVIDER: None}, query="out")
    for recorded, session, was, now in [
        (ROCKSDB, None, "rocksdb", "hashmap"),
        (HASHMAP, ROCKSDB, "hashmap", "rocksdb"),
    ]:
        with pytest.raises(ConfigurationError) as refused:
            check_backend({PROVIDER: recorded}, {PROVIDER: session}, query="out")
        assert f"'out' was written with the state backend {was}, the job now asks for {now}" in refused.value.happened
        assert f"state.backend.type to {was}" in refused.value.to_do


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({}, RestartStrategy.exponential_delay()),
        ({"restart-strategy.type": "disable"}, RestartStrategy.none()),
        ({"restart-strategy": "fixeddelay"}, RestartStrategy.fixed_delay(1, "1s")),
        ({"restart-strategy.type": "failure-rate"}, RestartStrategy.failure_rate(1, "1min", "1s")),
        (
            {"restart-strategy.exponential-delay.initial-backoff": "2 s",
             "restart-strategy.exponential-delay.jitter-factor": "0"},
            RestartStrategy.exponential_delay("2s", jitter=0),
        ),
        (
            {"restart-strategy.type": "exponential-delay",
             "restart-strategy.exponential-delay.attempts-before-reset-backoff": "7"},
            RestartStrategy.exponential_delay(attempts=7),
        ),
    ],
)  # fmt: skip
def test_restart_strategies(define: Define, options: dict[str, str], strategy: RestartStrategy) -> None:
    define(options)
    assert resolve().restart == strategy


def test_one_number_of_a_strategy_in_the_code_can_be_changed(file: Write, define: Define) -> None:
    code = RestartStrategy.fixed_delay(5, "3s")
    file("restart-strategy.type: none\nrestart-strategy.fixed-delay.delay: 9 s")
    assert resolve(restart=code).restart == code
    define({"restart-strategy.fixed-delay.attempts": "2"})
    assert resolve(restart=code).restart == RestartStrategy.fixed_delay(2, "3s")
    define({"restart-strategy.type": "off"})
    assert resolve(restart=code).restart == RestartStrategy.none()


def test_each_strategy_in_the_code_is_known_by_its_numbers() -> None:
    for strategy in (
        RestartStrategy.none(), RestartStrategy.fixed_delay(5, "3s"), RestartStrategy.failure_rate(3, "5min", "2s"),
        RestartStrategy.exponential_delay("2s", "9s", 3, "2h", 0.2, 4),
    ):  # fmt: skip
        values = resolve(restart=strategy).values
        mine = {one.option.name: one.value for one in values if one.option.part == "restart"}
        assert build_strategy(mine.pop("type"), mine) == strategy


def test_settings_of_spark(file: Write, define: Define) -> None:
    file("spark.executor.memory: 1g\nspark.a: file\nspark.b: file")
    define({"spark.a": "-D"})
    found = resolve(conf={"spark.a": "code", "spark.b": "code"})
    assert (found.spark, found.spark_file) == ({"spark.a": "-D", "spark.b": "code"}, {"spark.executor.memory": "1g"})
    assert row(found, "spark.a") == ("-D", "-D")
    assert row(found, "spark.b") == ("code", "code")
    assert row(found, "spark.executor.memory") == ("1g", "penstock.yaml")


@pytest.mark.parametrize(
    "key",
    [
        "spark.ssl.keyPassword", "spark.x.secret", "spark.my.token", "spark.kafka.sasl.jaas.config",
        "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.in.shop.blob.core.windows.net", "spark.kafka.ssl.key.pem",
    ],
)  # fmt: skip
def test_secrets_are_not_shown(define: Define, key: str) -> None:
    define({key: "hunter2"})
    assert row(resolve(), key) == ("***", "-D")


def test_a_secret_inside_a_value_is_not_shown(define: Define) -> None:
    storage = "execution.checkpointing.dir"
    define({"spark.sql.catalog.shop.url": "jdbc:x://db/shop?password=hunter2", storage: "s3a://key:hunter2@bucket/x"})
    assert row(resolve(), "spark.sql.catalog.shop.url") == ("jdbc:x://db/shop?password=***", "-D")
    assert row(resolve(), storage) == ("s3a://key:***@bucket/x", "-D")


def test_a_file_that_cannot_be_read_is_not_quoted(file: Write) -> None:
    file("spark:\n  x.password: hunter2: 3\n")
    with pytest.raises(ConfigurationError, match=r"penstock.yaml is not YAML: .* in line 2, column 22\.") as raised:
        resolve()
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_what_nests_too_deeply_is_an_error_like_any_other(file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file("a: " + "[" * 50_000)
    with pytest.raises(ConfigurationError, match="nests too deeply"):
        resolve()
    file("")
    monkeypatch.setenv(levels.OPTIONS_VARIABLE, "[" * 100_000)
    with pytest.raises(ConfigurationError, match="is not a JSON object"):
        resolve()
