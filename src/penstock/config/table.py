"""Every option by its key and by its name.

Flink's other keys are ignored by their families, so that a Flink configuration file works unchanged; a key that is
almost one of ours is taken for a misspelt one.
"""

from __future__ import annotations

import difflib

from penstock.config.checkpoints import CHECKPOINT_OPTIONS
from penstock.config.operations import AVAILABILITY_OPTIONS, LOG_OPTIONS, REST_OPTIONS
from penstock.config.option import Option
from penstock.config.recovery import RECOVERY_OPTIONS
from penstock.config.restart_strategy import RESTART_OPTIONS
from penstock.config.state import STATE_OPTIONS

OPTIONS: tuple[Option, ...] = (
    *CHECKPOINT_OPTIONS, *STATE_OPTIONS, *RESTART_OPTIONS, *RECOVERY_OPTIONS, *AVAILABILITY_OPTIONS, *REST_OPTIONS,
    *LOG_OPTIONS,
)  # fmt: skip
BY_KEY = {key: option for option in OPTIONS for key in (option.key, *option.aliases)}
BY_NAME = {(option.part, option.name): option for option in OPTIONS}


def nearest(key: str) -> str | None:
    """The option whose key is spelt most like this one, if any is close."""
    return next(iter(difflib.get_close_matches(key, BY_KEY, n=1, cutoff=0.6)), None)


_FLINK = frozenset({
    "akka", "application-result-store", "blob", "cep", "classloader", "cleanup-strategy", "client", "cluster",
    "compiler", "completed-application-store", "containerized", "env", "events", "execution", "external-resource",
    "external-resources", "flink", "fs", "hadoop", "heartbeat", "high-availability", "historyserver", "io",
    "java", "jmx", "job-event", "job-result-store", "jobmanager", "jobstore", "kubernetes", "local",
    "materialized-table", "mdc", "metrics", "minicluster", "optimizer", "pekko", "pipeline", "plugin", "process",
    "python", "query", "queryable-state", "resourcemanager", "rest", "s3", "s3a", "scheduler-mode", "security",
    "shuffle-service-factory", "sink", "slot", "slotmanager", "slow-task-detector", "sql-client", "sql-gateway",
    "state", "table", "task", "taskmanager", "traces", "user", "web", "yarn", "zookeeper",
})  # fmt: skip
_TYPING_ERROR = 3  # letters by which a misspelt key differs from one of ours; no two keys of Flink are so close


def is_flinks(key: str) -> bool:
    """Whether it is a key of Flink that Penstock ignores: one of Flink's families, and no misspelt key of ours."""
    return key.partition(".")[0] in _FLINK and not any(_is_misspelt(key, ours) for ours in BY_KEY)


def _is_misspelt(key: str, ours: str) -> bool:
    if ours.startswith(key) and ours[len(key) :][:1] != ".":
        return True
    same = sum(block.size for block in difflib.SequenceMatcher(None, key, ours).get_matching_blocks())
    return len(key) + len(ours) - 2 * same <= _TYPING_ERROR
