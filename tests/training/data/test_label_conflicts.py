"""D6: copies with different labels are named; coarse features are separated from copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.records import CheckResult
from tests.training.data.chain import declared, split_of, write_table
from training.data.leakage import check_leakage

COLUMNS = {"id": "id", "y": "label", "x": "numeric", "c": "categorical"}


def check(
    folder: Path, table: dict[str, list[Any]], task: str = "binary", **data: Any
) -> CheckResult:
    declaration = declared(
        write_table(folder / "t.parquet", table),
        COLUMNS,
        task,
        "group" if data else "random",
        data,
        checks={"max_duplicate_share": 1.0},
    )
    validated, sides = split_of(declaration, folder / "out")
    return next(
        r
        for r in check_leakage(sides, validated, declaration).results
        if r.name == "label_conflicts"
    )


def table_of(num_rows: int = 200) -> dict[str, list[Any]]:
    return {
        "id": [f"r{i}" for i in range(num_rows)],
        "x": [float(i) for i in range(num_rows)],
        "c": ["a"] * num_rows,
        "y": [i % 2 for i in range(num_rows)],
    }


@pytest.mark.req("D6")
def test_equal_rows_with_different_labels_are_shown(tmp_path: Path) -> None:
    table = table_of()
    table["x"][10], table["x"][20] = 11.0, 22.0  # r10 (0) copies r11 (1); r20 and r22 agree
    found = check(tmp_path, table)
    assert (
        found.verdict == "warn"
        and "2 rows equal another one in every feature and have another label" in found.summary
    )
    assert (
        {(e["id"], e["label"]) for e in found.evidence} == {("r10", "0"), ("r11", "1")}
        and found.figures["repeats"] == 2
        and "correct the labels" in found.remedy
    )


@pytest.mark.req("D6")
def test_rows_without_a_copy_or_with_an_agreeing_one_pass(tmp_path: Path) -> None:
    table = table_of()
    table["x"][20] = 22.0
    assert check(tmp_path, table).verdict == "pass"


@pytest.mark.req("D6")
def test_coarse_features_are_told_and_no_warning(tmp_path: Path) -> None:
    table = table_of()
    table["x"] = [float(i % 90) for i in range(200)]
    table["y"] = [int(i % 7 < 3) for i in range(200)]
    found = check(tmp_path, table)
    assert (
        found.verdict == "pass"
        and found.figures["rows"]
        and "so often that features are coarse" in found.summary
    )


@pytest.mark.req("D6")
def test_numbers_contradict_each_other_where_they_are_far_apart(tmp_path: Path) -> None:
    table = table_of() | {"y": [float(i) for i in range(200)]}
    table["x"][10] = 11.0
    assert check(tmp_path / "close", table, "regression").verdict == "pass"
    table["x"][150] = 11.0
    assert check(tmp_path / "far", table, "regression").verdict == "warn"


@pytest.mark.req("D6")
def test_near_copies_with_different_labels_are_shown(tmp_path: Path) -> None:
    table = table_of()
    table["x"][10] = 11.000001
    found = check(tmp_path, table, group_by={"near_duplicates": "features"})
    assert (
        found.verdict == "warn"
        and "2 of 2 near-duplicates (data.group_by) have another label than their copy"
        in found.summary
    )
    assert {e["id"] for e in found.evidence} == {"r10", "r11"}
