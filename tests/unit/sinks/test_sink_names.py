"""What sinks leave in other systems is found again by its name, and not by another sink."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.contracts.sink import SinkScope, WriterScope
from penstock.naming import check_name
from penstock.sinks.mysql.tables import Names
from penstock.sinks.redis.client import Layout
from penstock.sinks.sql.tables import label, numbers_in, staging_name, writer_name

# Names as users may give them, made of what could be taken for a separator; some longer than a label.
NAMES = st.builds(lambda first, rest, more: first + rest + more, st.sampled_from("ab"), st.text("ab-._g1", max_size=6),
                  st.sampled_from(["", "x" * 60]))  # fmt: skip
SCOPES = st.builds(SinkScope, NAMES, NAMES | NAMES.map("{}~drain".format), st.just(3))
TABLES = st.text("ab@:/._-", min_size=1, max_size=5)


@given(SCOPES, SCOPES)
def test_no_two_sinks_take_each_others_leftovers(one: SinkScope, other: SinkScope) -> None:
    """Such as job `team-a` with uid `b`, and job `team` with uid `a-b`."""
    for name in (one.job, one.uid.removesuffix("~drain")):
        check_name(name, "name")
    assume(one.prefix != other.prefix)
    assert (one.job, one.uid) != (other.job, other.uid)
    scope = WriterScope(one, 1, 2, 4, 5)
    assert numbers_in(writer_name(scope), one.prefix) == {"generation": 3, "epoch": 1, "partition": 4}
    assert numbers_in(writer_name(scope), other.prefix) is None
    assert not writer_name(scope).startswith(f"{label(other.prefix)}:g"), "how PostgreSQL is asked"
    assert numbers_in(staging_name(scope), one.prefix) == {"generation": 3}
    assert numbers_in(staging_name(scope), other.prefix) is None
    mine, theirs = Layout.of(one, "k:"), Layout.of(other, "k:")
    assert not {mine.open, mine.begun, mine.done, mine.rows("n")} & {theirs.open, theirs.begun, theirs.done}
    assert not mine.rows("n").startswith(theirs.rows(""))


@given(SCOPES, TABLES, TABLES, SCOPES, TABLES, TABLES)
def test_no_two_tables_of_mysql_do_either(
    one: SinkScope, database: str, table: str, other: SinkScope, second: str, second_table: str
) -> None:
    mine, theirs = Names.of(one, database, table), Names.of(other, second, second_table)
    assume((mine.prefix, mine.table) != (theirs.prefix, theirs.table))
    assert mine.sink != theirs.sink
    assert mine.staging_prefix != theirs.staging_prefix
    assert theirs.numbers_in(mine.staging()) is None
    if "/" not in database + second:
        assert mine.global_id != theirs.global_id
