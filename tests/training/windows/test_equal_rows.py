"""Rows are copies if their features and all that their windows hold are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.training.kind_cases import Prepared
from tests.training.windows.tables import COLUMNS, prepared_series, series
from training.data.leakage import check_leakage
from training.data.leakage.window_content import window_digests

COARSE = COLUMNS | {"ward": "numeric", "x": "ignore"}  # the window alone tells rows apart


def results(case: Prepared) -> dict[str, Any]:
    """The checks of equal rows by name."""
    found = check_leakage(case.split, case.validated, case.declaration).results
    return {r.name: r for r in found if r.name in ("duplicates", "label_conflicts")}


def copied_units(other_label: bool = False, one_value: bool = False) -> pd.DataFrame:
    """Twelve series, half of them the others' under new names; one value or label may differ."""
    frame = series(units=7, rows=20)
    frame = frame[frame["unit"] != "u0"].assign(ward=1.0)
    twin = frame.assign(unit="copy of " + frame["unit"], row="c" + frame["row"])
    if other_label:
        twin["y"] = 1 - twin["y"]
    if one_value:
        twin["x"] = twin["x"] + 1e-9
    return pd.concat([frame, twin], ignore_index=True)


def case_of(folder: Path, frame: pd.DataFrame) -> Prepared:
    # twins on both sides of the cut
    held = frame["unit"].isin(["copy of u1", "copy of u2"])
    sides = np.where(frame["unit"].isin(["copy of u3"]), "val", np.where(held, "test", "train"))
    columns = COARSE | {"side": "split"}
    return prepared_series(folder, frame.assign(side=sides), split="predefined", columns=columns)


def test_series_that_are_copied_into_held_out_rows_are_found(tmp_path: Path) -> None:
    frame = copied_units()
    found = results(case_of(tmp_path, frame))["duplicates"]
    held = frame["unit"].isin(["copy of u1", "copy of u2"]).sum()
    assert found.verdict == "fail" and found.figures["test_rows"] == held
    assert {tuple(sorted(pair)) for pair in found.evidence} <= {
        ("label", "test_id", "train_id"),
        ("label", "train_id", "val_id"),
    }
    for pair in found.evidence:
        assert pair.get("test_id", pair.get("val_id")) == "c" + pair["train_id"]


@pytest.mark.long
def test_copies_with_other_labels_are_named(tmp_path: Path) -> None:
    frame = copied_units(other_label=True)
    found = results(case_of(tmp_path, frame))["label_conflicts"]
    assert found.figures["rows"] == len(frame)


@pytest.mark.long
@pytest.mark.parametrize("twins", [False, True])
def test_rows_that_are_alike_but_for_their_windows_are_no_copies(
    tmp_path: Path, twins: bool
) -> None:
    frame = copied_units(one_value=True) if twins else series(units=7, rows=20).assign(ward=1.0)
    case = case_of(tmp_path, frame) if twins else prepared_series(tmp_path, frame, columns=COARSE)
    found = results(case)
    assert set(found) == {"duplicates", "label_conflicts"}
    assert found["duplicates"].verdict == "pass" and found["label_conflicts"].verdict == "pass"


def test_digests_are_equal_where_values_and_what_is_unknown_are(tmp_path: Path) -> None:
    case = prepared_series(tmp_path, series(units=7, rows=20))
    side = case.split.train
    ids = pd.read_parquet(side.file.path)["__id"]
    named, digests = window_digests(side, set(ids[::2]))
    assert named.to_pylist() == list(ids[::2]) and len(set(digests)) == len(digests)
    assert window_digests(side, {ids[4]})[1] == [digests[2]]
