"""D9: what needs no Java of the Spark engine: SQL in its words, what it refuses, and what is said
where it cannot be had.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from schemas.config import SparkConfig
from schemas.errors import ConfigError
from tests.training.data.chain import declared, write_table
from training.data.arrays.shards import write_group
from training.data.engine.engine import ident, literal
from training.data.engine.spark_engine import connect_spark, spark_sql
from training.data.sources.source import fingerprint
from training.data.table.validate import validate
from training.data.table.violations import TextNumbers, number_like


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (f"select {ident('a b')} from t", "select `a b` from t"),
        (f"select {ident('tick`')}", "select `tick```"),
        (f"select {ident('say ' + chr(34))}", 'select `say "`'),
        (f"select {literal(chr(39) + 'varchar' + chr(39))}", r"select '\'varchar\''"),
        (f"select {literal('back' + chr(92) + 'slash')}", r"select 'back\\slash'"),
        ("cast(x as varchar)", "cast(x as string)"),
        ("select d.* exclude (position)", "select d.* except (position)"),
        ("favg(x)", "avg(x)"),
        (
            "string_agg(concat(a, ':'), ',' order by a) as p",
            "string_agg(concat(a, ':'), ',') within group (order by a) as p",
        ),
        (
            "from read_parquet('/a/it''s.parquet', hive_partitioning = false)",
            "from /a/it's.parquet",
        ),
        ("from read_parquet(['/a', '/b'], hive_partitioning = false)", "from /a, /b"),
    ],
)
def test_our_sql_in_the_words_of_spark(ours: str, theirs: str) -> None:
    assert spark_sql(ours) == theirs


COLUMNS = {"id": "id", "y": "label", "x": "numeric"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"columns": {"y": "label", "x": "numeric"}},
            r"spark cannot do a table without a column of role id",
        ),
        (
            {"columns": {**COLUMNS, "x": {"kind": "tensor", "shape": [2]}}},
            r"spark cannot do column 'x' of kind tensor",
        ),
        (
            {"columns": {**COLUMNS, "x": "text"}, "task": "causal_lm"},
            r"spark cannot do column 'x' of kind text",
        ),
        (
            {"data": {"group_by": {"duplicates": "features"}}, "split": "group"},
            r"spark cannot do data\.group_by",
        ),
        ({"data": {"format": "csv"}}, r"spark cannot do data\.format: csv"),
        ({"cv": {"folds": 3}}, r"spark cannot do cv\.folds: 3"),
        (
            {"data": {"spark": {"remote": "sc://host:15002/;token=hush"}}},
            r"remote holds a secret.*SPARK_CONNECT_AUTHENTICATE_TOKEN",
        ),
        ({"data": {"spark": {"remote": "spark://host"}}}, r"expected sc://host:port, got spark://"),
        ({"data": {"spark": {"remote": "sc://host", "master": "local[2]"}}}, r"give one of them"),
        (
            {"data": {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "hush"}}}},
            r"spark\.hadoop\.fs\.s3a\.secret\.key would appear in logs",
        ),
    ],
)
def test_what_spark_cannot_do_is_refused_by_the_declaration(
    changes: dict[str, Any], message: str
) -> None:
    data = {"engine": "spark", **changes.pop("data", {})}
    with pytest.raises(ConfigError, match=message) as caught:
        declared("t.parquet", **{"columns": COLUMNS, **changes}, data=data)
    assert "hush" not in str(caught.value).replace("input_value", "")


def test_settings_of_spark_without_spark_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.spark is for data\.engine: spark"):
        declared("t.parquet", COLUMNS, data={"spark": {"master": "local[2]"}})
    assert (
        declared(
            "t.parquet", COLUMNS, data={"engine": "spark", "spark": {"master": "local[2]"}}
        ).data.spark.master
        == "local[2]"
    )


def test_a_source_of_another_format_is_refused_before_spark_is_started(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,y,x\n1,0,2\n2,1,3\n")
    declaration = declared(tmp_path / "t.csv", COLUMNS, data={"engine": "spark"})
    with pytest.raises(
        ConfigError, match=r"spark reads Parquet only, got csv; write the source as Parquet"
    ):
        validate(fingerprint(declaration.data), declaration, tmp_path / "out")


def test_a_machine_without_pyspark_or_java_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "pyspark" else found(name, *a)
    )
    with pytest.raises(
        ConfigError,
        match=r"needs the package pyspark; install it with: pip install 'bulkhead\[spark\]'",
    ):
        connect_spark(SparkConfig())
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        ConfigError,
        match=r"needs Java 17 or newer, and none was found; install it, or set data\.spark\.remote",
    ):
        connect_spark(SparkConfig())


def test_markers_among_numbers_are_found_over_parts_of_the_rows() -> None:
    from training.data.table.spark_validate import _merged_numbers

    parts = [
        TextNumbers(30, 30, [float(i) for i in range(15)], []),
        TextNumbers(30, 28, [float(i) for i in range(10, 25)], ["?"]),
    ]
    assert list(number_like({"x": _merged_numbers(parts)})) == [
        "column 'x': 58 of 60 values are numbers, the others are '?'; add them to"
        " data.csv.null_values, or declare the column numeric or categorical"
    ]
    assert not list(number_like({"x": _merged_numbers(parts[:1])}))


@pytest.mark.parametrize("rows", [3_000])
def test_row_groups_written_apart_give_the_arrays_of_one_process(tmp_path: Path, rows: int) -> None:
    import numpy as np

    from tests.training.data.sides import declaration_of, numbers, spec_of, split_of, validated
    from training.data.arrays.shards import _empty_arrays, _layout, load_arrays, materialise
    from training.data.fit.normalize import fit

    draw = np.random.default_rng(0)
    columns = {
        "x": numbers(draw.normal(size=rows)),
        "c": [f"c{i % 7}" for i in range(rows)],
        "y": [i % 2 for i in range(rows)],
    }
    split = split_of(tmp_path, columns, columns, columns, row_group=700)
    spec = spec_of(numeric=("x",), categorical=("c",))
    statistics = fit(split.train, spec, declaration_of())
    whole = materialise(
        split, validated(split, spec), statistics, declaration_of(), tmp_path / "whole"
    )
    folder = tmp_path / "apart"
    folder.mkdir()
    _empty_arrays(folder, rows, _layout(spec, statistics))
    for number in (4, 0, 3, 1, 2):
        assert not write_group(folder, split.train, "train", spec, statistics, number, 700 * number)
    for name, array in load_arrays(whole.train).items():
        assert (folder / f"{name}.npy").read_bytes() == whole.train.arrays[
            name
        ].file.read_bytes() and len(array) == rows


def test_a_row_that_cannot_be_written_is_told_by_its_side(tmp_path: Path) -> None:
    from tests.training.data.sides import declaration_of, numbers, spec_of, split_of
    from training.data.arrays.shards import _empty_arrays, _layout
    from training.data.fit.normalize import fit

    good = {"x": numbers([0, 1, 2]), "y": [0, 1, 0]}
    split = split_of(tmp_path, good, {**good, "y": [0, 1, 5]}, good)
    statistics = fit(split.train, spec_of(numeric=("x",)), declaration_of())
    folder = tmp_path / "apart"
    folder.mkdir()
    _empty_arrays(folder, 3, _layout(spec_of(numeric=("x",)), statistics))
    assert "val side: " in write_group(
        folder, split.val, "val", spec_of(numeric=("x",)), statistics, 0, 0
    )


def test_the_typed_parts_are_those_of_one_process(tmp_path: Path) -> None:
    """A row group at a time gives the rows that all at once give: an executor's work, here in this
    process.
    """
    import pyarrow.parquet as pq

    from training.data.table.spark_validate import _plan, type_group

    path = write_table(
        tmp_path / "t.parquet",
        {"id": list(range(90)), "y": [i % 2 for i in range(90)], "x": [0.1 * i for i in range(90)]},
    )
    pq.write_table(pq.read_table(path), path, row_group_size=40)
    declaration = declared(path, COLUMNS, data={"filter": "x > 1"})
    source = fingerprint(declaration.data)
    told = [type_group(_plan(source, declaration, tmp_path), number) for number in range(3)]
    assert [t["total"] for t in told] == [40, 40, 10] and [t["typed"] for t in told] == [29, 40, 10]
    typed = [
        row
        for number in range(3)
        for row in pq.read_table(tmp_path / f"typed-{number:06d}.parquet").to_pylist()
    ]
    whole = pq.read_table(
        validate(source, declaration, tmp_path / "out").table.file.path
    ).to_pylist()
    assert {r["__id"]: r["x"] for r in typed} == {r["__id"]: r["x"] for r in whole}
