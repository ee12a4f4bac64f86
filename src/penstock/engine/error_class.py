"""What an error says about trying again. The table with reasons is in docs/concepts/restarts.md.

Spark's errors are known by their names and texts, so that nothing here imports PySpark.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from enum import StrEnum

from penstock.errors import EpochError, PenstockError, PreCommitFailed, SparkUnresponsive


class ErrorClass(StrEnum):
    """RETRY: time, an operator or a new process can cure it. FATAL: only a change of program, configuration or data
    can, so the job ends at once. UNKNOWN: retried as the restart strategy says, and reported as unknown."""

    RETRY = "retry"
    FATAL = "fatal"
    UNKNOWN = "unknown"


#: These say that an epoch failed, not of what. Their cause does.
_WRAPPERS = (PreCommitFailed, EpochError)

#: A file or a right that is missing is mostly a mistake, now and then something that is not there yet.
_MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)

#: At the start of a line, or after "Caused by:" and the like, where a Java error's name stands in a stack trace.
_NAMED = r"(?:^|: )[ \t]*+"
_REFUSED = re.compile(
    _NAMED + r"org\.apache\.spark\.sql\.(?:\w+\.)*(?:AnalysisException|ExtendedAnalysisException|ParseException)\b",
    re.MULTILINE,
)
#: State that Spark finds missing or damaged is so in every start.
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
    """The verdict on `error` and whatever it was raised from: one fatal error in the chain is enough; otherwise the
    first that says something decides."""
    found = [verdict for verdict in map(_classify_one, error_chain(error)) if verdict is not None]
    if ErrorClass.FATAL in found:
        return ErrorClass.FATAL
    if found:
        return found[0]
    return ErrorClass.RETRY  # a wrapper around nothing: the epoch failed, and that is all there is to know


def jvm_gone(error: BaseException) -> bool:
    """Whether this process has lost its JVM, or the JVM its way to this process, so that no start inside it can succeed
    any more."""
    return any(map(_jvm_gone, error_chain(error, contexts=True)))


def out_of_memory(error: BaseException) -> bool:
    """Whether this process or its JVM has no memory left, which a new process has."""
    return any(map(_out_of_memory, error_chain(error, contexts=True)))


def error_chain(error: BaseException, *, contexts: bool = False) -> Iterator[BaseException]:
    """`error` and what it was raised from, outermost first; with `contexts` also what was being handled, as when
    tidying up fails after the first failure. An error may be its own cause: each comes once."""
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
    if _is_sparks(error):
        return _of_spark(error)
    return _of_python(type(error))


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
    raised = _raised_in_python(text)
    if raised is not None:
        return _of_python(raised)
    if _REFUSED.search(text) or _STATE.search(text):
        return ErrorClass.FATAL
    return ErrorClass.RETRY if _PASSING.search(text) else ErrorClass.UNKNOWN


def _jvm_gone(error: BaseException) -> bool:
    if isinstance(error, SparkUnresponsive):
        return True
    if isinstance(error, OSError):
        return _raised_by(error) == "py4j"
    if not _is_sparks(error):
        return False
    if "Py4JNetworkError" in _names(error):
        return True
    text = _text(error)
    # Py4J's plain error without a trace of Java's: the line broke in the middle of a call.
    return bool(_GONE.search(text)) or (type(error).__name__ == "Py4JError" and bool(_CUT_OFF.fullmatch(text)))


def _out_of_memory(error: BaseException) -> bool:
    """In this process or its JVM. A Python worker without memory is ended by Spark, and the next one has some."""
    if isinstance(error, MemoryError):
        return True
    return _is_sparks(error) and _TRACEBACK not in (text := _text(error)) and bool(_MEMORY.search(text))


def _raised_in_python(text: str) -> type[BaseException] | None:
    """What a Python worker raised, as far as the name tells: the last line of the last traceback in a Spark error."""
    _, header, trace = text.rpartition(_TRACEBACK)
    match = _RAISED.search(trace) if header else None
    if match is None:
        return None
    kind = getattr(builtins, match["name"].rpartition(".")[2], None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else Exception


def _is_sparks(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] in ("pyspark", "py4j") for kind in type(error).__mro__)


def _raised_by(error: BaseException) -> str:
    """The package whose code raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] if trace is not None else ""


def _names(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _text(error: BaseException) -> str:
    """All that is known without asking the JVM, which may be gone; else what it answers."""
    known = [getattr(error, name, None) for name in ("_desc", "_stackTrace")]
    if any(known):
        return "\n".join(str(part) for part in known if part)
    try:
        return str(error)
    except Exception:  # the text of a Java error is fetched from the JVM
        return ""
