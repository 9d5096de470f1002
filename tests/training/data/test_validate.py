"""D2, S2: what a table must keep, each broken rule by column, rule, number of rows and
first ids.
"""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ConfigError, DataError, SchemaError
from schemas.tables import arrow_schema
from tests.training.data.chain import declared, read, validated_of, write_table, write_text
from training.data.sources.source import fingerprint
from training.data.table.validate import validate

GOOD: dict[str, Any] = {
    "id": [1, 2, 3, 4],
    "who": ["p", "p", "q", "r"],
    "at": [dt.datetime(2024, 1, d) for d in (1, 2, 3, 4)],
    "age": [30, 41, None, 25],
    "dose": [0.5, float("nan"), -0.0, 2.0],
    "sex": ["f", "m", None, "f"],
    "smoker": [True, False, None, True],
    "w": [1.0, 0.0, 2.5, 1.0],
    "y": [0, 1, 0, 1],
}
ROLES: dict[str, Any] = {
    "id": "id",
    "who": "group",
    "at": "time",
    "w": "weight",
    "y": "label",
    "*": "feature",
}


@pytest.mark.req("D2")
def test_the_typed_table_is_as_the_spec_says(tmp_path: Path) -> None:
    made = validated_of(
        declared(write_table(tmp_path / "t.parquet", GOOD), ROLES), tmp_path / "out"
    )
    spec, table = made.spec, pq.read_table(made.table.file.path)
    assert table.schema.remove_metadata() == arrow_schema(spec)
    assert (
        spec.id,
        spec.group,
        spec.time,
        spec.time_is_timestamp,
        spec.weight,
        spec.label,
        spec.label_type,
    ) == (
        ("id",),
        ("who",),
        "at",
        True,
        "w",
        "y",
        "int",
    )
    assert (spec.numeric, spec.categorical, spec.integer, spec.boolean) == (
        ("age", "dose"),
        ("sex", "smoker"),
        ("age",),
        ("smoker",),
    )
    found = {r["__id"]: r for r in table.to_pylist()}
    assert found["3"] == {
        "__id": "3",
        "__key": "3",
        "__group": "q",
        "__time": dt.datetime(2024, 1, 3, tzinfo=dt.UTC).timestamp(),
        "age": None,
        "dose": 0.0,
        "sex": None,
        "smoker": None,
        "w": 2.5,
        "y": 0,
    }
    assert (
        str(found["3"]["dose"]) == "0.0"
        and found["2"]["dose"] is None
        and found["1"]["smoker"] == "true"
    )


@pytest.mark.req("D4")
@pytest.mark.parametrize("with_id", [True, False])
def test_neither_order_nor_files_nor_format_of_the_source_show_in_the_table(
    tmp_path: Path, with_id: bool
) -> None:
    rows = 60
    draw = random.Random(1)
    table = pa.table(
        {
            "id": list(range(rows)),
            "x": [draw.choice([1.5, 2.25, None]) for _ in range(rows)],
            "c": [draw.choice(["a", "b", "c d"]) for _ in range(rows)],
            "y": [i % 2 for i in range(rows)],
        }
    )
    order = np.random.default_rng(0).permutation(rows)
    columns = {"id": "id" if with_id else "ignore", "y": "label", "*": "feature"}
    sources = {
        "one": [table],
        "turned": [table.take(order).select(["y", "c", "x", "id"])],
        "parts": [table.take(order).slice(i * 20, 20) for i in range(3)],
    }
    shas = set()
    for name, parts in sources.items():
        for i, part in enumerate(parts):
            write_table(tmp_path / name / f"{i}.parquet", {c: part[c] for c in part.column_names})
        made = validated_of(declared(tmp_path / name, columns), tmp_path / "out" / name)
        shas.add(made.table.file.sha256)
    lines = ["id,x,c,y"] + [
        ",".join("" if v is None else str(v) for v in r.values()) for r in table.to_pylist()
    ]
    write_text(tmp_path / "text" / "t.csv", "\n".join(lines) + "\n")
    shas.add(
        validated_of(
            declared(tmp_path / "text", columns), tmp_path / "out" / "text"
        ).table.file.sha256
    )
    assert len(shas) == 1


@pytest.mark.req("D4")
def test_without_an_id_equal_features_share_a_key_and_equal_rows_are_numbered(
    tmp_path: Path,
) -> None:
    path = write_table(
        tmp_path / "t.parquet", {"x": [1, 1, 1, 2], "c": ["a", "a", "a", "a"], "y": [0, 0, 1, 1]}
    )
    found = read(
        validated_of(declared(path, {"y": "label", "*": "feature"}), tmp_path / "out").table
    )
    assert len(set(found["__id"])) == 4 and len(set(found["__key"])) == 2
    keys = dict(zip(found["__id"], found["__key"], strict=True))
    first, second = (
        sorted(i for i in keys if found["x"][found["__id"].index(i)] == x) for x in (1.0, 2.0)
    )
    assert (
        len(first) == 3
        and len({keys[i] for i in first}) == 1
        and {i[-2:] for i in first} == {"-1", "-2"}
        and second[0].endswith("-1")
    )


PARTS = st.sampled_from(["a", "b", "a|b", "|", "%", "%7C", "", "a%"])


@pytest.mark.req("D1")
@settings(max_examples=15, deadline=None)
@given(st.sets(st.tuples(PARTS, PARTS), min_size=2, max_size=30))
def test_keys_of_several_columns_never_read_alike(
    tmp_path_factory: pytest.TempPathFactory, pairs: set[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    listed = sorted(pairs)
    path = write_table(
        folder / "t.parquet",
        {
            "a": [a for a, _ in listed],
            "b": [b for _, b in listed],
            "x": range(len(listed)),
            "y": [i % 2 for i in range(len(listed))],
        },
    )
    found = read(
        validated_of(
            declared(path, {"a": "id", "b": "id", "x": "numeric", "y": "label"}), folder
        ).table
    )
    assert len(set(found["__id"])) == len(listed)


@pytest.mark.req("D4")
def test_keys_are_canonical_text(tmp_path: Path) -> None:
    composed, decomposed = "é", "e\u0301"
    one = write_table(
        tmp_path / "1.parquet",
        {"id": pa.array([1, 2], pa.int32()), "g": [composed, "x"], "x": [1, 2], "y": [0, 1]},
    )
    two = write_table(
        tmp_path / "2.parquet",
        {"id": pa.array(["1", "2"]), "g": [decomposed, "x"], "x": [1.0, 2.0], "y": [0, 1]},
    )
    tables = [
        read(
            validated_of(
                declared(p, {"id": "id", "g": "group", "*": "feature", "y": "label"}),
                tmp_path / p.stem,
            ).table
        )
        for p in (one, two)
    ]
    assert tables[0] == tables[1] and set(tables[0]["__group"]) == {composed, "x"}


@pytest.mark.req("D2")
@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("categorical", [1.0, 2.5, None, 1e20], ["1", "2.5", None, "1e+20"]),
        ("categorical", [True, False, None, True], ["true", "false", None, "true"]),
        ("categorical", [7, 8, None, 7], ["7", "8", None, "7"]),
        ("numeric", [True, False, None, True], [1.0, 0.0, None, 1.0]),
        ("numeric", ["1", "2.5", None, " 3 "], [1.0, 2.5, None, 3.0]),
    ],
    ids=lambda v: str(v)[:20],
)
def test_a_declared_kind_decides_the_form(
    tmp_path: Path, kind: str, values: list[Any], expected: list[Any]
) -> None:
    path = write_table(tmp_path / "t.parquet", {"id": [1, 2, 3, 4], "x": values, "y": [0, 1, 0, 1]})
    found = read(
        validated_of(declared(path, {"id": "id", "x": kind, "y": "label"}), tmp_path / "out").table
    )
    assert [found["x"][found["__id"].index(str(i))] for i in (1, 2, 3, 4)] == expected


@pytest.mark.req("D1")
@pytest.mark.parametrize("kind", ["uint8", "float64", "nested", "int64"])
def test_tensors_become_flat_lists_of_one_length(tmp_path: Path, kind: str) -> None:
    values = np.arange(24).reshape(4, 2, 3)
    flat = [v.ravel().tolist() for v in values]
    arrays = {
        "uint8": pa.array(flat, pa.list_(pa.uint8(), 6)),
        "float64": pa.array(flat, pa.list_(pa.float64())),
        "nested": pa.array(values.tolist(), pa.list_(pa.list_(pa.float32()))),
        "int64": pa.array(flat, pa.list_(pa.int64())),
    }
    path = write_table(
        tmp_path / "t.parquet", {"id": [0, 1, 2, 3], "image": arrays[kind], "y": [0, 1, 0, 1]}
    )
    made = validated_of(
        declared(path, {"id": "id", "y": "label", "image": {"kind": "tensor", "shape": [2, 3]}}),
        tmp_path / "out",
    )
    assert made.spec.tensor == {"image": (2, 3)} and made.spec.tensor_dtype == {
        "image": "uint8" if kind == "uint8" else "float32"
    }
    column = pq.read_table(made.table.file.path).column("image")
    assert column.type == pa.list_(pa.uint8() if kind == "uint8" else pa.float32(), 6)
    found = read(made.table)
    assert dict(zip(found["__id"], found["image"], strict=True)) == {
        str(i): v for i, v in enumerate(flat)
    }


@pytest.mark.req("D2")
def test_filtered_and_unlabelled_rows_are_counted(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "t.parquet",
        {"id": [1, 2, 3, 4, 5], "x": [1, 2, 3, None, 5], "y": [0.0, 1.0, None, 1.0, float("nan")]},
    )
    declaration = declared(path, data={"filter": "x > 1", "null_labels": "drop"}, task="regression")
    made = validated_of(declaration, tmp_path / "out")
    # a null condition is not true
    assert (made.table.rows, made.filtered_rows, made.unlabelled_rows) == (1, 2, 2)


@pytest.mark.req("D1")
def test_a_derived_label_and_time(tmp_path: Path) -> None:
    text = "id,day,hour,outcome,x\n1,1/2/11,5,<30,1\n2,1/3/11,6,>30,2\n3,1/4/11,7,NO,3\n"
    derive = {"early": "outcome = '<30'", "at": "strptime(day, '%m/%d/%y') + to_hours(hour)"}
    columns = {"id": "id", "early": "label", "at": "time", "x": "numeric", "*": "ignore"}
    made = validated_of(
        declared(write_text(tmp_path / "t.csv", text), columns, data={"derive": derive}),
        tmp_path / "out",
    )
    found = {
        r["__id"]: (r["__time"], r["early"])
        for r in pq.read_table(made.table.file.path).to_pylist()
    }
    assert made.spec.label_type == "bool" and made.spec.ignored == ("day", "hour", "outcome")
    assert (
        found["1"] == (dt.datetime(2011, 1, 2, 5, tzinfo=dt.UTC).timestamp(), True)
        and found["3"][1] is False
    )


def changed(**columns: Any) -> dict[str, Any]:
    """The good table with some columns changed or added."""
    return {**GOOD, **columns}


def without(*names: str) -> dict[str, Any]:
    return {k: v for k, v in GOOD.items() if k not in names}


TASKS: dict[str, Any] = {}
BAD: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    # what, source columns, declared columns, declaration, message
    (
        "undeclared",
        GOOD,
        {"id": "id", "y": "label", "age": "numeric"},
        {},
        r"6 source columns match nothing in data\.columns: 'who', 'at'.*; add `'\*': feature`",
    ),
    (
        "missing",
        GOOD,
        {**ROLES, "ages": "numeric"},
        {},
        r"data\.columns\.ages: the source has no such column; did you mean 'age'\?",
    ),
    (
        "pattern",
        GOOD,
        {**ROLES, "lab_*": "numeric"},
        {},
        r"data\.columns\.lab_\*: the source has no such columns; the source has id, who",
    ),
    (
        "two labels",
        changed(y2=GOOD["y"]),
        {"id": "id", "y*": "label", "*": "feature"},
        {},
        r"expected one column with role label, got 2: y, y2",
    ),
    (
        "no feature",
        {"id": [1, 2], "y": [0, 1]},
        {"id": "id", "y": "label"},
        {},
        r"expected at least one feature, got none",
    ),
    (
        "reserved",
        changed(__key=[1, 2, 3, 4]),
        ROLES,
        {},
        r"column '__key': the preparation uses this name itself; rename it",
    ),
    (
        "float id",
        changed(id=[1.0, 2.0, 3.0, 4.0]),
        ROLES,
        {},
        (
            r"column 'id' \(role id\): expected text or whole numbers, got numbers.*cast\(id as"
            r" bigint\)"
        ),
    ),
    (
        "float group",
        changed(who=[1.0, 2.0, 3.0, 4.0]),
        ROLES,
        {},
        r"column 'who' \(role group\): expected text or whole numbers, got numbers",
    ),
    (
        "text time",
        changed(at=["a", "b", "c", "d"]),
        ROLES,
        {},
        (
            r"column 'at' \(role time\): expected dates, timestamps or numbers, got text; derive"
            r" one.*strptime"
        ),
    ),
    (
        "text weight",
        changed(w=["a", "b", "c", "d"]),
        ROLES,
        {},
        r"column 'w' \(role weight\): expected numbers, got text",
    ),
    (
        "date feature",
        changed(born=GOOD["at"]),
        ROLES,
        {},
        r"column 'born': got timestamps; declare data.columns: \{born: date\}, which gives",
    ),
    (
        "list feature",
        changed(v=[[1], [2], [3], [4]]),
        ROLES,
        {},
        r"column 'v': got lists; declare \{kind: tensor, shape",
    ),
    (
        "tensor of text",
        changed(v=GOOD["sex"]),
        {**ROLES, "v": {"kind": "tensor", "shape": [2]}},
        {},
        r"column 'v': a tensor feature needs lists of numbers, got text",
    ),
    (
        "tensor depth",
        changed(v=[[[1]]] * 4),
        {**ROLES, "v": {"kind": "tensor", "shape": [1, 1, 1]}},
        {},
        r"column 'v': shape \[1, 1, 1\] needs lists of numbers, flat or 3 deep",
    ),
    (
        "tensor shape",
        changed(v=[[1, 2], [1, 2], [1], [1, 2]]),
        {**ROLES, "v": {"kind": "tensor", "shape": [2]}},
        {},
        r"column 'v': expected lists of shape \[2\], but 1 row has not \(values 1\), first ids: 3",
    ),
    (
        "ragged tensor",
        changed(v=[[[1, 2], [3, 4]], [[1], [2, 3, 4]], [[1, 2], [3, 4]], [[1, 2], [3, 4]]]),
        {**ROLES, "v": {"kind": "tensor", "shape": [2, 2]}},
        {},
        r"column 'v': expected lists of shape \[2, 2\], but 1 row has not.*first ids: 2",
    ),
    (
        "null tensor",
        changed(v=[[1, 2], None, [1, 2], [1, 2]]),
        {**ROLES, "v": {"kind": "tensor", "shape": [2]}},
        {},
        r"column 'v': expected lists of shape \[2\], but 1 row has not, first ids: 2",
    ),
    (
        "infinite tensor",
        changed(v=[[1.0, 2.0], [1.0, float("inf")], [1.0, float("nan")], [1.0, 2.0]]),
        {**ROLES, "v": {"kind": "tensor", "shape": [2]}},
        {},
        r"column 'v': expected finite elements, but 2 rows have not, first ids: 2, 3",
    ),
    (
        "null element",
        changed(v=pa.array([[1, 2], [1, None], [1, 2], [1, 2]], pa.list_(pa.uint8()))),
        {**ROLES, "v": {"kind": "tensor", "shape": [2]}},
        {},
        r"column 'v': expected finite elements, but 1 row has not, first ids: 2",
    ),
    (
        "not numbers",
        changed(age=["30", "x", "41", "?"]),
        {**ROLES, "age": "numeric"},
        {},
        (
            r"column 'age': expected numbers \(kind numeric\), but 2 rows have not \(values '\?',"
            r" 'x'\), first ids: 2, 4; add such texts to data\.csv\.null_values"
        ),
    ),
    (
        "infinite",
        changed(dose=[1.0, float("inf"), float("-inf"), 2.0]),
        ROLES,
        {},
        (
            r"column 'dose': expected finite numbers, but 2 rows have not \(values -inf, inf\),"
            r" first ids: 2, 3; make them null"
        ),
    ),
    (
        "below",
        changed(age=[-1, 2, -3, 4]),
        {**ROLES, "age": {"kind": "numeric", "min": 0}},
        {},
        (
            r"column 'age': expected at least 0, but 2 rows have not \(values -3\.0, -1\.0\), first"
            r" ids: 1, 3; correct the rows"
        ),
    ),
    (
        "above",
        GOOD,
        {**ROLES, "age": {"max": 40}},
        {},
        r"column 'age': expected at most 40, but 1 row has not \(values 41\.0\), first ids: 2",
    ),
    (
        "not allowed",
        GOOD,
        {**ROLES, "sex": {"allowed": ["m"]}},
        {},
        r"column 'sex': expected one of 'm', but 2 rows have not \(values 'f'\), first ids: 1, 4",
    ),
    (
        "not allowed number",
        GOOD,
        {**ROLES, "age": {"allowed": [30, 41]}},
        {},
        (
            r"column 'age': expected one of 30\.0, 41\.0, but 1 row has not \(values 25\.0\), first"
            r" ids: 4"
        ),
    ),
    (
        "group not allowed",
        GOOD,
        {**ROLES, "who": {"role": "group", "allowed": ["p", "q"]}},
        {},
        r"column 'who': expected one of 'p', 'q', but 1 row has not \(values 'r'\), first ids: 4",
    ),
    (
        "null feature",
        GOOD,
        {**ROLES, "age": {"nullable": False}},
        {},
        (
            r"column 'age': expected no nulls, but 1 row has not, first ids: 3; fill them in the"
            r" source, or set nullable: true"
        ),
    ),
    (
        "null id",
        changed(id=[1, None, 3, 4]),
        ROLES,
        {},
        (
            r"column 'id': expected a value in each row \(role id\), but 1 row has not; leave such"
            r" rows out"
        ),
    ),
    (
        "null group",
        changed(who=["p", None, None, "q"]),
        ROLES,
        {},
        (
            r"column 'who': expected a value in each row \(role group\), but 2 rows have not, first"
            r" ids: 2, 3; .*data\.filter: who is not null"
        ),
    ),
    (
        "null time",
        changed(at=[1.0, float("nan"), 2.0, 3.0]),
        ROLES,
        {},
        r"column 'at': expected a value in each row \(role time\), but 1 row has not, first ids: 2",
    ),
    (
        "infinite time",
        GOOD,
        {**ROLES, "at": "ignore", "when": "time"},
        {
            "data": {
                "derive": {
                    "when": "case when id = 3 then cast('infinity' as timestamp) else \"at\" end"
                }
            }
        },
        r"column 'when': expected finite times, but 1 row has not, first ids: 3",
    ),
    (
        "derived NaN time",
        GOOD,
        {**ROLES, "at": "ignore", "when": "time"},
        {"data": {"derive": {"when": "case when id = 3 then cast('nan' as double) else 1.0 end"}}},
        (
            r"column 'when': expected a value in each row \(role time\), but 1 row has not, first"
            r" ids: 3"
        ),
    ),
    (
        "infinite label time",
        changed(at=[1.0, 2.0, 3.0, 4.0], known=[1.0, 2.0, float("inf"), 4.0]),
        {**ROLES, "known": "label_time"},
        {},
        (
            r"column 'known': expected finite numbers, but 1 row has not \(values inf\), first ids:"
            r" 3; make them null"
        ),
    ),
    (
        "infinite availability",
        changed(at=[1.0, 2.0, 3.0, 4.0], seen=[1.0, 2.0, float("inf"), 4.0]),
        {**ROLES, "seen": {"role": "available", "of": ["age"]}},
        {},
        r"column 'seen': expected finite numbers, but 1 row has not \(values inf\), first ids: 3",
    ),
    (
        "null weight",
        changed(w=[1.0, None, 2.0, 3.0]),
        ROLES,
        {},
        (
            r"column 'w': expected a value in each row \(role weight\), but 1 row has not, first"
            r" ids: 2"
        ),
    ),
    (
        "negative weight",
        changed(w=[1.0, -0.5, 2.0, 3.0]),
        ROLES,
        {},
        r"column 'w': expected at least 0, but 1 row has not \(values -0\.5\), first ids: 2",
    ),
    (
        "null split",
        changed(side=["train", None, "val", "test"]),
        {**ROLES, "side": "split"},
        {},
        r"column 'side': expected a value in each row \(role split\), but 1 row has not",
    ),
    (
        "null label",
        changed(y=[0, 1, None, 1]),
        ROLES,
        {},
        (
            r"column 'y': expected a label in each row, but 1 row has not, first ids: 3; fill them"
            r" in the source, or set data\.null_labels: drop"
        ),
    ),
    (
        "repeated id",
        changed(id=[7, 7, 7, 4]),
        ROLES,
        {},
        (
            r"column 'id': expected each value once \(a row id\), but 1 value is that of 3 rows"
            r" \(first: '7'\); remove the repeated rows"
        ),
    ),
    (
        "repeated value",
        GOOD,
        {**ROLES, "sex": {"unique": True}},
        {},
        (
            r"column 'sex': expected each value once \(unique\), but 1 value is that of 2 rows"
            r" \(first: 'f'\)"
        ),
    ),
    (
        "all null",
        changed(age=pa.nulls(4, pa.int64()), note=pa.nulls(4)),
        ROLES,
        {},
        r"2 features are null in every row: 'age', 'note'; set `name: ignore`",
    ),
    (
        "one class",
        changed(y=[1, 1, 1, 1]),
        ROLES,
        {},
        r"column 'y': expected at least two classes, got one: 1 \(4 rows\)",
    ),
    (
        "three classes",
        changed(y=["a", "b", "c", "a"]),
        ROLES,
        {},
        (
            r"column 'y': a binary label has two values, got 3: 'a' \(2 rows\), .*set task\.kind:"
            r" multiclass"
        ),
    ),
    (
        "positive",
        GOOD,
        ROLES,
        {"task": {"kind": "binary", "positive": "yes"}},
        r"task\.positive: expected one of the label's values 0 \(2 rows\), 1 \(2 rows\), got 'yes'",
    ),
    (
        "fractions",
        changed(y=[0.5, 1.5, 2.0, 0.5]),
        ROLES,
        {"task": "multiclass"},
        r"column 'y': a multiclass label has no fractions, got .*set task\.kind: regression",
    ),
    (
        "text label",
        changed(y=["1", "2", "NA", "3"]),
        ROLES,
        {"task": "regression"},
        (
            r"column 'y' \(role label\): a regression label must be numeric, got text; declare its"
            r" null texts"
        ),
    ),
    (
        "infinite label",
        changed(y=[1.0, 2.0, float("inf"), 3.0]),
        ROLES,
        {"task": "regression"},
        r"column 'y': expected finite numbers, but 1 row has not",
    ),
    (
        "no rows",
        GOOD,
        ROLES,
        {"data": {"filter": "age > 100"}},
        r"expected rows, got none: data\.filter left out 4, null labels 0; check data\.filter",
    ),
    (
        "min of text",
        GOOD,
        {**ROLES, "sex": {"min": 1}},
        {},
        r"column 'sex' \(role feature\): min and max are for numbers, got text",
    ),
    (
        "allowed of number",
        GOOD,
        {**ROLES, "age": {"allowed": ["old"]}},
        {},
        r"column 'age' \(role feature\): allowed must hold numbers, got 'old'",
    ),
    (
        "nullable group",
        GOOD,
        {**ROLES, "who": {"role": "group", "nullable": True}},
        {},
        r"column 'who' \(role group\): nulls cannot be allowed for this role",
    ),
    (
        "failing expression",
        GOOD,
        ROLES,
        {"data": {"derive": {"z": "cast(sex as integer)"}}},
        r"data\.derive\.z: 'cast\(sex as integer\)' fails on a row: .*try_cast",
    ),
]


@pytest.mark.req("D2")
@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("table", "columns", "sections", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_a_table_that_breaks_a_rule_is_refused(
    tmp_path: Path,
    table: dict[str, Any],
    columns: dict[str, Any],
    sections: dict[str, Any],
    message: str,
) -> None:
    path = write_table(tmp_path / "t.parquet", table)
    with pytest.raises(DataError, match=message):
        validated_of(declared(path, columns, **sections), tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.req("D2")
def test_all_findings_stand_in_one_message(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "t.parquet", changed(age=[-1, 2, 3, 4], dose=[float("inf"), 1.0, 1.0, 1.0])
    )
    with pytest.raises(SchemaError, match=r"(?s)column 'age'.*\n  column 'dose'"):
        validated_of(declared(path, {**ROLES, "age": {"min": 0}}), tmp_path / "out")


@pytest.mark.req("S2")
def test_numbers_spoilt_by_a_null_text_are_not_taken_for_categories(tmp_path: Path) -> None:
    lines = ["id,pm,code,y"] + [
        f"{i},{'NA' if i == 7 else i / 2},{'3+' if i % 4 == 3 else i % 4},{i % 2}"
        for i in range(60)
    ]
    path = write_text(tmp_path / "t.csv", "\n".join(lines) + "\n")
    with pytest.raises(
        SchemaError,
        match=(
            r"column 'pm': 59 of 60 values are numbers, the others are 'NA'; add them to"
            r" data\.csv\.null_values"
        ),
    ):
        validated_of(declared(path), tmp_path / "out")
    spec = validated_of(
        declared(path, data={"csv": {"null_values": ["NA"]}}), tmp_path / "out"
    ).spec
    assert spec.numeric == ("pm",) and spec.categorical == (
        "code",
    )  # four codes, one of them with a sign, are categories


@pytest.mark.req("S2")
def test_an_all_null_feature_may_be_kept_for_fitting_to_drop(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", changed(age=pa.nulls(4, pa.int64())))
    made = validated_of(
        declared(path, ROLES, checks={"constant_features": "drop"}), tmp_path / "out"
    )
    assert "age" in made.spec.numeric and set(read(made.table)["age"]) == {None}


@pytest.mark.req("S1")
def test_an_expression_cannot_read_another_file(tmp_path: Path) -> None:
    write_text(tmp_path / "secret.txt", "secret")
    path = write_table(tmp_path / "t.parquet", GOOD)
    secret = str(tmp_path / "secret.txt")
    with pytest.raises(ConfigError, match=r"data\.derive\.z: .*'read_text'"):
        validated_of(
            declared(path, ROLES, data={"derive": {"z": f"read_text('{secret}')"}}),
            tmp_path / "out",
        )


@pytest.mark.req("D2")
def test_the_source_must_be_the_one_that_was_fingerprinted(tmp_path: Path) -> None:
    declaration = declared(write_table(tmp_path / "t.parquet", GOOD), ROLES)
    source = fingerprint(declaration.data)
    write_table(tmp_path / "t.parquet", changed(age=[1, 2, 3, 4]))
    with pytest.raises(DataError, match="was changed or removed since; run again"):
        validate(source, declaration, tmp_path / "out")
