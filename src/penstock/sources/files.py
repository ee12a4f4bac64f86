"""New files in a folder, through Spark's own file source with settings that lose none of them.

Spark notes the files of an epoch in the checkpoint and lists them again when it reads them. One that is not there any
more it leaves out, with a warning in its log and nothing else. So before anything is written, both are compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.contracts.guarantees import Guarantee, Link
from penstock.contracts.source import EpochRead, Source
from penstock.errors import BarrierOverwritten, ConfigurationError, FilesMissing
from penstock.secrets import masked
from penstock.sources.streams import stream_reader
from penstock.spark.query import current_execution, items
from penstock.storage.storage import Storage, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = ("json", "csv", "parquet", "text", "orc")

#: Spark ignores files that are this much older than the newest it has seen, a week by default. A file that is moved
#: keeps its old time, so any age loses files silently; with Java's largest number nothing is older.
NO_AGE = f"{(1 << 63) - 1}ms"

#: Options that let Spark go on past rows that it should have read, and what each does.
LOSING: Mapping[str, str] = {
    "maxFileAge": "ignores files that are that much older than the newest one it has seen",
    "ignoreMissingFiles": "goes on past files that vanished before they were read",
    "ignoreCorruptFiles": "goes on past files that cannot be read",
    "fileNameOnly": "takes files of one name in two folders for one file",
}
_HARMLESS = ("", "false", NO_AGE)


class FileSource(Source):
    """Every file that appears in `path`, a folder or a pattern such as `/data/*/orders`, once.

    `format` is json (one object a line), csv, parquet, orc or text (`value string`). `schema` is Spark's: text such as
    `"id bigint, amount decimal(12,2)"`, or a `StructType`. It may be left out for text, for Parquet and ORC where a
    file is there already, and for a bounded source, which looks at the files that are there.

    `bounded=True` reads what is there when the query starts, then the job ends. It counts where every source of a
    query is bounded. `max_files_per_epoch` bounds an epoch. `options` are Spark's for the format and the file source
    (`header`, `multiLine`, `pathGlobFilter`, `recursiveFileLookup`, `cleanSource`, …).

    A file must be complete when it appears, and never change: write it elsewhere on the same file system, or under a
    name that begins with a dot or an underscore, and rename it.
    """

    verifies: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        *,
        format: str = "json",
        schema: str | StructType | None = None,
        bounded: bool = False,
        max_files_per_epoch: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if format.lower() not in FORMATS:
            raise ConfigurationError(f"FileSource has no format {format!r}.", to_do=f"use one of {', '.join(FORMATS)}.")
        if max_files_per_epoch is not None and max_files_per_epoch < 1:
            happened = "FileSource needs at least one file in an epoch."
            raise ConfigurationError(happened, to_do="give 1 or more, or leave it out.")
        self.path, self.format, self.schema = str(path), format.lower(), schema
        self.max_files_per_epoch = max_files_per_epoch
        self.options = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (options or {}).items()
        }
        self._bounded = bounded
        self._session: dict[str, str] = {}  # what the session itself is set to ignore

    def reader_options(self) -> dict[str, str]:
        """What Spark's reader is given: ours first, so that the user's win."""
        ours = {"maxFileAge": NO_AGE}
        if self.max_files_per_epoch is not None:
            ours["maxFilesPerTrigger"] = str(self.max_files_per_epoch)
        names = {name.lower() for name in self.options}
        return {**{name: value for name, value in ours.items() if name.lower() not in names}, **self.options}

    def load(self, spark: SparkSession, uid: str) -> DataFrame:
        from pyspark.errors import AnalysisException

        names = ("ignoreMissingFiles", "ignoreCorruptFiles")
        ignoring = {name: str(spark.conf.get(f"spark.sql.files.{name}", "false")) for name in names}
        self._session = {name: value for name, value in ignoring.items() if value.lower() == "true"}
        schema = self.schema if self.schema is not None else self._infer(spark, uid)
        stream = stream_reader(spark, uid).format(self.format).options(**self.reader_options())
        try:
            return (stream if schema is None else stream.schema(schema)).load(self.path)
        except AnalysisException as error:
            raise self._unreadable(uid, error) from error

    def _infer(self, spark: SparkSession, uid: str) -> StructType | None:
        """None where Spark knows it by itself."""
        from pyspark.errors import AnalysisException

        if self.format == "text":
            return None
        if not self._bounded and self.format not in ("parquet", "orc"):  # whose files hold their schema
            raise ConfigurationError(
                f"FileSource {uid!r} reads {self.format} without end and has no schema: files to come may differ from"
                " those that are there.",
                to_do=f"give schema='id bigint, …', or that of files you have:"
                f" schema=spark.read.{self.format}(PATH).schema.",
            )
        streaming = ("maxfilespertrigger", "maxbytespertrigger", "maxfileage", "cleansource", "sourcearchivedir")
        options = {name: value for name, value in self.options.items() if name.lower() not in streaming}
        try:
            return spark.read.format(self.format).options(**options).load(self.path).schema
        except AnalysisException as error:
            raise self._unreadable(uid, error) from error

    def _unreadable(self, uid: str, error: Exception) -> ConfigurationError:
        first = next(iter(str(getattr(error, "desc", None) or error).strip().splitlines()), "")
        to_do = "make the folder" if "PATH_NOT_FOUND" in first else "correct the path, the schema or the options"
        if "UNABLE_TO_INFER_SCHEMA" in first:
            to_do = "give schema='id bigint, …', or put a first file there"
        happened = f"Spark cannot read {self.describe()} as source {uid!r}: {first}"
        return ConfigurationError(happened, to_do=f"{to_do}.")

    def link(self, uid: str) -> Link:
        lower = {name.lower(): value.lower() for name, value in {**self._session, **self.options}.items()}
        for name, what in LOSING.items():
            if lower.get(name.lower(), "") not in _HARMLESS:
                remedy = f"remove {name} from the options and from the session's settings."
                return Link("source", uid, Guarantee.AT_MOST_ONCE, f"{name}={lower[name.lower()]} {what}", remedy)
        because = f"replayable, {self.describe()}, every file noted in the checkpoint"
        return Link("source", uid, Guarantee.EXACTLY_ONCE, because)

    def link_beside(self, uid: str, others: Sequence[Source]) -> Link:
        """`cleanSource` removes what one query has read, and another may not have listed it yet."""
        for other in others:
            if isinstance(other, FileSource) and other.cleans and other._folder == self._folder:
                return Link(
                    "source",
                    uid,
                    Guarantee.AT_MOST_ONCE,
                    f"{masked(self.path)} is read at several places, and cleanSource removes files that one has read"
                    " and another may not have seen yet",
                    "remove cleanSource, or read the folder at one place: write several outputs with @job.epoch.",
                )
        return self.link(uid)

    @property
    def cleans(self) -> bool:
        """Whether Spark removes or moves files once they are read."""
        options = {name.lower(): value.lower() for name, value in self.options.items()}
        return options.get("cleansource", "off") != "off"

    @property
    def _folder(self) -> str:
        path = local_path(self.path)
        return str(path) if path is not None else self.path.rstrip("/")

    def verify(self, uid: str, read: EpochRead) -> None:
        start = -1 if read.start is None else int(read.start["logOffset"])
        wanted = noted_files(read.notes, start, int(read.end["logOffset"]))
        listed = listed_files(read.spark)
        missing = sorted(wanted - set().union(*listed)) if wanted else []
        if len(listed) == 1 and listed[0] - wanted:
            raise BarrierOverwritten(
                f"Epoch {read.epoch} reads {len(listed[0] - wanted)} files of source {uid!r} that its note in"
                f" {read.notes.location} does not name: another driver, one that this run has superseded, wrote it.",
                safe="nothing of the epoch was written; no file was skipped.",
                to_do="let the job restart. If it happens again, a second driver of this job is still alive: stop it.",
            )
        if missing:
            raise FilesMissing(
                f"Epoch {read.epoch} is to read {len(wanted)} files of source {uid!r}, and {len(missing)} of them are"
                f" not there any more: {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}.",
                safe="nothing of the epoch was written; no file was skipped.",
                to_do="bring the files back under their names; the job then goes on if its restart strategy retries.",
            )

    @property
    def bounded(self) -> bool:
        return self._bounded

    @property
    def ends_with_what_is_there(self) -> bool:
        return self._bounded

    def describe(self) -> str:
        return f"{self.format} files in {masked(self.path)}"

    def __repr__(self) -> str:
        return f"FileSource({self.describe()})"


def noted_files(notes: Storage, start: int, end: int) -> set[str]:
    """The files of the notes `start + 1` to `end`. Every tenth note is a `.compact` one that repeats all before it."""
    wanted, names = range(start + 1, end + 1), set(notes.list("")) if end > start else set()
    compact = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))

    def note(number: int) -> str | None:
        if str(number) in names:
            return str(number)
        # Where there is none, Spark cannot read the epoch either, and says so.
        return next((f"{later}.compact" for later in compact if later >= number), None)

    texts = [(notes.read(name) or b"").decode() for name in {note(number) for number in wanted} if name is not None]
    entries = [json.loads(line) for text in texts for line in text.splitlines()[1:] if line.strip()]
    return {str(entry["path"]) for entry in entries if int(entry["batchId"]) in wanted}


def listed_files(spark: SparkSession) -> list[set[str]]:
    """The files that the epoch under way reads, by each file source in its plan; called inside `foreachBatch`."""
    jvm: Any = spark._jvm
    files: list[set[str]] = []
    for leaf in items(current_execution(spark).lastExecution().logical().collectLeaves()):
        if leaf.getClass().getSimpleName() != "LogicalRelation" or not leaf.isStreaming():
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() == "HadoopFsRelation":
            # One call for all of them: each name by itself would be a round trip to the JVM.
            join = jvm.org.apache.hadoop.util.StringUtils.join
            files.append(set(str(join("\n", relation.location().inputFiles())).split("\n")) - {""})
    return files
