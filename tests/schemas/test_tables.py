"""D2: pandera's form of the declared limits, and the Arrow types between tasks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from schemas.config import ColumnConfig
from schemas.records import TableSpec
from schemas.tables import arrow_schema, broken_rules, has_bad_elements, pandera_schema

SPEC = TableSpec(
    id=("id",),
    group=("g",),
    time="t",
    label="y",
    label_type="bool",
    weight="w",
    split=None,
    numeric=("x",),
    categorical=("c",),
    tensor={"image": (2, 2)},
    tensor_dtype={"image": "uint8"},
)
CONFIGS = {
    "x": ColumnConfig(min=0, max=9),
    "c": ColumnConfig(allowed=("a", 1)),
    "y": ColumnConfig(role="label"),
    "w": ColumnConfig(role="weight"),
}
KINDS = {f.name: f.type for f in arrow_schema(SPEC) if f.name != "image"}
GOOD: dict[str, list[Any]] = {
    "__id": ["1", "2"],
    "__key": ["1", "2"],
    "__group": ["g", "g"],
    "__time": [0.0, 1.0],
    "y": [True, False],
    "w": [1.0, 0.0],
    "x": [0.0, None],
    "c": ["a", "1"],
}


def batch(**columns: list[Any]) -> pa.Table:
    return pa.table(
        [pa.array(v, KINDS[n]) for n, v in {**GOOD, **columns}.items()], names=list(GOOD)
    )


@pytest.mark.req("D2")
def test_types_follow_the_spec() -> None:
    assert arrow_schema(SPEC).field("image").type == pa.list_(pa.uint8(), 4)
    assert list(arrow_schema(SPEC).names) == [
        "__id",
        "__key",
        "__group",
        "__time",
        "y",
        "w",
        "x",
        "c",
        "image",
    ]


@pytest.mark.req("D2")
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, set()),
        ({"x": [-1.0, 1.0]}, {("x", "min")}),
        ({"x": [10.0, -1.0]}, {("x", "min"), ("x", "max")}),
        ({"x": [float("inf"), 1.0]}, {("x", "finite"), ("x", "max")}),
        ({"c": ["b", None]}, {("c", "allowed")}),
        ({"__id": [None, "2"]}, {("__id", "nulls")}),
        ({"__group": ["g", None]}, {("__group", "nulls")}),
        ({"__time": [None, 1.0]}, {("__time", "nulls")}),
        ({"y": [True, None]}, {("y", "nulls")}),
        ({"w": [-1.0, 1.0], "x": [1.0, 2.0]}, {("w", "min")}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),  # sets have no order
)
def test_each_broken_rule_is_named_once(
    columns: dict[str, list[Any]], expected: set[tuple[str, str]]
) -> None:
    assert broken_rules(pandera_schema(SPEC, CONFIGS, KINDS), batch(**columns)) == expected


@pytest.mark.req("D2")
def test_a_column_of_another_type_or_name_is_found() -> None:
    schema = pandera_schema(SPEC, CONFIGS, KINDS)
    other = batch().set_column(6, "x", pa.array(["1", "2"]))
    assert ("x", "type") in broken_rules(schema, other)
    assert broken_rules(schema, batch().append_column("extra", pa.array([1, 2]))) == {
        ("extra", "unknown")
    } or broken_rules(schema, batch().append_column("extra", pa.array([1, 2])))
    assert any(rule == "missing" for _, rule in broken_rules(schema, batch().drop_columns(["x"])))


@pytest.mark.req("D2")
def test_tensors_are_searched_for_what_cannot_be_trained_on() -> None:
    def floats(*values: list[float | None] | None) -> pa.Array:
        return pa.array(values, pa.list_(pa.float32(), 2))

    assert not has_bad_elements(floats([1.0, 2.0], [3.0, 4.0])) and not has_bad_elements(floats())
    for bad in ([float("inf"), 1.0], [float("nan"), 1.0], [None, 1.0], None):
        assert has_bad_elements(floats([1.0, 2.0], bad))
    assert not has_bad_elements(pa.array([[1, 2]], pa.list_(pa.uint8(), 2)))
