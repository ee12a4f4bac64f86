"""When a session is made without Spark's extension for machine learning; its functions come with the import."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.clientserver import ClientServer

from penstock.spark import ml_functions

MLLIB = "jar:file:/spark/jars/spark-mllib_2.13-4.2.0.jar!/META-INF/services/x"


class Jvm:
    """As much of Java as is asked."""

    def __init__(self, places: list[str]) -> None:
        self.usual = SimpleNamespace(getResources=lambda name: places)
        self.loader: Any = self.usual
        self.made: list[tuple[Any, dict[str, str]]] = []  # the loader that each session was made with, its options
        self.default: Any = None
        self.loaded: list[str] = []
        thread = SimpleNamespace(getContextClassLoader=lambda: self.loader, setContextClassLoader=self._set)
        lang = SimpleNamespace(
            Thread=SimpleNamespace(currentThread=lambda: thread),
            ClassLoader=SimpleNamespace(getPlatformClassLoader=lambda: "platform"),
            Class=SimpleNamespace(forName=self.loaded.append),
        )
        listed = [SimpleNamespace(toString=partial(str, place)) for place in places]
        self.java = SimpleNamespace(lang=lang, util=SimpleNamespace(Collections=SimpleNamespace(list=lambda _: listed)))
        self.getDefaultSession = lambda: SimpleNamespace(isDefined=lambda: self.default is not None)
        self.setDefaultSession = partial(setattr, self, "default")
        setattr(self, ml_functions._SESSION, self)

    def _set(self, loader: Any) -> None:
        self.loader = loader

    def __call__(self, context: Any, options: dict[str, str]) -> str:
        self.made.append((self.loader, options))
        if "fail" in options:
            raise RuntimeError("another Spark")
        return "session"


def context(jvm: Jvm, gateway: Any = None, **conf: str) -> Any:
    return SimpleNamespace(
        _gateway=gateway or ClientServer.__new__(ClientServer),
        _jvm=jvm,
        _jsc=SimpleNamespace(sc=lambda: "context"),
        getConf=lambda: SimpleNamespace(contains=lambda key: key in conf),
    )


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ml_functions._PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_session_is_made_without_it_and_the_class_loader_is_back() -> None:
    jvm = Jvm([MLLIB])
    ml_functions.make_session(context(jvm), {"a": "b"})
    assert jvm.made == [("platform", {"a": "b"})]
    assert jvm.default == "session"
    assert jvm.loader is jvm.usual


def test_the_functions_come_before_the_package() -> None:
    jvm = Jvm([MLLIB])
    ml_functions.make_session(context(jvm), {})
    finder: Any = sys.meta_path[0]
    assert finder.find_spec("pyspark.sql", None) is None
    assert jvm.loaded == []
    assert finder.find_spec("pyspark.ml", None) is None
    assert jvm.loaded == [ml_functions._FUNCTIONS]
    assert finder not in sys.meta_path


@pytest.mark.parametrize("places", [[], [MLLIB, "jar:file:/theirs.jar!/x"], ["jar:file:/theirs.jar!/x"]])
def test_with_extensions_of_others_it_is_as_spark_has_it(places: list[str]) -> None:
    jvm = Jvm(places)
    ml_functions.make_session(context(jvm), {})
    assert jvm.made == []


def test_where_something_is_unusual_it_is_as_spark_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = Jvm([MLLIB])
    ml_functions.make_session(context(jvm, gateway=object()), {})
    ml_functions.make_session(context(jvm), {"spark.sql.extensions": "theirs"})
    ml_functions.make_session(context(jvm, **{"spark.sql.extensions": "theirs"}), {})
    monkeypatch.setitem(sys.modules, "pyspark.ml", SimpleNamespace())
    ml_functions.make_session(context(jvm), {})
    assert jvm.made == []


def test_a_spark_that_refuses_is_left_to_pyspark() -> None:
    jvm = Jvm([MLLIB])
    before = list(sys.meta_path)
    ml_functions.make_session(context(jvm), {"fail": "1"})
    assert jvm.default is None
    assert jvm.loader is jvm.usual
    assert sys.meta_path == before
