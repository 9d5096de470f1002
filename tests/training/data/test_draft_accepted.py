"""A draft is accepted by its own run up to training, whatever table it was made of."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from schemas.config import SPLITS, Declaration
from schemas.errors import ConfigError
from schemas.load import declare
from schemas.records import SplitTables
from tasks.draft import failed_checks, findings_of
from tests.training.data.stranger_tables import stranger_table, write
from training.data.arrays.new_nulls import new_nulls
from training.data.draft.draft import draft
from training.data.engine.in_memory import holding
from training.data.fit.normalize import fit
from training.data.leakage import check_overlap
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

pytestmark = pytest.mark.req("P1")
HONEST = re.compile(
    r"give more rows|expected at least two values|no feature is left|no column could"
)


def prepared(text: str, folder: Path) -> tuple[Declaration, SplitTables]:
    """Prepare a drafted declaration: schema, split, rows, groups, constants and rarity."""
    with holding():
        declaration = declare(yaml.safe_load(text))
        validated = validate(fingerprint(declaration.data), declaration, folder / "table")
        sides = split(validated, declaration, folder / "split", folder / "ledger")
        failed = check_overlap(sides, validated, declaration).failed
        assert not failed, failed
        statistics = fit(sides.train, validated.spec, declaration)
        assert statistics.numeric or statistics.categorical or statistics.tensor or statistics.bags
        for side in filter(None, (sides.val, sides.test)):
            assert not new_nulls(side, statistics, declaration.data)
    return declaration, sides


def accepted(seed: int, folder: Path) -> bool:
    """Return False if a table is refused by name; fail if its own run refuses the draft."""
    frame = stranger_table(seed)
    try:
        text = draft(str(write(frame, folder, seed)), judge=failed_checks)
    except ConfigError as error:
        assert HONEST.search(str(error)), str(error)
        return False
    said = findings_of(text)
    assert all("  # " in line or line.endswith(":") for line in text.splitlines()[2 + len(said) :])
    declaration, sides = prepared(text, folder)
    validated = validate(fingerprint(declaration.data), declaration, folder / "again")
    with holding():
        found = failed_checks(sides, validated, declaration)
    assert [f.name for f in found] == [f.split()[5].rstrip(":") for f in said]
    return True


@pytest.mark.parametrize(
    "seed", [1, 5, 19, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 27))]
)
def test_a_draft_is_accepted_by_its_own_run(tmp_path: Path, seed: int) -> None:
    accepted(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_300_drafts_are_accepted_by_their_own_runs(tmp_path: Path, first: int) -> None:
    found = []
    for seed in range(first, first + 20):
        (folder := tmp_path / str(seed)).mkdir()
        found.append(accepted(seed, folder))
    assert sum(found) >= 14  # the others are too small, or their label has one value


@pytest.mark.long
def test_drafts_of_the_real_tables_are_accepted(tmp_path: Path, real_data: Path) -> None:
    labels = {"bike_hour.csv": "cnt", "cmapss_fd001.parquet": "rul", "bank_full.csv.gz": "y"}
    labels |= {"kc_house.csv.gz": "price", "california_housing.csv.gz": "median_house_value"}
    none = ("README.md", "sms_spam.tsv", "shakespeare_speeches.parquet", "mol_hiv.csv.gz")
    for path in sorted(real_data.iterdir()):
        if path.name in none or "mnist" in path.name:
            continue
        name = "PM2.5" if "beijing" in path.name else labels.get(path.name)
        (folder := tmp_path / path.name).mkdir()
        prepared(draft(str(path), label=name), folder)


@pytest.mark.parametrize("towns", [150, pytest.param(30, marks=pytest.mark.long)])
def test_a_floor_of_categories_leaves_what_is_there(tmp_path: Path, towns: int) -> None:
    rng = np.random.default_rng(0)
    codes = np.tile([f"{i:04d}" for i in range(towns)], 10)
    frame = pd.DataFrame({"dx": codes, "y": rng.integers(0, 2, len(codes))})
    frame.assign(a=rng.normal(size=len(codes))).to_csv(tmp_path / "t.csv", index=False)
    text = draft(str(tmp_path / "t.csv"), "y")
    declaration, _ = prepared(text, tmp_path)
    assert declaration.normalize.min_count == (5 if towns == 150 else 1)
    if towns == 150:
        assert "dx has 150 values; 150 occur often enough to be kept, in 100% of its rows" in text


def test_the_rows_of_a_rare_class_are_shared_out_and_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.zeros(30_000, dtype=int)
    y[rng.choice(30_000, 20, replace=False)] = 1
    pd.DataFrame({"a": rng.normal(size=30_000), "y": y}).to_parquet(tmp_path / "t.parquet")
    text = draft(str(tmp_path / "t.parquet"))
    assert "20 of 30000 rows" in text and "test will have about 3 rows of the rarer value" in text
    declaration, sides = prepared(text, tmp_path)
    assert declaration.split.kind == "stratified"
    assert sides.summary["test"]["label"]["counts"]["1"] == 3


def test_rows_of_coarse_features_are_numbered(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 2, (600, 3)).astype(bool), columns=["a", "b", "c"])
    frame.assign(y=frame.a ^ frame.b).to_csv(tmp_path / "t.csv", index=False)
    text = draft(str(tmp_path / "t.csv"))
    declaration, sides = prepared(text, tmp_path)
    assert declaration.data.row_number == "row_number"
    assert "3 features have 8 possible combinations for 600 rows" in text
    counts = [sides.summary[side]["label"]["counts"] for side in SPLITS]
    assert all(len(found) == 2 and min(found.values()) > 20 for found in counts)


def test_too_few_rows_are_refused_with_what_helps(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.5, 3.0, 4.5], "y": [0, 0, 0, 1]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ConfigError, match=r"got 4 that none can; give more rows"):
        draft(str(tmp_path / "t.csv"))


@pytest.mark.long
def test_a_feature_that_train_may_not_vary_in_may_be_dropped(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    days = pd.date_range("2021-01-01", periods=300, freq="D")
    late = (np.arange(300) > 290).astype(int)
    frame = pd.DataFrame({"day": days, "late": late, "a": rng.normal(size=300)})
    frame.assign(y=rng.integers(0, 2, 300)).to_parquet(tmp_path / "t.parquet")
    text = draft(str(tmp_path / "t.parquet"))
    assert "constant_features: drop  # train rows show one value only of late (always 0)" in text
    prepared(text, tmp_path)


def judged(frame: pd.DataFrame, folder: Path, label: str = "y") -> str:
    frame.to_csv(folder / "t.csv", index=False)
    return draft(str(folder / "t.csv"), label, judge=failed_checks)


def test_columns_that_its_own_checks_refuse_are_left_out_with_the_finding(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=400), rng.normal(size=400)
    y = (a + rng.normal(size=400) > 0.8).astype(int)
    frame = pd.DataFrame({"a": a, "b": b, "closed": a, "y": y})
    frame["closed"] = np.where(y == 1, rng.integers(1, 30, 400), np.nan)
    text = judged(frame, tmp_path)
    assert "closed: ignore  # suspicious: " in text and "known before it?" in text
    assert "a: numeric" in text and "b: numeric" in text and "Its run will stop" not in text
    honest = judged(frame.assign(closed=rng.integers(0, 9, 400) * 1.0), tmp_path)
    assert "closed: numeric" in honest and "suspicious" not in honest


def test_equal_rows_stay_together_where_the_id_would_part_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(300, 4))
    values[250:] = values[:50]
    y = (values[:, 0] > 0).astype(int)
    frame = pd.DataFrame(values, columns=["a", "b", "c", "d"]).assign(id=np.arange(300), y=y)
    text = judged(frame, tmp_path)
    assert "group_by: {duplicates: features}  # " in text and "equal a train row in every" in text
    assert "split: {kind: stratified_group}  # equal rows stay together" in text
    assert "group_by" not in judged(frame.assign(d=rng.normal(size=300)), tmp_path)


def clinics(who: np.ndarray, names: list[str]) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"hospital": np.array(names)[who], "a": rng.normal(size=len(who))})
    return frame.assign(y=rng.integers(0, 2, len(who)))


def test_a_group_in_several_spellings_is_brought_to_one(tmp_path: Path) -> None:
    who = np.random.default_rng(3).integers(0, 61, 900)
    names = [f"Clinic {i}" for i in range(60)]
    text = judged(clinics(who, [*names, "clinic 04"]), tmp_path)  # on another side than Clinic 4
    assert not findings_of(text)
    data = yaml.safe_load(text)["data"]
    assert data["columns"]["hospital"] == "ignore" and data["columns"]["hospital_key"] == "group"
    assert "differ only in case, spaces, punctuation and leading zeros" in text
    prepared(text, tmp_path)
    assert "derive" not in judged(clinics(who, [*names, "Clinic 60"]), tmp_path)


def test_what_no_line_takes_out_stands_on_top_with_its_remedy(tmp_path: Path) -> None:
    who = np.random.default_rng(3).integers(0, 61, 900)
    names = [*(f"Clinic {i}" for i in range(60)), "Clínic 4"]
    text = judged(clinics(who, names), tmp_path)
    assert text.startswith("# Its run will stop at group_alias: ")
    assert [f[:34] for f in findings_of(text)] == ["Its run will stop at group_alias: "]
    assert "To go on: bring the key to one spelling in data.derive" in text


def test_nulls_that_begin_after_train_are_filled(tmp_path: Path) -> None:
    rows, rng = 900, np.random.default_rng(2)
    frame = pd.DataFrame({"at": pd.date_range("2021-01-01", periods=rows, freq="h")})
    frame["a"], frame["b"] = rng.normal(size=(2, rows))
    frame["y"] = frame.a + rng.normal(size=rows)
    frame.loc[rows - 40 :, "b"] = np.nan
    frame.to_parquet(tmp_path / "t.parquet")
    text = draft(str(tmp_path / "t.parquet"), label="y", judge=failed_checks)
    columns = yaml.safe_load(text)["data"]["columns"]
    assert columns["a"] == "numeric" and columns["b"] == {"kind": "numeric", "nullable": True}
    prepared(text, tmp_path)
