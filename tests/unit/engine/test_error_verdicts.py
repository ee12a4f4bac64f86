"""Each line of the table in docs/concepts/restarts.md: which errors are tried again, and which end the job."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PySparkException,
    PySparkRuntimeError,
    PythonException,
    StreamingQueryException,
)

from penstock import errors
from penstock.engine.restarts import ErrorClass, classify, error_chain, jvm_gone, out_of_memory
from penstock.errors import PenstockError

RETRY, FATAL, UNKNOWN = ErrorClass.RETRY, ErrorClass.FATAL, ErrorClass.UNKNOWN


def raised_from(cause: BaseException, error: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def spark(text: str, kind: type[PySparkException] = StreamingQueryException) -> PySparkException:
    """An error of Spark's as PySpark builds it out of a Java one: description and stack trace are kept as text."""
    error = kind(message="Query failed")
    error._desc, _, error._stackTrace = text.partition("\n")  # type: ignore[attr-defined]
    return error


def task_failed(reason: str) -> str:
    return (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure\n"
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most"
        f" recent failure: Lost task 0.0 in stage 3.0 (TID 4) (localhost executor driver): {reason}\n"
        "\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:700)\n"
    )


def in_worker(line: str) -> str:
    return task_failed(
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "/x/pyspark/worker.py", line 1, in main\n    process()\n'
        f'  File "job.py", line 7, in convert\n    return value + 1\n           ~~~~~~^~~\n{line}\n'
    )


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if isinstance(kind, type)])
def test_penstocks_own_errors_by_their_class(kind: type[Exception]) -> None:
    if issubclass(kind, PenstockError):
        assert classify(kind("It broke.")) is (RETRY if kind.retryable else FATAL)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (AnalysisException(message="no such column"), FATAL),
        (ParseException(message="what?"), FATAL),
        (spark("failed\nCaused by: org.apache.spark.sql.AnalysisException: [X] no"), FATAL),
        (spark("failed\norg.apache.spark.sql.catalyst.ExtendedAnalysisException: [X] no"), FATAL),
        (spark("failed\nCaused by: org.apache.spark.sql.catalyst.parser.ParseException: [X] no"), FATAL),
        (spark(task_failed("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)")), RETRY),
        (spark(task_failed("FetchFailed(BlockManagerId(1, host, 7, None), shuffleId=0)")), RETRY),
        (spark(task_failed("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")), RETRY),
        (spark(task_failed("java.net.ConnectException: Connection refused")), RETRY),
        (spark(task_failed("java.io.IOException: Broken pipe")), RETRY),
        (spark(task_failed("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_7_0 not found!")), RETRY),
        (spark(task_failed("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] Error reading")), FATAL),
        (
            spark(
                task_failed("[CANNOT_LOAD_STATE_STORE.UNEXPECTED_FILE_SIZE] Copied\nCaused by: java.io.IOException: x")
            ),
            FATAL,
        ),
        (spark(task_failed("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] \nCaused by: java.io.EOFException: x")), RETRY),
        (spark(task_failed("java.io.FileNotFoundException: /gone")), UNKNOWN),
        (spark("failed\nCaused by: java.util.concurrent.TimeoutException: Futures timed out"), RETRY),
        (spark("failed\nCaused by: org.apache.kafka.common.errors.TimeoutException: no answer"), RETRY),
        (spark(task_failed("java.lang.OutOfMemoryError: Java heap space")), RETRY),
        (spark(task_failed("java.lang.ArithmeticException: / by zero")), UNKNOWN),
        (spark("The word java.lang.OutOfMemoryError inside a sentence is not an error"), UNKNOWN),
        (Py4JNetworkError("Answer from Java side is empty"), RETRY),
        (PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}), RETRY),
        (spark("failed\njava.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."), RETRY),
        (Py4JError("An error occurred while calling o35.sc"), RETRY),
        (Py4JError("An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([]) is not"), UNKNOWN),
        (spark(in_worker("TypeError: unsupported operand"), PythonException), UNKNOWN),
        (spark(in_worker("NameError: name 'x' is not defined")), UNKNOWN),
        (spark(in_worker("ModuleNotFoundError: No module named 'x'")), UNKNOWN),
        (spark(in_worker("somewhere.errors.OfTheirOwn: no")), UNKNOWN),
        (spark(in_worker("ConnectionRefusedError: [Errno 111] Connection refused")), RETRY),
        (spark(in_worker("MemoryError")), RETRY),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, ErrorClass) else type(value).__name__,
)
def test_sparks_errors(error: BaseException, verdict: ErrorClass) -> None:
    assert classify(error) is verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectionResetError(), RETRY),
        (TimeoutError(), RETRY),
        (OSError(28, "No space left on device"), RETRY),
        (MemoryError(), RETRY),
        (FileNotFoundError(), UNKNOWN),
        (PermissionError(), UNKNOWN),
        (TypeError(), UNKNOWN),
        (NameError(), UNKNOWN),
        (ImportError(), UNKNOWN),
        (ValueError(), UNKNOWN),
    ],
    ids=lambda value: type(value).__name__,
)
def test_pythons_errors(error: BaseException, verdict: ErrorClass) -> None:
    assert classify(error) is verdict


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (raised_from(AnalysisException(message="no"), errors.PreCommitFailed("failed")), FATAL),
        (raised_from(TypeError(), errors.PreCommitFailed("failed")), UNKNOWN),
        (raised_from(ConnectionResetError(), errors.PreCommitFailed("failed")), RETRY),
        (raised_from(raised_from(errors.DataError("no"), ValueError()), errors.PreCommitFailed("failed")), FATAL),
        (raised_from(ValueError(), errors.SystemUnavailable("away")), RETRY),
        (raised_from(ConnectionResetError(), ValueError()), UNKNOWN),
        (raised_from(errors.TopicMissing("gone"), RuntimeError("theirs")), FATAL),
    ],
)
def test_causes_are_looked_through(error: BaseException, verdict: ErrorClass) -> None:
    assert classify(error) is verdict


def test_an_error_that_is_its_own_cause() -> None:
    error = errors.SystemUnavailable("away")
    error.__cause__ = error
    assert list(error_chain(error)) == [error]
    assert classify(error) is RETRY


def test_what_a_new_process_cures() -> None:
    around = raised_from(Py4JNetworkError("Answer from Java side is empty"), errors.PreCommitFailed("failed"))
    assert jvm_gone(around)
    assert not out_of_memory(around)
    heap = raised_from(spark(task_failed("java.lang.OutOfMemoryError: Java heap space")), errors.PreCommitFailed("f"))
    assert out_of_memory(heap)
    assert not jvm_gone(heap)
    assert out_of_memory(MemoryError())
    assert not out_of_memory(spark(in_worker("MemoryError")))
    assert not jvm_gone(ConnectionRefusedError())


def test_a_jvm_that_is_gone_refuses_connections() -> None:
    """Py4J passes on what the socket raised, so only where it was raised tells it from any other connection."""
    code = "def connect():\n    raise ConnectionRefusedError(111, 'Connection refused')"
    for module, gone in (("py4j.clientserver", True), ("kafka.conn", False)):
        names = {"__name__": module}
        exec(code, names)
        with pytest.raises(ConnectionRefusedError) as caught:
            names["connect"]()  # type: ignore[operator]
        tidying = RuntimeError("and then tidying up failed")
        tidying.__context__ = caught.value
        assert [jvm_gone(caught.value), jvm_gone(tidying)] == [gone, gone]


def test_a_java_error_whose_text_cannot_be_fetched_any_more() -> None:
    class Py4JJavaError(Py4JError):  # type: ignore[misc]
        def __str__(self) -> str:
            raise Py4JNetworkError("the JVM is gone")

    assert classify(Py4JJavaError()) is UNKNOWN
