"""The options of text files: under any spelling that Spark takes, and nothing that would be ignored."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from penstock import FileSink
from penstock.errors import ConfigurationError
from penstock.sinks.files.text import rendering


@pytest.mark.parametrize("name", ["header", "Header", "HEADER"])
def test_options_count_in_any_case_as_sparks_do(name: str) -> None:
    class Kept(io.BytesIO):
        def close(self) -> None:
            self.text = self.getvalue()
            super().close()

    sink, stream = FileSink("/nowhere", format="csv", options={name: "true", "LINESEP": "|"}), Kept()
    writing = sink._encoder(stream)
    writing.write(pa.RecordBatch.from_pydict({"a%2Cb": ["1,2"]}))
    writing.close()
    assert stream.text == b"a,b|1,2|"
    assert sink.redirected("-fork").options == sink.options


@pytest.mark.parametrize(
    ("form", "options", "said"),
    [
        ("csv", {"Encoding": "UTF-16"}, "UTF-8 only"),
        ("csv", {"CharSet": "latin1"}, "UTF-8 only"),
        ("json", {"compression": "gzip"}, "no option 'compression'"),
        ("json", {"Pretty": "true"}, "several lines"),
        ("json", {"header": "true"}, "no option 'header'"),
        ("json", {"linesep": ""}, "separator"),
        ("csv", {"seperator": ";"}, "no option 'seperator'"),
        ("csv", {"sep": ";", "delimiter": "|"}, "'sep' is given twice"),
        ("csv", {"sep": ";", "SEP": "|"}, "'sep' is given twice"),
        ("parquet", {"header": "true"}, "no option 'header'"),
    ],
)
def test_what_would_be_ignored_is_refused_by_name(form: Any, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        FileSink("/nowhere", format=form, options=options)


def test_what_a_user_gives_replaces_the_defaults_and_never_reaches_spark_where_it_is_ours() -> None:
    given = {"encoding": "utf_8", "pretty": "False", "nullValue": "x", "delimiter": ";", "quoteAll": True}
    assert FileSink("/nowhere", format="json", options={"pretty": "False"}).options == {"pretty": "False"}
    del given["pretty"]
    options = FileSink("/nowhere", format="csv", options=given).options  # type: ignore[arg-type]
    rendered = rendering("csv", options)
    assert {name: rendered[name] for name in ("nullValue", "sep", "quoteAll", "timeZone")} == {
        "nullValue": "x",
        "sep": ";",
        "quoteAll": "True",
        "timeZone": "UTC",
    }
    assert "encoding" not in rendered
    assert "timeZone" not in rendering("json", {"timestampFormat": "HH:mm"})
