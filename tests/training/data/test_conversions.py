"""Texts of numbers in a declared spelling: engine and serving read what pandas reads, or refuse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.config import DataConfig
from schemas.errors import SchemaError
from schemas.written_config import WrittenConfig
from tests.training.data.chain import declared, validated_of
from training.data.engine.engine import connect, literal, rows
from training.data.serving_expressions import derive
from training.data.serving_expressions.number_texts import numbers
from training.data.serving_expressions.vectors import BadRows
from training.data.sources.conversions import staged
from training.data.sources.source import fingerprint, relation_sql

MARKS = ("*", "†", "[1]", "(a)", "b")
UNITS = ("$", "€", "US-$", "kg-m", "%", "kg", "USD", "mg/dL", "m²", "Rs.", "°C")
NULLS = ("-", "unknown", "n.a.", "не знаю")
SPACES = (" ", "\u00a0", "\u202f", "\u2009")


def converted(column: list[str | None], written: dict[str, Any], folder: Path) -> list[Any]:
    """Column `a` of a Parquet file, as the engine reads it with a spelling."""
    path = folder / "t.parquet"
    pq.write_table(pa.table({"a": pa.array(column, pa.string())}), path)
    data = DataConfig(uri=str(path), columns={"a": {"written": written}, "*": "feature"})
    with closing(connect(threads=1)) as connection:
        relation = relation_sql(fingerprint(data), data, connection)
        return [r[0] for r in rows(connection, f"select a from {relation}")]


def served(column: list[str | None], written: dict[str, Any]) -> list[float]:
    return list(numbers(pd.Series(column), WrittenConfig(**written).model_dump()))


def same(found: list[Any], wanted: list[float]) -> bool:
    return [None if v is None or math.isnan(v) else v for v in found] == [
        None if math.isnan(v) else v for v in wanted
    ]


@st.composite
def spelt(draw: st.DrawFn) -> tuple[dict[str, Any], list[str | None], list[float]]:
    """A spelling, texts in it, and the numbers that they mean."""
    decimal = draw(st.sampled_from([".", ","]))
    thousands = draw(st.sampled_from([m for m in ("", ",", ".", "'", " ", "_") if m != decimal]))
    units = draw(st.lists(st.sampled_from(UNITS), max_size=2, unique=True))
    bare = draw(st.booleans())
    written: dict[str, Any] = {
        "decimal": decimal,
        "thousands": thousands,
        "units": [*units, ""] if units and bare else units,
        "parentheses": draw(st.booleans()),
        "limits": draw(st.sampled_from(["refuse", "bound"])),
        "marks": draw(st.lists(st.sampled_from(MARKS), max_size=2, unique=True)),
        "nulls": draw(st.lists(st.sampled_from(NULLS), max_size=2, unique=True)),
    }
    texts: list[str | None] = []
    meant: list[float] = []
    for _ in range(draw(st.integers(1, 8))):
        places = draw(st.integers(0, 4))
        number = round(draw(st.floats(-1e9, 1e9, allow_nan=False)), places)
        text, value = _text(draw, written, units, bare, number, places)
        texts.append(text)
        meant.append(value)
    return written, texts, meant


def _text(
    draw: st.DrawFn,
    written: dict[str, Any],
    units: list[str],
    bare: bool,
    number: float,
    places: int,
) -> tuple[str | None, float]:
    kind = draw(st.sampled_from(["number"] * 6 + ["null", "none"]))
    if kind == "none" or (kind == "null" and not written["nulls"]):
        return None, math.nan
    if kind == "null":
        return f" {draw(st.sampled_from(written['nulls']))} ", math.nan
    grouped = bool(written["thousands"]) and draw(st.booleans())
    mark = draw(st.sampled_from(SPACES)) if written["thousands"] == " " else written["thousands"]
    digits = f"{abs(number):,.{places}f}" if grouped else f"{abs(number):.{places}f}"
    digits = digits.translate({ord(","): mark, ord("."): written["decimal"]})
    negative = math.copysign(1, number) < 0
    parens = negative and written["parentheses"] and draw(st.booleans())
    sign = "" if parens or not negative else draw(st.sampled_from(["-", "\u2212"]))
    gap = draw(st.sampled_from(["", " ", "\u00a0"]))
    unit = draw(st.sampled_from([*units, ""] if bare or not units else units))
    if not unit:
        text = sign + digits
    elif draw(st.booleans()):
        text = sign + unit + gap + digits
    else:
        text = sign + digits + gap + unit
    text = f"({text})" if parens else text
    if written["limits"] == "bound":
        text = draw(st.sampled_from(["", "<", "> ", "≤", ">="])) + text
    if written["marks"]:
        text += draw(st.sampled_from(["", " "])) + draw(st.sampled_from(written["marks"]))
    return text, float(("-" if negative else "") + f"{abs(number):.{places}f}")


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(connect(threads=1)) as connection:
        yield connection


def in_engine(
    engine: duckdb.DuckDBPyConnection, texts: list[str | None], written: dict[str, Any]
) -> list[tuple[float | None, bool]]:
    """The number of each text, and whether the text is refused."""
    listed = ", ".join("null" if text is None else literal(text) for text in texts)
    read, found = staged(
        f"(select unnest([{listed}]::varchar[]) as a)", {"a": WrittenConfig(**written)}
    )
    query = f"select {found['a'].number}, {found['a'].bad} from {read}"
    return [(r[0], bool(r[1])) for r in rows(engine, query)]


@given(case=spelt())
@settings(max_examples=60)
def test_engine_and_serving_read_the_numbers_that_were_written(
    case: tuple[dict[str, Any], list[str | None], list[float]], engine: duckdb.DuckDBPyConnection
) -> None:
    written, texts, meant = case
    found = in_engine(engine, texts, written)
    assert not any(bad for _, bad in found)
    assert same([number for number, _ in found], meant)
    assert same(served(texts, written), meant)


ALPHABET = "0123456789.,' -+()<>$%kg*eE\u00a0x"


@given(
    texts=st.lists(st.text(ALPHABET, min_size=1, max_size=9), min_size=1, max_size=30),
    written=spelt().map(lambda case: {**case[0], "units": ["$", "kg", "%"], "marks": ["*"]}),
)
@settings(max_examples=60)
def test_engine_and_serving_take_and_refuse_the_same_texts(
    texts: list[str], written: dict[str, Any], engine: duckdb.DuckDBPyConnection
) -> None:
    for text, (number, bad) in zip(texts, in_engine(engine, list(texts), written), strict=True):
        try:
            value = served([text], written)
        except BadRows:
            assert bad and number is None
        else:
            assert not bad and same([number], value)


def test_pandas_reads_the_same_from_a_german_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=200) * 1e5, 2)
    lines = [f"{v:,.2f}".translate(str.maketrans(",.", ".,")) for v in values]
    path = tmp_path / "t.csv"
    path.write_text("a;y\n" + "".join(f"{text};0\n" for text in lines), encoding="utf-8")
    data = DataConfig(
        uri=str(path),
        csv={"delimiter": ";"},
        columns={"a": {"written": {"decimal": ",", "thousands": "."}}, "*": "feature"},
    )
    with closing(connect()) as connection:
        relation = relation_sql(fingerprint(data), data, connection)
        found = [r[0] for r in rows(connection, f"select a from {relation}")]
    assert found == list(pd.read_csv(path, sep=";", decimal=",", thousands=".").a)


def test_plain_numbers_of_a_written_column_stay_text_until_they_are_converted(
    tmp_path: Path,
) -> None:
    """1.234 is 1234 where the point groups thousands, though every value reads as a number."""
    path = tmp_path / "t.csv"
    path.write_text("y,a,b\n0,1.234,1\n1,2.500,2\n", encoding="utf-8")
    how = {"decimal": ",", "thousands": "."}
    data = DataConfig(uri=str(path), columns={"a": {"written": how}, "*": "feature"})
    with closing(connect()) as connection:
        relation = relation_sql(fingerprint(data), data, connection)
        assert rows(connection, f"select * from {relation}") == [(0, 1234.0, 1), (1, 2500.0, 2)]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1,23", {"thousands": ","}),
        ("1,234,5", {"thousands": ","}),
        ("1.2.3", {}),
        ("5", {"units": ["%"]}),
        ("$5 kg", {"units": ["$", "kg"]}),
        ("--5", {}),
        ("-(5)", {"parentheses": True}),
        ("<5", {}),
        ("5*", {}),
        ("1e999", {}),
        ("٣", {}),
        ("5 kg\n", {"units": ["kg"]}),
    ],
)
def test_a_planted_text_is_refused_by_row_and_value(
    text: str, written: dict[str, Any], tmp_path: Path
) -> None:
    units = written.get("units", [""])
    good = [f"{i} {units[0]}" for i in range(3)]
    with pytest.raises(SchemaError, match="column 'a': expected numbers") as error:
        converted([*good, text, None], written, tmp_path)
    assert f"1 row has another text: {text!r} in row 4" in str(error.value)
    with pytest.raises(ValueError, match=r"column 'a': expected numbers.*1 rows \(index 3\)"):
        how = WrittenConfig(**written).model_dump()
        derive(pd.DataFrame({"a": [*good, text, None]}), {}, spellings={"a": how})
    assert converted([*good, None], written, tmp_path) == [0, 1, 2, None]


def test_serving_takes_numbers_next_to_texts() -> None:
    how = WrittenConfig(units=("$",), thousands=",", nulls=("-",)).model_dump()
    column = pd.Series(["$1,234", 5, 2.5, None, "-", "NA", np.float32(1)], index=list("abcdefg"))
    frame = derive(pd.DataFrame({"a": column}), {}, (), ("NA",), {"a": how})
    assert frame.a.to_list() == pytest.approx([1234, 5, 2.5, *[math.nan] * 3, 1], nan_ok=True)
    plain = pd.DataFrame({"a": [1.5, 2.5]})
    pd.testing.assert_frame_equal(derive(plain, {}, (), (), {"a": how}), plain)


def test_what_texts_said_besides_the_number_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lab = [*(["<0.1"] * 3), *(["7.5*"] * 2), "?", *(f"{i}.5" for i in range(34))]
    rest = pd.DataFrame({"lab": lab, "y": [0, 1] * 20})
    rest.to_csv(path, index_label="id")
    how = {"limits": "bound", "marks": ["*"], "nulls": ["?"]}
    columns = {"id": "id", "lab": {"written": how}, "y": "label"}
    made = validated_of(declared(path, columns), tmp_path / "out")
    assert made.spec.numeric == ("lab",)
    assert sorted(made.notes) == [
        "'lab': 1 of 40 texts are texts such as '?', which stand for a null",
        "'lab': 2 of 40 texts are numbers with a footnote mark such as '7.5*', which was left out",
        "'lab': 3 of 40 texts are bounds such as '<0.1', of which the bound was taken",
    ]
    assert pq.read_table(made.table.file.path)["lab"].to_pylist().count(None) == 1


def test_a_label_may_be_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    texts = [f"${i},{i % 10}00" for i in range(1, 41)]
    pd.DataFrame({"price": texts, "a": range(40)}).to_csv(path, index_label="id")
    label = {"role": "label", "written": {"units": ["$"], "thousands": ","}}
    declaration = declared(path, {"id": "id", "price": label, "*": "feature"}, "regression")
    made = validated_of(declaration, tmp_path / "out")
    assert max(pq.read_table(made.table.file.path)["price"].to_pylist()) == 40_000


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ({"written": {"decimal": ",", "thousands": ","}}, "both ','"),
        ({"written": {"units": ["5 kg"]}}, "cannot be part of a number, got '5 kg'"),
        ({"written": {"marks": [" "]}}, "cannot be part of a number"),
        ({"written": {"units": ["*"], "marks": ["*"]}}, "named twice"),
        ({"written": {}, "kind": "categorical"}, "numeric features, labels and weights"),
        ({"written": {}, "role": "group"}, "role 'group'"),
    ],
)
def test_an_impossible_spelling_is_refused(column: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        DataConfig(uri="t.csv", columns={"a": column})


def test_a_spelling_of_a_derived_column_and_of_spark_is_refused() -> None:
    with pytest.raises(ValidationError, match="'b' is derived"):
        DataConfig(uri="t.csv", derive={"b": "a"}, columns={"b": {"written": {}}})
    with pytest.raises(ValidationError, match="spark cannot do numbers in another spelling"):
        DataConfig(uri="t.parquet", engine="spark", columns={"i": "id", "b": {"written": {}}})
