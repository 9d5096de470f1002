"""D6: the known traps of public tables are found with their columns named, and the honest form of
each fails nothing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from schemas.records import CheckResult
from tests.training.data.chain import declared, split_of
from training.data.leakage import check_leakage

BIKE = {"derive": {"at": "strptime(dteday, '%m/%d/%y') + to_hours(hr)"}}
BIKE_COLUMNS = {
    "instant": "id",
    "at": "time",
    "cnt": "label",
    "dteday": "ignore",
    "hr": "categorical",
    "*": "numeric",
}
AIR = {
    "csv": {"null_values": ["", "NA"]},
    "null_labels": "drop",
    "derive": {
        "row": "concat(station, '-', No)",
        "at": "make_timestamp(year, month, day, hour, 0, 0)",
    },
}
AIR_COLUMNS = {
    "row": "id",
    "station": "group",
    "at": "time",
    "PM2.5": "label",
    "PM10": "ignore",
    "No": "ignore",
    "year": "ignore",
    "day": "ignore",
    "*": "feature",
}
PINS = {
    "Dongsi": "val",
    "Tiantan": "test",
    "Wanliu": "train",
    "Huairou": "train",
    "Changping": "train",
    "Aotizhongxin": "train",
}
SOLUBILITY, PREDICTION = (
    "measured log solubility in mols per litre",
    "ESOL predicted log solubility in mols per litre",
)


def found(
    data: Path,
    folder: Path,
    name: str,
    columns: dict[str, Any],
    task: str = "binary",
    split: Any = "random",
    **source: Any,
) -> list[CheckResult]:
    uri = str(data / name)
    declaration = declared(
        uri,
        columns,
        task,
        split,
        source,
        checks={"constant_features": "drop", "max_duplicate_share": 1.0},
    )
    validated, sides = split_of(declaration, folder)
    return list(check_leakage(sides, validated, declaration).results)


def named(results: list[CheckResult]) -> set[str]:
    return {c for r in results if r.verdict in ("warn", "fail") for c in r.columns}


def failed(results: list[CheckResult]) -> dict[str, tuple[str, ...]]:
    return {r.name: r.columns for r in results if r.verdict == "fail"}


TRAPS = [
    (
        "bank_full.csv.gz",
        {"y": "label", "*": "feature"},
        {"duration"},
        {"task": "binary", "csv": {"delimiter": ";"}},
    ),
    (
        "bike_hour.csv",
        BIKE_COLUMNS,
        {"casual", "registered"},
        {"task": "regression", "split": {"kind": "time", "embargo": "24h"}, **BIKE},
    ),
    ("mol_hiv.csv.gz", {"HIV_active": "label", "*": "feature"}, {"activity"}, {}),
    (
        "mol_esol.csv",
        {SOLUBILITY: "label", "Compound ID": "ignore", "*": "feature"},
        {PREDICTION},
        {"task": "regression"},
    ),
    ("titanic.csv", {"survived": "label", "pclass": "categorical", "*": "feature"}, {"alive"}, {}),
]


@pytest.mark.req("D6")
@pytest.mark.parametrize(
    ("name", "columns", "leaks", "options"),
    [
        pytest.param(
            *t, id=t[0].split(".")[0], marks=[pytest.mark.long] if "mol_hiv" in t[0] else []
        )
        for t in TRAPS
    ],
)
def test_the_leaking_columns_are_named_and_without_them_nothing_fails(
    real_data: Path,
    tmp_path: Path,
    name: str,
    columns: dict[str, Any],
    leaks: set[str],
    options: dict[str, Any],
) -> None:
    results = found(real_data, tmp_path / "leak", name, columns, **options)
    assert leaks <= named(results)
    assert {c for cs in failed(results).values() for c in cs} <= leaks
    honest = found(
        real_data,
        tmp_path / "honest",
        name,
        {**dict.fromkeys(leaks, "ignore"), **columns},
        **options,
    )
    # some molecules stand twice, in two spellings
    assert failed(honest) == {} and named(honest) <= {"smiles"}


@pytest.mark.long
@pytest.mark.req("D6")
def test_shared_hours_of_stations_are_named_and_a_split_in_time_as_well_passes(
    real_data: Path, tmp_path: Path
) -> None:
    by_place = found(
        real_data,
        tmp_path / "place",
        "beijing_air_*.csv.gz",
        AIR_COLUMNS,
        "regression",
        {"kind": "group", "pin": PINS},
        **AIR,
    )
    assert failed(by_place)["shared_times"] == ("at", "station")
    both = found(
        real_data,
        tmp_path / "both",
        "beijing_air_*.csv.gz",
        AIR_COLUMNS,
        "regression",
        {"kind": "group_time", "embargo": "7d", "pin": PINS},
        **AIR,
    )
    assert failed(both) == {}


@pytest.mark.req("D6")
def test_copied_texts_and_molecules_are_named_with_their_conflicting_labels(
    real_data: Path, tmp_path: Path
) -> None:
    csv = {"delimiter": "\t", "quote": "", "header": False}
    texts = found(
        real_data,
        tmp_path / "sms",
        "sms_spam.tsv",
        {"column0": "label", "column1": "categorical"},
        csv=csv,
    )
    assert "column1" in {c for r in texts if r.name == "text_copies" for c in r.columns}
    if importlib.util.find_spec("rdkit") is None:
        return
    molecules = found(
        real_data,
        tmp_path / "bbbp",
        "mol_bbbp.csv",
        {"num": "id", "p_np": "label", "name": "ignore", "smiles": "categorical"},
    )
    [copies] = [r for r in molecules if r.name == "text_copies"]
    assert (
        copies.verdict == "warn"
        and copies.columns == ("smiles",)
        and int(copies.figures["label_conflicts"] or 0) >= 1
    )
    assert "of them with another label" in copies.summary and copies.evidence[0]["held out"] != ""
