"""Derived features at serving have the values that the engine gave them in training, from rows as
consumers hold them.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.data.engine_parity import (
    ENGINE,
    EXPRESSIONS,
    TABLE,
    differences,
    engine_refuses,
    served,
    trees_of,
    types_of,
)
from training.data import serving_expressions
from training.data.serving_expressions import BRANCHES, LENIENT, STRICT, derive
from training.data.serving_expressions.text import SPACES, lower, upper
from training.data.table.portable import SIGNATURES, portable

CHUNK = 32
REFUSED_ROWS = {  # what serving says of rows that the engine refuses, too
    "i // (k - 1)": "division by zero",
    "i % (k - 1)": "division by zero",
    "dec % (k - 1)": "division by zero",
    "x // (z - 0.5)": "division by zero",
    "sm + cast(100 as tinyint)": "a number is too large for TINYINT",
    "tiny * sm": "a number is too large for TINYINT",
    "i * i * 1000": "a number is too large for BIGINT",
    "abs(sm)": "a number is too large for TINYINT",
    "ub - 5": "a number is too large for UBIGINT",
    "cast(s as integer)": "'Hello World' is no INTEGER",
    "cast(concat(n, '00') as tinyint)": "'1200' is no TINYINT",
    "cast(x as bigint)": "a number is too large for BIGINT, or none",
    "cast(x as float)": "a number is too large for FLOAT",
    "cast(dec as decimal(4,2))": r"a number is too large for DECIMAL\(4,2\)",
    "cast(s as date)": "'Hello World' is no DATE",
    "cast(s as boolean)": "'Hello World' is no BOOLEAN",
    "strptime(s, '%Y')": "expected text of the form '%Y', got 'Hello World'",
    "make_date(2021, 2, 20 + abs(k))": "no such date",
    "make_date(2021, abs(k) + 6, 20)": "no such date",
    "make_timestamp(2021, 2, 2, 20 + abs(k), 0, 0)": "no such time of day",
    "lpad(s, 8, t)": "lpad has no value",
    "ts + to_hours(i)": "an interval is too long",
}


# ------------------------------------------------------------------------------------- equal values


@pytest.mark.req("R1")
@pytest.mark.parametrize("start", range(0, len(EXPRESSIONS), CHUNK))
def test_each_expression_gives_what_the_engine_gives(start: int) -> None:
    assert differences(EXPRESSIONS[start : start + CHUNK], TABLE) == []


@pytest.mark.req("R1")
@pytest.mark.parametrize("expression", REFUSED_ROWS)
def test_rows_that_the_engine_refuses_are_refused_by_name_and_the_others_are_not(
    expression: str,
) -> None:
    bad = [row for row in range(len(TABLE)) if engine_refuses(expression, TABLE.slice(row, 1))]
    shown = ", ".join(map(str, bad[:5]))
    assert 0 < len(bad) < len(TABLE)
    with pytest.raises(
        ValueError,
        match=(
            rf"^derived column 'y0' \(.*\): ({REFUSED_ROWS[expression]}) in {len(bad)} rows \(index"
            rf" {shown}"
        ),
    ):
        served([expression], TABLE)
    assert (
        differences([expression], TABLE.take([row for row in range(len(TABLE)) if row not in bad]))
        == []
    )


def test_every_operation_has_a_signature_and_a_case() -> None:
    tried = {
        op
        for start in range(0, len(EXPRESSIONS), CHUNK)
        for op in _operations(EXPRESSIONS[start : start + CHUNK])
    }
    known = {*BRANCHES, *LENIENT, *STRICT}
    assert SIGNATURES.keys() | {"cast", "try_cast"} == known
    assert known - tried == set()


def _operations(expressions: list[str]) -> set[str]:
    trees = trees_of(tuple(expressions), tuple(types_of(TABLE).items()))
    return set(re.findall(r'"op": "([^"]+)"', json.dumps(trees))) - {"column", "constant"}


@pytest.mark.req("R1")
def test_no_rows_give_no_values() -> None:
    assert all(values == [] for values in served(EXPRESSIONS[:CHUNK], TABLE.slice(0, 0)))


NUMBERS = [
    "a + b",
    "a - b",
    "a * b",
    "a % nullif(b, 0)",
    "a // nullif(b, 0)",
    "a / b",
    "-a",
    "cast(a as double)",
    "a * 1.25",
    "a > b",
    "cast(p as varchar)",
]
NUMBERS += [
    "p + q",
    "p * q",
    "p / q",
    "p % q",
    "round(p, 2)",
    "round(p)",
    "floor(p)",
    "p < q",
    "least(p, q)",
    "sqrt(abs(p))",
    "cast(g as double)",
]
NUMBERS += [
    "try_cast(p as bigint)",
    "try_cast(p as decimal(12,3))",
    "cast(cast(p as varchar) as double)",
    "sign(p)",
    "p in (q, 1)",
    "round(g, 1)",
    "a is distinct from b",
]
REALS = st.one_of(
    st.none(), st.floats(allow_nan=False), st.integers(-1000, 1000).map(lambda v: v / 8)
)


@pytest.mark.req("R1")
@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-(10**9), 10**9)),
            st.one_of(st.none(), st.integers(-50, 50)),
            REALS,
            REALS,
            st.one_of(st.none(), st.floats(width=32, allow_nan=False)),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_numbers(rows: list[tuple[Any, ...]]) -> None:
    kinds = [pa.int64(), pa.int32(), pa.float64(), pa.float64(), pa.float32()]
    table = pa.table(
        {
            n: pa.array(v, kind)
            for n, v, kind in zip("abpqg", zip(*rows, strict=True), kinds, strict=True)
        }
    )
    assert differences(NUMBERS, table) == []


WRITTEN = st.from_regex(
    r"[ \t]?[+-]?[0-9_]{0,4}(\.[0-9_]{0,3})?([eE][+-]?[0-9]{1,2})? ?", fullmatch=True
)
LETTERS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6)
ANY_TEXT = st.one_of(
    st.none(),
    LETTERS,
    WRITTEN,
    st.sampled_from(
        ["true", "No", "inf", "-Infinity", "NaN", "aXa", "a%", "ß", "İ", "ǅ", "1e", "0"]
    ),
)
TEXTS = [
    "try_cast(s as integer)",
    "try_cast(s as double)",
    "case when s not ilike '%e%' then try_cast(s as decimal(8,2)) end",
    "try_cast(s as boolean)",
    "upper(s)",
    "lower(s)",
    "length(s)",
]
TEXTS += [
    "trim(s)",
    "substr(s, k, j)",
    "left(s, k)",
    "right(s, k)",
    "replace(s, t, 'x')",
    "contains(s, t)",
    "s like t",
    "s ilike t",
    "s < t",
    "split_part(s, t, k)",
]
TEXTS += [
    "instr(s, t)",
    "concat(s, t)",
    "s || t",
    "greatest(s, t)",
    "coalesce(s, t)",
    "s in (t, 'a')",
    "nullif(s, t)",
    "starts_with(s, t)",
    "rpad(s, abs(k), 'é-')",
]


@pytest.mark.req("R1")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(ANY_TEXT, ANY_TEXT, st.one_of(st.none(), st.integers(-8, 8)), st.integers(-8, 8)),
        min_size=1,
        max_size=12,
    )
)
def test_text(rows: list[tuple[Any, ...]]) -> None:
    kinds = [pa.string(), pa.string(), pa.int32(), pa.int32()]
    table = pa.table(
        {
            n: pa.array(v, kind)
            for n, v, kind in zip("stkj", zip(*rows, strict=True), kinds, strict=True)
        }
    )
    assert differences(TEXTS, table) == []


@pytest.mark.req("R1")
def test_letters_change_case_and_blanks_are_trimmed_as_in_the_engine() -> None:
    found = ENGINE.execute(
        "select chr(c::int), upper(chr(c::int)), lower(chr(c::int)), trim(chr(c::int)) = '' from"
        " range(1, 131072) t(c) where c not between 55296 and 57343"
    )
    for letter, high, low, blank in found.fetchall():
        assert (upper(letter), lower(letter), letter in SPACES) == (high, low, blank), hex(
            ord(letter)
        )


MOMENTS = st.one_of(st.none(), st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2250, 12, 31)))
PARTS = ["year", "quarter", "month", "week", "day", "hour", "minute", "second"]
MOMENT_EXPRESSIONS = (
    [f"date_diff('{p}', u, v)" for p in PARTS]
    + [f"date_trunc('{p}', u)" for p in PARTS]
    + [f"date_part('{p}', u)" for p in PARTS]
)
MOMENT_EXPRESSIONS += [
    "date_diff('week', u::date, v::date)",
    "isodow(u)",
    "dayofweek(u)",
    "dayofyear(u)",
    "yearweek(u)",
    "last_day(u)",
    "epoch(u)",
    "epoch(v - u)",
]
MOMENT_EXPRESSIONS += [
    "u + to_months(k)",
    "u::date - to_months(k)",
    "u + to_days(k) + to_seconds(k)",
    "cast(u as varchar)",
    "cast(u::date as varchar)",
    "u < v",
]
MOMENT_EXPRESSIONS += [
    "strptime(cast(u::date as varchar), '%Y-%m-%d')",
    "cast(cast(u as varchar) as timestamp)",
    "u::date - v::date",
    "cast(u as timestamp_s)",
]


@pytest.mark.req("R1")
@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(MOMENTS, MOMENTS, st.integers(-40, 40)), min_size=1, max_size=12))
def test_dates_and_timestamps(rows: list[tuple[Any, ...]]) -> None:
    kinds = [pa.timestamp("us"), pa.timestamp("us"), pa.int64()]
    table = pa.table(
        {
            n: pa.array(v, kind)
            for n, v, kind in zip("uvk", zip(*rows, strict=True), kinds, strict=True)
        }
    )
    assert differences(MOMENT_EXPRESSIONS, table) == []


FORMATS = [
    "%m/%d/%y",
    "%d.%m.%Y",
    "%Y%m%d",
    "%Y-%m-%d %H:%M:%S",
    "%d %b %Y",
    "%I:%M %p",
    "%Y %j",
    "%H:%M:%S.%f",
    "%-d-%B-%Y",
    "%y%m%d",
    "%A %d %B %Y 100%%",
    "%S.%g",
]
STAMPS = st.one_of(
    st.datetimes(dt.datetime(1000, 1, 1)).flatmap(
        lambda moment: st.sampled_from([f for f in FORMATS if "g" not in f and "-d" not in f]).map(
            moment.strftime
        )
    ),
    st.from_regex(
        r" ?[0-9]{1,4}[-/.: ]?[0-9]{1,2}[-/.: ]?[0-9]{1,4}( [0-9]{1,2}:[0-9]{1,2})? ?",
        fullmatch=True,
    ).filter(str.isascii),
)


@pytest.mark.req("R1")
@settings(max_examples=60, deadline=None)
@given(st.lists(STAMPS, min_size=1, max_size=12))
def test_texts_are_read_as_dates_where_the_engine_reads_them(texts: list[str]) -> None:
    table = pa.table({"s": pa.array(texts)})
    assert differences([f"epoch(try_strptime(s, '{form}'))" for form in FORMATS], table) == []


# ---------------------------------------------------------------------------------- rows of
# consumers

ROWS = {
    "hr": [0, 7, None, 23],
    "day": ["2020-02-29", None, "1999-12-31", "2024-01-01"],
    "moment": ["2020-02-29 23:59:59.5", "1969-12-31 00:00:00", None, "2024-06-01 12:00:00"],
    "free": [True, None, False, True],
    "price": [1.5, None, 2.0, -0.25],
    "code": ["7", "x", None, "7"],
}
USED = [
    "concat(hr, '-', code)",
    "hr // 2",
    "dayofyear(day)",
    "hour(moment)",
    "epoch(moment)",
    "free and price > 1",
    "concat(price)",
    "day < moment",
    "coalesce(free, false)",
]
SCHEMA = pa.schema(
    {
        "hr": pa.int64(),
        "day": pa.date32(),
        "moment": pa.timestamp("us"),
        "free": pa.bool_(),
        "price": pa.float64(),
        "code": pa.string(),
    }
)


def source() -> pa.Table:
    """The rows as training had them."""
    dates = [v and dt.date.fromisoformat(v) for v in ROWS["day"]]
    moments = [v and dt.datetime.fromisoformat(v) for v in ROWS["moment"]]
    return pa.table(ROWS | {"day": dates, "moment": moments}, schema=SCHEMA)


def frames() -> dict[str, pd.DataFrame]:
    """The same rows in the forms that consumers have."""
    plain = source().to_pandas()
    return {
        "arrow": plain,
        "whole numbers kept": source().to_pandas(integer_object_nulls=True),
        "text": (
            pd.DataFrame(ROWS)
            .astype(object)
            .assign(
                hr=["0", "7", None, "23"],
                free=["True", None, "false", "TRUE"],
                price=["1.5", "", "2", "-.25"],
            )
        ),
        "nullable": (
            pd.DataFrame(ROWS).astype(
                {"hr": "Int64", "free": "boolean", "price": "Float64", "code": "string"}
            )
        ),
        "timestamps": plain.assign(
            day=pd.to_datetime(ROWS["day"]),
            moment=pd.to_datetime(pd.Series(ROWS["moment"]), format="mixed", utc=True),
        ),
        "nanoseconds": plain.assign(
            moment=pd.to_datetime(pd.Series(ROWS["moment"]), format="mixed").astype(
                "datetime64[ns]"
            )
        ),
        "elsewhere": plain.assign(
            moment=pd.to_datetime(
                pd.Series(ROWS["moment"]), format="mixed", utc=True
            ).dt.tz_convert("Asia/Tokyo")
        ),
        "objects": plain.assign(
            moment=[v and dt.datetime.fromisoformat(v) for v in ROWS["moment"]],
            price=[Decimal("1.5"), None, Decimal(2), Decimal("-0.25")],
        ),
        "pandas objects": plain.assign(
            moment=[v and pd.Timestamp(v) for v in ROWS["moment"]],
            code=pd.Categorical([7, "x", None, 7.0]),
        ),
        "single precision": plain.astype({"hr": "float32", "price": "float32", "free": object}),
    }


@pytest.mark.req("R1")
@pytest.mark.parametrize("form", frames())
def test_rows_in_any_form_give_the_values_of_training(form: str) -> None:
    frame = frames()[form].set_index(np.arange(4) * 7)[
        ["code", "price", "free", "moment", "day", "hr"]
    ]
    texts = ("",) if form == "text" else ()
    trees = portable({f"y{i}": e for i, e in enumerate(USED)}, types_of(source()))
    before = frame.copy(deep=True)
    found = derive(frame, trees, null_texts=texts)
    wanted = derive(source().to_pandas(), trees)
    assert differences(USED, source()) == []
    for name in trees:
        assert [str(v) for v in found[name]] == [str(v) for v in wanted[name]], name
    assert found.index.equals(frame.index)
    pd.testing.assert_frame_equal(frame, before)


REFUSED_VALUES: dict[str, tuple[str, Any, str]] = {
    "fraction": (
        "hr // 2",
        {"hr": [1.0, 2.5, None, 3.0]},
        r"column 'hr' \(for 'y'\): expected numbers \(BIGINT\), got .*2.5.* in 1 rows \(index 1\)",
    ),
    "word": (
        "hr // 2",
        {"hr": ["1", "two", None, "3"]},
        r"column 'hr'.*got 'two' in 1 rows \(index 1\)",
    ),
    "too large": (
        "hr // 2",
        {"hr": [1, 2**70, None, 3]},
        r"column 'hr'.*got 1180591620717411303424 in 1 rows",
    ),
    "no number": (
        "price > 1",
        {"price": ["1", "a", "b", None]},
        r"column 'price'.*expected numbers \(DOUBLE\), got 'a' in 2 rows \(index 1, 2\)",
    ),
    "no truth": (
        "not free",
        {"free": [True, "maybe", None, 2]},
        r"column 'free'.*expected true or false \(BOOLEAN\), got 'maybe' in 2 rows \(index 1, 3\)",
    ),
    "truth as text": (
        "code = 'a'",
        {"code": ["a", True, None, "b"]},
        r"column 'code'.*expected text \(VARCHAR\), got True in 1 rows \(index 1\)",
    ),
    "date as text": (
        "code = 'a'",
        {"code": [dt.date(2020, 1, 1), "a", None, "b"]},
        r"column 'code'.*expected text.*got datetime.date.* in 1 rows",
    ),
    "no date": (
        "year(day)",
        {"day": ["2020-01-01", "2020-02-30", None, "1/2/20"]},
        r"column 'day'.*expected dates \(DATE\), got '2020-02-30' in 2 rows \(index 1, 3\)",
    ),
    "time of day": (
        "year(day)",
        {"day": pd.to_datetime(["2020-01-01 10:00"] * 4)},
        r"column 'day'.*expected dates.*got Timestamp.* in 4 rows \(index 0, 1, 2, 3\)",
    ),
    "number as time": (
        "year(moment)",
        {"moment": [5, None, None, None]},
        r"column 'moment'.*expected timestamps \(TIMESTAMP\), got .*5.* in 1 rows \(index 0\)",
    ),
}


@pytest.mark.req("S2")
@pytest.mark.parametrize("fault", REFUSED_VALUES)
def test_a_value_that_its_column_could_not_have_held_is_refused_by_column_and_row(
    fault: str,
) -> None:
    expression, columns, message = REFUSED_VALUES[fault]
    trees = portable({"y": expression}, types_of(source()))
    derive(source().to_pandas(), trees)
    with pytest.raises(ValueError, match=message):
        derive(source().to_pandas().assign(**columns), trees)


# ------------------------------------------------------------------------------------ which columns


@pytest.mark.req("R1")
def test_derived_columns_build_on_each_other_and_a_given_one_is_taken() -> None:
    table = pa.table({"a": [1, 2], "b": [10, 20]})
    trees = portable(
        {"c": "a + b", "other": "a * 100", "d": "c * 2"}, types_of(table), features=["d"]
    )
    assert list(trees) == ["c", "d"]
    frame = table.to_pandas()
    assert derive(frame, trees, wanted=["d"]).to_dict("list") == {
        "a": [1, 2],
        "b": [10, 20],
        "d": [22, 44],
    }
    assert derive(frame.assign(c=[5.0, None]), trees, wanted=["d"])["d"].tolist() == [10, None]
    assert derive(pd.DataFrame({"d": [1, 2]}), trees, wanted=["d"])["d"].tolist() == [1, 2]
    assert derive(pd.DataFrame({"c": [1, 2]}), trees, wanted=["d"])["d"].tolist() == [2, 4]


@pytest.mark.req("S2")
def test_missing_and_repeated_columns_are_refused_by_name_with_what_needs_them() -> None:
    table = pa.table({"a": [1, 2], "b": [10, 20]})
    trees = portable({"c": "a + b", "d": "c * b"}, types_of(table))
    with pytest.raises(
        ValueError,
        match=(
            r"missing columns: 'b' \(for 'c', 'd'\); pass them, or the derived columns themselves"
        ),
    ):
        derive(table.to_pandas()[["a"]], trees)
    with pytest.raises(ValueError, match=r"missing columns: 'b' \(for 'd'\)"):
        derive(pd.DataFrame({"c": [1]}), trees)
    doubled = pd.concat([table.to_pandas(), table.to_pandas()[["a"]]], axis=1)
    with pytest.raises(ValueError, match=r"columns given twice: 'a'; keep one of each"):
        derive(doubled, trees)


# ------------------------------------------------------------------------------------ alone and
# safe


@pytest.mark.req("S1")
def test_a_tree_is_data_and_an_unknown_operation_is_refused() -> None:
    hostile = {"op": "__import__('os').system", "type": "VARCHAR", "args": []}
    with pytest.raises(ValueError, match=r"unknown operation .*made by another version"):
        derive(pd.DataFrame({"a": [1]}), {"y": {"sql": "", "columns": {}, "root": hostile}})
    sources = [path.read_text() for path in Path(serving_expressions.__file__).parent.glob("*.py")]
    assert not any(
        re.search(r"\b(eval|exec|compile|getattr|__import__)\(", text.replace("re.compile(", ""))
        for text in sources
    )


@pytest.mark.req("R1")
def test_the_package_works_alone(tmp_path: Path) -> None:
    """Copied elsewhere, imported under another name, in an interpreter that finds neither this
    project nor its engine.
    """
    shutil.copytree(
        Path(serving_expressions.__file__).parent,
        tmp_path / "shipped",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    trees = portable(
        {"y": "concat(i, '-', upper(s))", "w": "dayofyear(d) + round(x)"}, types_of(TABLE)
    )
    (tmp_path / "trees.json").write_text(json.dumps(trees))
    code = (
        "import sys, json; sys.modules |= dict.fromkeys(('duckdb', 'torch', 'pyarrow', 'training',"
        " 'schemas', 'mlflow', 'pydantic')); import pandas as pd, shipped;found ="
        " shipped.derive(pd.DataFrame({'i': [3.0], 's': ['ab'], 'd': ['2020-12-31'], 'x':"
        " ['2.5']}), json.load(open('trees.json')));print(found['y'][0], found['w'][0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3-AB 369.0"), done.stderr
