"""What of a savepoint goes where in a program: worked out before anything is copied, and shown.

Pure: it compares descriptions. Queries, sources and sinks are matched by their uids. Stateful operators have no names
in Spark, only positions; they are matched in their order by what they are and by the columns they keep state under.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock.errors import NotRestorable
from penstock.savepoints.savepoint import SavedQuery, Savepoint


@dataclass(frozen=True, slots=True)
class ProgramQuery:
    """What the program has under a uid. `operators` as `describe_operator` shows them, None where the plan could
    not be looked at: then Spark compares, when it starts."""

    sources: Sequence[str | None]
    sinks: Sequence[str]
    operators: Sequence[Mapping[str, Any]] | None
    partitions: int | None = None  # asked for; None: as it was
    backend: str | None = None


class Fate(StrEnum):
    KEPT = "kept"
    NEW = "new"
    LEFT = "left behind"
    IMPOSSIBLE = "cannot be kept"


@dataclass(frozen=True, slots=True)
class ReportLine:
    query: str
    what: str
    fate: Fate
    detail: str = ""


@dataclass
class QueryMapping:
    """How one query is carried over. `sources`: for each position of the program, the saved position or None.
    `operators`: for each operator of the program its number in the savepoint; None: as they are."""

    sources: list[int | None] = field(default_factory=list)
    operators: list[int] | None = None
    partitions: int | None = None  # a change
    backend: str | None = None  # a change
    state_format: str | None = None  # a change


@dataclass
class RestoreMapping:
    """All of it. `queries` are those that are restored."""

    queries: dict[str, QueryMapping] = field(default_factory=dict)
    lines: list[ReportLine] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def report(self) -> str:
        details = [f" ({line.detail})" if line.detail else "" for line in self.lines]
        lines = zip(self.lines, details, strict=True)
        return "\n".join(f"  {line.query}: {line.what} {line.fate.value}{detail}" for line, detail in lines)

    def require(self, where: str) -> None:
        """Raise `NotRestorable`, with everything that prevents the restore, if anything does."""
        if self.problems:
            raise NotRestorable(
                f"The program cannot take over {where}:\n"
                + "\n".join(f"  - {problem}" for problem in self.problems)
                + f"\nWhat maps to what:\n{self.report()}",
                safe="nothing was started; the savepoint and the job's checkpoint are as they were.",
                to_do="change the lines named above, or leave behind on purpose what the program no longer has with"
                " --allow-non-restored-state.",
            )


def compare(saved: Savepoint, program: Mapping[str, ProgramQuery], *, allow: bool) -> RestoreMapping:
    """`allow`: what the program does not have any more is left behind."""
    found = RestoreMapping()
    for uid in saved.queries:
        if uid not in program:
            _leave(found, uid, "query", allow, f"the program has the queries {sorted(program)}: give one its uid back")
    for uid, query in program.items():
        before = saved.queries.get(uid)
        if before is None:
            found.lines.append(ReportLine(uid, "query", Fate.NEW, "starts from the beginning"))
            continue
        found.queries[uid] = _query(found, uid, before, query, allow)
    return found


def _query(found: RestoreMapping, uid: str, saved: SavedQuery, program: ProgramQuery, allow: bool) -> QueryMapping:
    mapping = QueryMapping(sources=_sources(found, uid, saved, program, allow))
    found.lines.append(ReportLine(uid, "query", Fate.KEPT, f"from epoch {saved.epoch}"))
    for sink in program.sinks:
        found.lines.append(ReportLine(uid, f"sink {sink}", Fate.KEPT if sink in saved.sinks else Fate.NEW))
    for sink in saved.sinks:
        if sink not in program.sinks:
            # Nothing of it is open: all its rows up to the savepoint are committed.
            found.lines.append(ReportLine(uid, f"sink {sink}", Fate.LEFT, "all its rows so far are committed"))
    mapping.operators = _operators(found, uid, saved, program, allow)
    if saved.operators:
        if program.partitions is not None and program.partitions != saved.partitions:
            mapping.partitions = program.partitions
            found.lines.append(ReportLine(uid, "parallelism", Fate.KEPT, f"{saved.partitions} → {program.partitions}"))
        if program.backend is not None and program.backend != saved.backend:
            mapping.backend = program.backend
            found.lines.append(ReportLine(uid, "state backend", Fate.KEPT, f"{saved.backend} → {program.backend}"))
    return mapping


def _sources(
    found: RestoreMapping, uid: str, saved: SavedQuery, program: ProgramQuery, allow: bool
) -> list[int | None]:
    free: dict[str | None, list[int]] = {}
    for position, name in enumerate(saved.sources):
        free.setdefault(name, []).append(position)
    chosen: list[int | None] = []
    for name in program.sources:
        positions = free.get(name)
        chosen.append(positions.pop(0) if positions else None)
        fate = Fate.KEPT if positions is not None and chosen[-1] is not None else Fate.NEW
        detail = "" if fate is Fate.KEPT else "read from its own start"
        found.lines.append(ReportLine(uid, f"source {_source_name(name)}", fate, detail))
    for name, positions in free.items():
        for _ in positions:
            reads = [_source_name(source) for source in program.sources]
            hint = f"the program reads {reads}: give the source its uid back"
            _leave(found, uid, f"source {_source_name(name)}", allow, hint)
    if None in program.sources and any(position is None for position in chosen) and len(saved.sources) > 1:
        found.problems.append(
            f"query {uid!r} reads a stream without a uid, and there are several: read it by job.read(…, uid=…)"
        )
    twice = any(len(set(names)) < len(names) for names in (saved.sources, program.sources))
    if twice and chosen != list(range(len(saved.sources))):
        found.problems.append(
            f"query {uid!r} uses a source twice, and then Spark numbers what sources keep otherwise than their"
            " positions: leave all its sources, and their order, as they were"
        )
    return chosen


def _operators(
    found: RestoreMapping, uid: str, saved: SavedQuery, program: ProgramQuery, allow: bool
) -> list[int] | None:
    if program.operators is None:
        for operator in saved.operators:
            detail = "Spark compares its columns when it starts"
            found.lines.append(ReportLine(uid, _operator(operator), Fate.KEPT, detail))
        return None
    chosen: list[int] = []
    unmatched = list(saved.operators)
    for operator in program.operators:
        alike = [before for before in unmatched if before["name"] == operator["name"]]
        same = next((before for before in alike if not columns_changed(before, operator)), None)
        if same is None:
            if alike:
                similar = alike[0]
                unmatched.remove(similar)
                what = columns_changed(similar, operator)
                found.lines.append(ReportLine(uid, _operator(similar), Fate.IMPOSSIBLE, what))
                found.problems.append(
                    f"query {uid!r}: the state of operator {similar['id']} ({similar['name']}) was kept under other"
                    f" columns: {what}. Bring the columns of this operation back, or give the query another uid to"
                    " start over"
                )
            else:
                detail = "it has no state in the savepoint"
                found.lines.append(ReportLine(uid, _operator(operator), Fate.IMPOSSIBLE, detail))
                found.problems.append(
                    f"query {uid!r}: operator {operator['id']} ({operator['name']}) is new; Spark cannot add a"
                    " stateful operation to a query that goes on. Put it into a query of its own, with a uid of its own"
                )
            continue
        unmatched.remove(same)
        chosen.append(int(same["id"]))
        found.lines.append(ReportLine(uid, _operator(same), Fate.KEPT))
    for operator in unmatched:
        _leave(found, uid, _operator(operator), allow, "bring the operation back")
    return chosen if chosen != sorted(int(operator["id"]) for operator in saved.operators) else None


def columns_changed(saved: Mapping[str, Any], program: Mapping[str, Any]) -> str:
    """How the columns of two operators differ; empty if they do not, as far as is known."""
    stores = {store["name"]: store for store in program["stores"]}
    for before in saved["stores"]:
        now = stores.get(before["name"])
        if now is None:
            continue
        for part in ("key_schema", "value_schema"):
            old, new = before.get(part), now.get(part)
            if old is not None and new is not None and _columns(old) != _columns(new):
                return f"{part.partition('_')[0]} {_show_columns(old)} → {_show_columns(new)}"
    return ""


def _columns(schema: Mapping[str, Any]) -> list[Any]:
    """What must stay: the types, in their order. Spark does not look at the names of key columns either."""
    return [_plain(column["type"]) for column in schema.get("fields", [])]


def _plain(kind: Any) -> Any:
    if not isinstance(kind, Mapping):
        return kind
    if kind.get("type") == "struct":
        return ["struct", [_plain(column["type"]) for column in kind.get("fields", [])]]
    return {key: _plain(value) for key, value in kind.items() if key not in ("containsNull", "valueContainsNull")}


def _show_columns(schema: Mapping[str, Any]) -> str:
    columns = ", ".join(f"{column['name']} {_type_name(column['type'])}" for column in schema.get("fields", []))
    return f"({columns})"


def _type_name(kind: Any) -> str:
    return str(kind.get("type", kind)) if isinstance(kind, Mapping) else str(kind)


def _leave(found: RestoreMapping, uid: str, what: str, allow: bool, hint: str) -> None:
    fate, detail = (Fate.LEFT, "") if allow else (Fate.IMPOSSIBLE, "not in the program")
    found.lines.append(ReportLine(uid, what, fate, detail))
    if not allow:
        found.problems.append(f"query {uid!r}: {what} is in the savepoint and not in the program; {hint}")


def _operator(operator: Mapping[str, Any]) -> str:
    return f"operator {operator['id']} ({operator['name']})"


def _source_name(uid: str | None) -> str:
    return uid or "without a uid"
