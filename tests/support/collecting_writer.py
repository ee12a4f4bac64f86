"""A writer for real-time queries in the driver's JVM (a local master) that keeps every row it gets, for tests to read.

Rows have one column of text, and the three columns of positions. A text with `fail` in it makes the task fail with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

_SOURCE = """
package penstock.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

public class Collecting extends ForeachWriter {
    private static final ConcurrentHashMap KEPT = new ConcurrentHashMap();
    private final String name;

    public Collecting(String name) { this.name = name; KEPT.put(name, new ArrayList()); }

    public static String rows(String name) {
        List rows = (List) KEPT.get(name);
        synchronized (rows) { return String.join("\\n", rows); }
    }

    public boolean open(long partition, long epoch) { return true; }

    public void process(Object row) {
        Row r = (Row) row;
        String text = r.getString(0);
        if (text.contains("fail")) throw new IllegalStateException(text);
        List rows = (List) KEPT.get(this.name);
        synchronized (rows) { rows.add(r.get(1) + " " + r.get(2) + " " + r.get(3) + " " + text); }
    }

    public void close(Throwable error) { }
}
"""


class Kept(NamedTuple):
    topic: str
    partition: int
    offset: int
    text: str


class CollectingWriters:
    """`folder` is for the compiled class."""

    def __init__(self, spark: Any, folder: Path) -> None:
        java = self._java = spark._jvm
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.cook(_SOURCE)
        place = folder / "penstock" / "tests"
        place.mkdir(parents=True)
        place.joinpath("Collecting.class").write_bytes(compiler.getBytecodes().get("penstock.tests.Collecting"))
        loader = java.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        loader.addURL(java.java.io.File(str(folder)).toURI().toURL())

    def writer(self, name: str) -> Any:
        return self._java.penstock.tests.Collecting(name)

    def rows(self, name: str) -> list[Kept]:
        """What the writer of that name has got so far."""
        lines = [line.split(" ", 3) for line in self._java.penstock.tests.Collecting.rows(name).splitlines()]
        return [Kept(topic, int(partition), int(offset), text) for topic, partition, offset, text in lines]
