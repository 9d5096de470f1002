"""D1, D3, D5, D6: real public tables go from source to checked sides, and their known traps are
found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.config import Declaration
from schemas.errors import LeakageError, SchemaError
from schemas.records import SplitTables, ValidatedTable
from tests.training.data.chain import declared, split_of, validated_of
from training.data.leakage import check_leakage, check_overlap, require_passed


def checked(declaration: Declaration, out: Path) -> tuple[ValidatedTable, SplitTables]:
    validated, sides = split_of(declaration, out)
    require_passed(check_overlap(sides, validated, declaration))
    require_passed(check_leakage(sides, validated, declaration))
    return validated, sides


@pytest.mark.long
@pytest.mark.req("D3")
def test_hospital_visits_are_split_by_patient(real_data: Path, tmp_path: Path) -> None:
    columns = {
        "encounter_id": "id",
        "patient_nbr": "group",
        "early": "label",
        "readmitted": "ignore",
        "diag_*": "categorical",
        "*_id": "categorical",
        "*": "feature",
    }
    data = {"csv": {"null_values": ["", "?"]}, "derive": {"early": "readmitted = '<30'"}}
    validated, sides = checked(
        declared(real_data / "diabetes130.csv.gz", columns, split="group", data=data), tmp_path
    )
    assert (
        validated.table.rows == 101_766
        and sum(s["groups"] for s in sides.summary.values()) == 71_518
    )
    assert sum(s["label"]["counts"]["true"] for s in sides.summary.values()) == 11_357


@pytest.mark.long
@pytest.mark.req("D3")
def test_six_stations_are_split_by_place_and_time(real_data: Path, tmp_path: Path) -> None:
    columns = {
        "station": "group",
        "No": "id",
        "place": "id",
        "at": "time",
        "PM2.5": "label",
        "*": "feature",
    }
    data = {
        "csv": {"null_values": ["NA"]},
        "null_labels": "drop",
        "derive": {"at": "make_timestamp(year, month, day, hour, 0, 0.0)", "place": "station"},
    }
    split = {
        "kind": "group_time",
        "embargo": "7d",
        "pin": {"Dongsi": "val", "Tiantan": "test", "Wanliu": "train"},
    }
    validated, sides = checked(
        declared(str(real_data / "beijing_air_*.csv.gz"), columns, "regression", split, data),
        tmp_path,
    )
    assert (
        validated.table.rows + validated.unlabelled_rows == 6 * 35_064
        and validated.spec.categorical == ("wd",)
    )
    assert (
        sides.summary["train"]["time_max"]
        < sides.summary["val"]["time_min"]
        < sides.summary["test"]["time_min"]
    )


@pytest.mark.req("S2")
def test_a_forgotten_null_text_is_found(real_data: Path, tmp_path: Path) -> None:
    columns = {"No": "id", "wd": "categorical", "TEMP": "label", "*": "feature"}
    with pytest.raises(
        SchemaError,
        match=(
            r"column 'PM2\.5': 34139 of 35064 values are numbers, the others are 'NA'; add them to"
            r" data\.csv\.null_values"
        ),
    ):
        validated_of(
            declared(
                real_data / "beijing_air_aotizhongxin.csv.gz",
                {**columns, "TEMP": "ignore", "PRES": "ignore", "hour": "label"},
                "regression",
            ),
            tmp_path,
        )


@pytest.mark.req("D1")
def test_handwritten_digits_are_tensors_split_by_writer(real_data: Path, tmp_path: Path) -> None:
    columns = {
        "image_id": "id",
        "writer": "group",
        "digit": "label",
        "image": {"kind": "tensor", "shape": [28, 28]},
    }
    validated, sides = checked(
        declared(real_data / "mnist10k_writers.parquet", columns, "multiclass", "group"), tmp_path
    )
    assert validated.spec.tensor == {"image": (28, 28)} and validated.spec.tensor_dtype == {
        "image": "uint8"
    }
    assert sum(s["groups"] for s in sides.summary.values()) == 297


@pytest.mark.long
@pytest.mark.req("D3")
def test_engines_keep_their_official_test_side(real_data: Path, tmp_path: Path) -> None:
    columns = {
        "unit": "group",
        "cycle": "numeric",
        "split": "split",
        "rul": "label",
        "*": "feature",
    }
    _, sides = checked(
        declared(
            real_data / "cmapss_fd001.parquet",
            columns,
            "regression",
            {"kind": "predefined", "carve_val": 0.2},
        ),
        tmp_path,
    )
    assert (
        sides.test.rows == 13_096
        and sides.summary["test"]["groups"] == 100
        and sides.summary["train"]["groups"] + sides.summary["val"]["groups"] == 100
    )


@pytest.mark.long
@pytest.mark.req("D2")
def test_an_id_that_is_none_is_refused(real_data: Path, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"UNIQUE_ID": "id", "user": "group", "class": "label", "*": "feature"}
    data = {"csv": {"null_values": ["", "?"]}}
    with pytest.raises(
        SchemaError,
        match=(
            r"column 'UNIQUE_ID': expected each value once \(a row id\), but 666 values are those"
            r" of 5356 rows"
        ),
    ):
        validated_of(
            declared(
                real_data / "wisdm_v11.csv.gz", columns, "multiclass", "stratified_group", data
            ),
            tmp_path / "1",
        )
    _, sides = checked(
        declared(
            real_data / "wisdm_v11.csv.gz",
            {**columns, "UNIQUE_ID": "ignore"},
            "multiclass",
            "stratified_group",
            data,
        ),
        tmp_path / "2",
    )
    assert all(
        set(s["label"]["counts"])
        == {"Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking"}
        for s in sides.summary.values()
    )


@pytest.mark.req("D6")
def test_repeated_passengers_and_messages_share_a_side_without_an_id_and_are_caught_with_one(
    real_data: Path, tmp_path: Path
) -> None:
    checked(
        declared(
            real_data / "titanic.csv",
            {"survived": "label", "alive": "ignore", "*": "feature"},
            split="stratified",
        ),
        tmp_path / "1",
    )
    data: dict[str, Any] = {"csv": {"quote": "", "header": False}}
    checked(
        declared(
            real_data / "sms_spam.tsv", {"column0": "label", "column1": "categorical"}, data=data
        ),
        tmp_path / "2",
    )
    # as if each message had an id of its own: equal texts fall apart
    lines = [
        f"{i}\t{line}"
        for i, line in enumerate((real_data / "sms_spam.tsv").read_text().splitlines())
    ]
    (tmp_path / "numbered.tsv").write_text("\n".join(lines) + "\n")
    numbered = declared(
        tmp_path / "numbered.tsv",
        {"column0": "id", "column1": "label", "column2": "categorical"},
        data=data,
    )
    with pytest.raises(
        LeakageError, match=r"val rows .* equal a train row in every feature.*test rows"
    ):
        checked(numbered, tmp_path / "3")
