"""S1, P1: derived columns and filters are functions of the row, or refused by their key."""

from __future__ import annotations

import duckdb
import pytest

from schemas.errors import ConfigError
from training.data.engine.engine import connect, rows
from training.data.engine.expressions import derived_sql, failing_expression, filtered_sql

ENGINE = connect(threads=1)
TABLE = (
    "(select 1 as a, cast(2.5 as double) as b, 'x' as c, true as d, timestamp '2020-01-05 06:00' as"
    " t, [1, 2] as l)"
)

ALLOWED = [
    ("a + b * 2", 6.0),
    ("A + 1", 2),
    ("c = 'x' and not d", False),
    ("case when a > 1 then 'y' else c end", "x"),
    ("try_cast(c as integer)", None),
    ("a in (1, 2) or a between 5 and 6", True),
    ("c like 'x%' -- a comment", True),
    ("coalesce(nullif(c, 'x'), 'none')", "none"),
    ("extract(month from t)", 1),
    ("epoch(t + interval 1 day) - epoch(t)", 86400.0),
    ("strptime('3/4/11', '%m/%d/%y') = timestamp '2011-03-04'", True),
    ("make_timestamp(2020, 1, 5, 6, 0, 0.0) = t", True),
    ("l[1] + list_sum(l)", 4),
    ("greatest(a, b)", 2.5),
    ("regexp_extract(c, '[a-z]')", "x"),
]


@pytest.mark.req("D8")
@pytest.mark.parametrize(("expression", "value"), ALLOWED, ids=[e for e, _ in ALLOWED])
def test_functions_of_the_row_are_allowed(expression: str, value: object) -> None:
    assert rows(ENGINE, f"select z from {derived_sql(ENGINE, TABLE, {'z': expression})}") == [
        (value,)
    ]


REFUSED = [
    ("(select 1)", "subquery"),
    ("exists (select 1)", "subquery"),
    ("a in (select 1)", "subquery"),
    ("count(*)", "function 'count_star'"),
    ("sum(a)", "function 'sum'"),
    ("row_number() over ()", "window"),
    ("random()", "function 'random'"),
    ("now()", "function 'now'"),
    ("today()", "function 'today'"),
    ("current_date", "unknown column 'current_date'"),
    ("current_setting('home_directory')", "function 'current_setting'"),
    ("getenv('HOME')", "function 'getenv'"),
    ("read_text('/etc/passwd')", "function 'read_text'"),
    ("a) from read_text('/etc/passwd') --", "is no SQL expression"),
    ("a) from read_text('/etc/passwd') t(a", "is no SQL expression"),
    ("a), b, (a", "more than one expression"),
    ("a) union all select (1", "more than one expression"),
    ("a; drop table x", "is no SQL expression"),
    ("1, 2", "function 'row'"),
    ("*", "star"),
    ("columns('a')", "star"),
    ("$1", "parameter"),
    ("#1", "positional reference"),
    ("unnest(l)", "function 'unnest'"),
    ("list_transform(l, lambda x: x + 1)", "function 'list_transform'"),
    ("main.abs(a)", "function 'abs'"),
    ("nextval('s')", "function 'nextval'"),
    ("aa + 1", r"unknown column 'aa' \(did you mean 'a'\?\)"),
    ("other.a", "unknown column 'other.a'"),
    ("lenght(c)", r"function 'lenght'.*\(like 'length'\)"),
    ("", "expected an SQL expression"),
    ("a +", "is no SQL expression"),
    ("a + c", "does not fit the columns"),
]


@pytest.mark.req("S1")
@pytest.mark.parametrize(("expression", "reason"), REFUSED, ids=[e for e, _ in REFUSED])
def test_all_else_is_refused_with_its_key(expression: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.derive\.z: .*{reason}"):
        derived_sql(ENGINE, TABLE, {"z": expression})
    with pytest.raises(ConfigError, match=rf"^data\.filter: .*{reason}"):
        filtered_sql(ENGINE, TABLE, expression)


@pytest.mark.req("P1")
def test_a_derived_column_may_use_those_before_it_and_take_no_name_of_the_source() -> None:
    assert rows(
        ENGINE, f"select w from {derived_sql(ENGINE, TABLE, {'z': 'a + 1', 'w': 'z * 2'})}"
    ) == [(4,)]
    with pytest.raises(ConfigError, match=r"data\.derive\.w: .*unknown column 'z'"):
        derived_sql(ENGINE, TABLE, {"w": "z * 2", "z": "a + 1"})
    with pytest.raises(
        ConfigError,
        match=r"data\.derive\.A: the source has a column 'a' already; choose another name",
    ):
        derived_sql(ENGINE, TABLE, {"A": "a + 1"})


@pytest.mark.req("P1")
def test_a_filter_keeps_rows_for_which_it_is_true() -> None:
    table = "(select * from (values (1), (2), (null)) t(a))"
    assert rows(ENGINE, f"select a from {filtered_sql(ENGINE, table, 'a > 1 -- big')}") == [(2,)]
    assert filtered_sql(ENGINE, table, None) == table
    with pytest.raises(
        ConfigError,
        match=r"data\.filter: expected a condition, got 'a' of type INTEGER; compare it",
    ):
        filtered_sql(ENGINE, table, "a")


@pytest.mark.req("S2")
def test_an_expression_that_fails_on_a_row_is_named() -> None:
    table = "(select * from (values ('1'), ('x')) t(a))"
    derive = {"ok": "a || '!'", "number": "cast(a as integer)"}
    with pytest.raises(duckdb.ConversionException) as caught:
        rows(ENGINE, f"select * from {derived_sql(ENGINE, table, derive)}")
    error = failing_expression(ENGINE, table, derive, caught.value)
    assert "data.derive.number: 'cast(a as integer)' fails on a row" in str(
        error
    ) and "try_cast" in str(error)
