"""Advice that contains a column's name works when it is followed, whatever the name is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from schemas.errors import BulkheadError
from schemas.load import declare
from training.data.sources.source import fingerprint
from training.data.table.validate import validate

NAMES = ("plain", "case.id", "at", "order", "two words", "it's", 'say "hi"', "a: b", "x # y")


def validated(folder: Path, frame: pd.DataFrame, **data: Any) -> Any:
    frame.to_parquet(folder / "x.parquet", index=False)
    columns = {"y": "label", "f": "numeric", **data.pop("columns")}
    section = {"uri": str(folder / "x.parquet"), "columns": columns, **data}
    declared = declare(
        {"name": "n", "data": section, "task": {"kind": "binary"}, "split": {"kind": "random"}}
    )
    return validate(fingerprint(declared.data), declared, folder / "out")


def refusal(*arguments: Any, **data: Any) -> str:
    with pytest.raises(BulkheadError) as refused:
        validated(*arguments, **data)
    return str(refused.value)


def frame(name: str, values: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({name: values, "f": [0.5, 1.5, 2.5, 4.0], "y": [0, 1, 0, 1]})


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_group_are_left_out_as_the_error_says(name: str, tmp_path: Path) -> None:
    table = frame(name, ["p", None, "q", "r"])
    advice = re.search(r"data\.(filter: .*)$", refusal(tmp_path, table, columns={name: "group"}))
    assert advice is not None
    assert (
        validated(tmp_path, table, columns={name: "group"}, **yaml.safe_load(advice[1])).table.rows
        == 3
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_date_becomes_a_feature_as_the_error_says(name: str, tmp_path: Path) -> None:
    table = frame(name, list(pd.date_range("2024-01-01", periods=4, freq="40D")))
    told = refusal(tmp_path, table, columns={name: "feature"})
    advice = re.search(r"data\.columns: (\{.*?\}), which gives", told)
    assert advice is not None, told
    made = validated(tmp_path, table, columns=yaml.safe_load(advice[1]))
    assert f"{name}.days" in made.spec.features


@pytest.mark.parametrize("name", ["at", "order", "case.id", "two words"])
def test_a_name_that_sql_cannot_read_gets_its_quotes(name: str, tmp_path: Path) -> None:
    table = frame(name, [1, 2, 3, 4])
    told = refusal(tmp_path, table, columns={name: "numeric"}, filter=f"{name} > 1")
    advice = re.search(r"need double quotes: (filter: .*)$", told)
    assert advice is not None, told
    assert (
        validated(
            tmp_path, table, columns={name: "numeric"}, **yaml.safe_load(advice[1])
        ).table.rows
        == 3
    )


def test_a_written_index_is_no_reason_to_drop_the_header(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    for head, words in (
        (",a,y", "it may be a written index"),
        ("a,,y", "name it"),
        ("1,,3", r"set data\.csv\.header: false"),
    ):
        file.write_text(f"{head}\n0,1,0\n1,2,1\n")
        columns = {"y": "label", "*": "feature"}
        data = {"uri": str(file), "columns": columns}
        declared = declare(
            {"name": "n", "data": data, "task": {"kind": "binary"}, "split": {"kind": "random"}}
        )
        with pytest.raises(BulkheadError, match=words):
            validate(fingerprint(declared.data), declared, tmp_path / "out")
