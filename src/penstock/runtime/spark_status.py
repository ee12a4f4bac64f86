"""What Spark knows of the jobs, stages and tasks it ran, read in few calls.

Spark keeps this with or without its web page. A call to the JVM costs a tenth of a millisecond and up, so nothing is
asked task by task: Spark's own JSON writer turns whole lists into text over there.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JACKSON = "com.fasterxml.jackson"
_MOST_TASKS = 10_000
_mappers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class SparkStatus:
    """One session's jobs. What is asked for may be gone (Spark keeps the newest thousand) or not there yet: its
    bookkeeping runs a little behind. Any call may raise what py4j raises."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._jvm = spark, spark._jvm
        self._context: Any = spark.sparkContext._jsc.sc()
        self._store = self._context.statusStore()

    def job_ids(self, group: str) -> list[int]:
        """The jobs of a group, newest first. Spark names a query's group after its run."""
        found = self._jvm_class("java.util.Arrays").toString(self._context.statusTracker().getJobIdsForGroup(group))
        return sorted(json.loads(found), reverse=True)

    def job(self, number: int) -> dict[str, Any]:
        body: dict[str, Any] = self.as_json(self._store.job(number))
        return body

    def stages(self, number: int) -> list[dict[str, Any]]:
        """The attempts at one stage; none where it was skipped, because what it makes was there."""
        gateway = self._spark.sparkContext._gateway
        assert gateway is not None
        no_tasks = self._jvm_class("java.util.ArrayList")()
        quantiles = gateway.new_array(gateway.jvm.double, 0)
        attempts: list[dict[str, Any]] = self.as_json(self._store.stageData(number, False, no_tasks, False, quantiles))
        return attempts

    def tasks(self, stage: int, attempt: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.as_json(self._store.taskList(stage, attempt, _MOST_TASKS))
        return found

    def graph(self, stage: int) -> dict[str, Any]:
        """The RDDs of a stage, and which is made of which."""
        body: dict[str, Any] = self.as_json(self._store.operationGraphForStage(stage))
        return body

    def as_json(self, thing: Any) -> Any:
        """A JVM object's fields, whoever may see them."""
        return json.loads(self._mapper().writeValueAsString(thing))

    def hide(self, kind: Any, *fields: str) -> None:
        """From now on, leave these fields of a JVM class out."""
        gateway = self._spark.sparkContext._gateway
        assert gateway is not None
        names = gateway.new_array(gateway.jvm.String, len(fields))
        for index, field in enumerate(fields):
            names[index] = field
        value = self._jvm_class(f"{_JACKSON}.annotation.JsonIgnoreProperties$Value")
        self._mapper().configOverride(kind).setIgnorals(value.forIgnoredProperties(names))

    def _mapper(self) -> Any:
        """Kept: a mapper learns each class once, which is what costs."""
        found = _mappers.get(self._jvm)
        if found is None:
            found = self._jvm_class(f"{_JACKSON}.databind.ObjectMapper")()
            found.registerModule(self._jvm_class(f"{_JACKSON}.module.scala.DefaultScalaModule")())
            any_visible = self._jvm_class(f"{_JACKSON}.annotation.JsonAutoDetect$Visibility").ANY
            found.setVisibility(self._jvm_class(f"{_JACKSON}.annotation.PropertyAccessor").FIELD, any_visible)
            _mappers[self._jvm] = found
        return found

    def _jvm_class(self, name: str) -> Any:
        found: Any = self._jvm
        for part in name.split("."):
            found = getattr(found, part)
        return found
