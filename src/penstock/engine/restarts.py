"""Whether an error is worth a retry, and whether and when a failed job restarts: see docs/concepts/restarts.md.

Spark's errors are recognised by name and text, so nothing here imports PySpark.
"""

from __future__ import annotations

import builtins
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from traceback import walk_tb

from penstock.config.restart_strategy import RestartStrategy
from penstock.errors import EpochError, PenstockError, PreCommitFailed, SparkUnresponsive

_GAVE_UP = "_penstock_gave_up"


class ErrorClass(StrEnum):
    """RETRY: time, an operator or a new process can cure it. FATAL: only a change of program, configuration or data
    can, so the job fails at once. UNKNOWN: retried as the restart strategy says, and reported as unknown."""

    RETRY = "retry"
    FATAL = "fatal"
    UNKNOWN = "unknown"


#: These say that an epoch failed; the reason is in their cause.
_WRAPPERS = (PreCommitFailed, EpochError)

#: A missing file or permission is mostly a mistake, sometimes only late.
_MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)

#: Where a stack trace names a Java error: at the start of a line, or after "Caused by:" and the like.
_NAMED = r"(?:^|: )[ \t]*+"
_REFUSED = re.compile(
    _NAMED + r"org\.apache\.spark\.sql\.(?:\w+\.)*(?:AnalysisException|ExtendedAnalysisException|ParseException)\b",
    re.MULTILINE,
)
#: Missing or damaged state is still missing or damaged after a restart.
_STATE = re.compile(r"CANNOT_LOAD_STATE_STORE\.(?:CANNOT_READ_\w+|UNEXPECTED_FILE_SIZE|AUTO_SNAPSHOT_REPAIR_FAILED)\b")
_MEMORY = re.compile(_NAMED + r"java\.lang\.OutOfMemoryError\b", re.MULTILINE)
_PASSING = re.compile(
    r"ExecutorLostFailure|Lost executor|FetchFailed|CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|Python worker exited unexpectedly"
    r"|Python worker failed to connect back|"
    + _NAMED
    + r"(?:java\.net\.\w+|java\.nio\.channels\.\w+|java\.io\.(?:EOF|IO|InterruptedIO)Exception"
    r"|java\.util\.concurrent\.TimeoutException"
    r"|org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|NotLeaderOrFollower|BrokerNotAvailable"
    r"|CoordinatorNotAvailable|CoordinatorLoadInProgress|LeaderNotAvailable)Exception)\b",
    re.MULTILINE,
)
_GONE = re.compile(
    r"JAVA_GATEWAY_EXITED|Answer from Java side is empty|SparkContext was shut down|on a stopped SparkContext"
)
_CUT_OFF = re.compile(r"An error occurred while calling \S+")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::|\s*$)", re.MULTILINE)


def classify(error: BaseException) -> ErrorClass:
    """The verdict on `error` and its causes: FATAL if one of them is, otherwise the first verdict in the chain."""
    verdicts = [verdict for verdict in map(_classify_one, error_chain(error)) if verdict is not None]
    if ErrorClass.FATAL in verdicts:
        return ErrorClass.FATAL
    # A wrapper without a cause says only that an epoch failed.
    return verdicts[0] if verdicts else ErrorClass.RETRY


def jvm_gone(error: BaseException) -> bool:
    """Whether this process and its JVM have lost each other, so that no restart inside the process can succeed."""
    return any(map(_jvm_gone, error_chain(error, contexts=True)))


def out_of_memory(error: BaseException) -> bool:
    """Whether this process or its JVM has run out of memory, which a new process cures."""
    return any(map(_out_of_memory, error_chain(error, contexts=True)))


def error_chain(error: BaseException, *, contexts: bool = False) -> Iterator[BaseException]:
    """`error` and its causes, outermost first; `contexts` adds the errors that were being handled, as when clean-up
    fails after the first failure. Each comes once: an error may be its own cause."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (current.__context__ if contexts else None)


def _classify_one(error: BaseException) -> ErrorClass | None:
    if type(error) in _WRAPPERS:
        return None
    if isinstance(error, PenstockError):
        return ErrorClass.RETRY if error.retryable else ErrorClass.FATAL
    return _of_spark(error) if _is_sparks(error) else _of_python(type(error))


def _of_python(kind: type[BaseException]) -> ErrorClass:
    if issubclass(kind, MemoryError) or (issubclass(kind, OSError) and not issubclass(kind, _MISTAKES)):
        return ErrorClass.RETRY
    return ErrorClass.UNKNOWN


def _of_spark(error: BaseException) -> ErrorClass:
    if "AnalysisException" in _names(error):
        return ErrorClass.FATAL
    if _jvm_gone(error) or _out_of_memory(error):
        return ErrorClass.RETRY
    text = _text(error)
    if (raised := _raised_in_python(text)) is not None:
        return _of_python(raised)
    if _REFUSED.search(text) or _STATE.search(text):
        return ErrorClass.FATAL
    return ErrorClass.RETRY if _PASSING.search(text) else ErrorClass.UNKNOWN


def _jvm_gone(error: BaseException) -> bool:
    if isinstance(error, SparkUnresponsive):
        return True
    if isinstance(error, OSError):
        raisers = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
        return bool(raisers) and str(raisers[-1]).partition(".")[0] == "py4j"
    if not _is_sparks(error):
        return False
    if "Py4JNetworkError" in _names(error):
        return True
    text = _text(error)
    # Py4J's plain error without a Java stack trace: the connection broke during a call.
    return bool(_GONE.search(text)) or (type(error).__name__ == "Py4JError" and bool(_CUT_OFF.fullmatch(text)))


def _out_of_memory(error: BaseException) -> bool:
    """In this process or its JVM. A Python worker without memory does not count: Spark replaces it."""
    in_jvm = _is_sparks(error) and _TRACEBACK not in (text := _text(error)) and bool(_MEMORY.search(text))
    return in_jvm or isinstance(error, MemoryError)


def _raised_in_python(text: str) -> type[BaseException] | None:
    _, header, trace = text.rpartition(_TRACEBACK)
    match = _RAISED.search(trace) if header else None
    if match is None:
        return None
    kind = getattr(builtins, match["name"].rpartition(".")[2], None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else Exception


def _is_sparks(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__)


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _text(error: BaseException) -> str:
    """The error's text, from the JVM only where Python does not have it: the JVM may be gone."""
    known = [getattr(error, name, None) for name in ("_desc", "_stackTrace")]
    if any(known):
        return "\n".join(str(part) for part in known if part)
    try:
        return str(error)
    except Exception:  # the text of a Java error is fetched from the JVM
        return ""


class Restarts:
    """The restarts of one job. Call `started` when a run begins and `delay` when it has failed. `supervised`: a
    supervisor restarts this process when it crashes."""

    def __init__(
        self,
        strategy: RestartStrategy,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        supervised: bool = False,
    ) -> None:
        self._strategy, self._clock, self._random = strategy, clock, random
        self.supervised = supervised
        self._failures = 0
        self._recent: deque[float] = deque()
        self._wait = strategy.initial
        self._needed = strategy.immediate_after  # how long a run must have lasted to be started again at once
        self._started: float | None = clock()

    def started(self) -> None:
        self._started = self._clock()

    def delay(self, error: BaseException) -> float | None:
        """Seconds to wait before the next start in this process, None to give up.

        A fatal error is never retried, and neither is one that only a new process can cure: a lost JVM and, under a
        supervisor, exhausted memory. Where the strategy gives up, `has_given_up` is true of the error afterwards."""
        if classify(error) is ErrorClass.FATAL or jvm_gone(error) or (self.supervised and out_of_memory(error)):
            return None
        wait = self.after_failure()
        if wait is None:
            with suppress(AttributeError):  # an exception of a C library may take no attributes
                setattr(error, _GAVE_UP, True)
        return wait

    def after_failure(self) -> float | None:
        """Count a failure without looking at its error: seconds to wait, None to give up."""
        strategy, now = self._strategy, self._clock()
        lasted = 0.0 if self._started is None else now - self._started
        if lasted >= strategy.reset_after:
            self._failures, self._wait, self._needed = 0, strategy.initial, strategy.immediate_after
        self._started = None  # a failure before the next `started` belongs to a run of zero length
        if not self._may_retry(now):
            return None
        if lasted >= self._needed:
            self._needed *= 2  # a job that keeps failing after a while still gets its pauses
            return 0.0
        # Multiplied step by step: a power would overflow a float after days of failures.
        wait = min(self._wait, strategy.maximum)
        self._wait = wait * strategy.multiplier
        return min(strategy.maximum, wait * (1 + strategy.jitter * (2 * self._random() - 1)))

    def follow(self, strategy: RestartStrategy) -> None:
        """Switch to another strategy; failures so far still count."""
        if strategy != self._strategy:
            self._strategy, self._wait, self._needed = strategy, strategy.initial, strategy.immediate_after

    def _may_retry(self, now: float) -> bool:
        strategy = self._strategy
        self._failures += 1
        if strategy.attempts is None:
            return True
        if strategy.interval is None:
            return self._failures <= strategy.attempts
        self._recent.append(now)
        while now - self._recent[0] > strategy.interval:
            self._recent.popleft()
        return len(self._recent) <= strategy.attempts


def has_given_up(error: BaseException) -> bool:
    """Whether a restart strategy has given up over this error, or one that it was raised from."""
    return any(getattr(cause, _GAVE_UP, False) for cause in error_chain(error))
