"""Where the sinks benchmark writes: for each system our sink, Spark's own writer, and a look at what is there.

Spark's writers have the settings that were fastest here; none of them makes a promise about rows after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from penstock import DeltaSink, FileSink, MySqlSink, PostgresSink, TwoPhaseSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Target(ABC):
    """One system. `prepare` comes before each run and names a place that nobody has written to."""

    jars: Sequence[str] = ()
    conf: ClassVar[Mapping[str, str]] = {}
    spark_writer: str  # what Spark's side is, for people

    @abstractmethod
    def prepare(self, name: str) -> None: ...

    @abstractmethod
    def sink(self) -> TwoPhaseSink: ...

    @abstractmethod
    def spark(self, frame: DataFrame) -> DataStreamWriter: ...

    @abstractmethod
    def found(self) -> tuple[int, int]:
        """How many rows are visible, and the sum of their ids."""


class Table(Target):
    """A table in a server. It is made beforehand, so that both sides write into the same types."""

    jars = ("spark-jdbc",)
    columns: str
    driver: str
    batch_rows: int

    def prepare(self, name: str) -> None:
        before, self._name = getattr(self, "_name", None), name
        if before is not None:
            self.ask(f"DROP TABLE {before}")
        self.ask(f"CREATE TABLE {name} ({self.columns})")
        self.ask(self.settle)

    def spark(self, frame: DataFrame) -> DataStreamWriter:
        options = {
            "url": self.url,
            "driver": self.driver,
            "dbtable": self._name,
            "batchsize": str(self.batch_rows),
            **self.login,
        }

        def write(batch: DataFrame, number: int) -> None:
            batch.write.format("jdbc").options(**options).mode("append").save()

        return frame.writeStream.foreachBatch(write)

    def found(self) -> tuple[int, int]:
        [(rows, total)] = self.ask(f"SELECT count(*), sum(id) FROM {self._name}")
        return int(rows), int(total)

    #: Waits for what the run before left to the server to do later.
    settle: str

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def login(self) -> Mapping[str, str]: ...

    @abstractmethod
    def ask(self, statement: str) -> Sequence[Any]: ...


class PostgresTable(Table):
    columns = "id int8, account int4, amount float8, name text, at timestamptz, flag bool"
    driver = "org.postgresql.Driver"
    batch_rows = 10_000
    settle = "CHECKPOINT"
    spark_writer = "JDBC, reWriteBatchedInserts"

    def __init__(self, given: Mapping[str, Any]) -> None:
        import psycopg

        self._dsn = given["dsn"]
        self._parts = psycopg.conninfo.conninfo_to_dict(self._dsn)
        self._connection = psycopg.connect(self._dsn, autocommit=True)

    def sink(self) -> TwoPhaseSink:
        return PostgresSink(self._dsn, table=self._name, mode="two_phase")

    @property
    def url(self) -> str:
        at = f"{self._parts['host']}:{self._parts['port']}/{self._parts['dbname']}"
        return f"jdbc:postgresql://{at}?reWriteBatchedInserts=true"

    @property
    def login(self) -> Mapping[str, str]:
        return {"user": str(self._parts["user"]), "password": str(self._parts["password"])}

    def ask(self, statement: str) -> Sequence[Any]:
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


class MariaDbTable(Table):
    # With a primary key, as such tables have: without one InnoDB numbers the rows, and writers wait for each other.
    columns = "id BIGINT PRIMARY KEY, account INT, amount DOUBLE, name VARCHAR(100), at DATETIME(6), flag BOOLEAN"
    driver = "org.mariadb.jdbc.Driver"
    batch_rows = 10_000
    settle = "FLUSH TABLES"
    spark_writer = "JDBC, useBulkStmts"

    def __init__(self, given: Mapping[str, Any]) -> None:
        import pymysql

        self._login = given["login"]
        self._connection = pymysql.connect(**self._login, database="test", autocommit=True)

    def sink(self) -> TwoPhaseSink:
        return MySqlSink(table=self._name, database="test", mode="two_phase", **self._login)

    @property
    def url(self) -> str:
        # Spark knows MySQL's way to quote names only by this scheme.
        at = f"{self._login['host']}:{self._login['port']}/test"
        return f"jdbc:mysql://{at}?permitMysqlScheme&useBulkStmts=true"

    @property
    def login(self) -> Mapping[str, str]:
        return {"user": self._login["user"], "password": self._login["password"]}

    def ask(self, statement: str) -> Sequence[Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            rows: Sequence[Any] = cursor.fetchall()
            return rows


class Files(Target):
    spark_writer = "file sink"

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._root = Path(given["folder"])

    def prepare(self, name: str) -> None:
        self._path = str(self._root / name)

    def sink(self) -> TwoPhaseSink:
        return FileSink(self._path)

    def spark(self, frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.format("parquet").option("path", self._path)

    def found(self) -> tuple[int, int]:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        ids = ds.dataset([str(path) for path in Path(self._path).glob("part-*")]).to_table(["id"])["id"]
        return len(ids), pc.sum(ids).as_py()


class DeltaTable(Target):
    jars = ("spark-delta",)
    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # By default 50 tasks read a log of three lines.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    spark_writer = "append"

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._root = Path(given["folder"])

    def prepare(self, name: str) -> None:
        self._path = str(self._root / name)

    def sink(self) -> TwoPhaseSink:
        return DeltaSink(self._path)

    def spark(self, frame: DataFrame) -> DataStreamWriter:
        def write(batch: DataFrame, number: int) -> None:
            batch.write.format("delta").mode("append").save(self._path)

        return frame.writeStream.foreachBatch(write)

    def found(self) -> tuple[int, int]:
        import deltalake
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        # Not by the table's own reader: its threads call Python, and one that does so while the process ends aborts it.
        ids = ds.dataset(deltalake.DeltaTable(self._path).file_uris()).to_table(["id"])["id"]
        return len(ids), pc.sum(ids).as_py()


TARGETS: Mapping[str, type[Target]] = {
    "postgres": PostgresTable,
    "mariadb": MariaDbTable,
    "parquet": Files,
    "delta": DeltaTable,
}
