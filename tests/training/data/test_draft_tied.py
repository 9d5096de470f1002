"""`bulkhead init` groups rows that a score rests on, and says why with both scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from schemas.records import CheckResult
from tests.training.data.leakage.tied import people, plain, visits
from tests.training.data.test_draft_roles import guessed
from training.data.draft.draft import draft
from training.data.draft.rehearsal import amended


def lines(folder: Path, frame: pd.DataFrame) -> str:
    """The draft of a table, its columns in a file."""
    frame.to_csv(folder / "table.csv", index=False)
    return draft(str(folder / "table.csv"), "y")


def test_people_are_grouped_by_what_they_keep(tmp_path: Path) -> None:
    frame, label, _ = people(np.random.default_rng(0), visits=20)
    text = lines(tmp_path, frame.assign(y=label))
    (line,) = (row for row in text.splitlines() if "group_by" in row)
    assert line.strip().startswith('group_by: {duplicates: ["age", "sex"]}')
    assert "R2 of ranks" in line and "if rows of one value stay together" in line
    assert "split: {kind: stratified_group}" in text


@pytest.mark.long
def test_hidden_visits_are_grouped_and_independent_rows_are_not(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    frame, label, _ = visits(random)
    assert "group_by: {duplicates: [" in lines(tmp_path, frame.assign(y=label))
    frame, label = plain(random, 2000, 6, regression=False)
    text = lines(tmp_path, frame.assign(y=label))
    assert "group_by" not in text and "split: {kind: stratified}" in text


@pytest.mark.parametrize(("tie", "role"), [("key", "numeric"), ("cluster", "ignore")])
def test_a_number_that_ties_rows_is_not_left_out_for_telling_the_label(
    tmp_path: Path, tie: str, role: str
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 3)), columns=["who", "a", "y"])
    found = guessed(frame, tmp_path, "y")[0]
    failed = [
        CheckResult(name="label_proxy", verdict="fail", summary="tells it", columns=("who",)),
        CheckResult(
            name="dependence", verdict="fail", summary="rests", columns=("who", "a"),
            figures={"tie": tie},
        ),
    ]  # fmt: skip
    assert amended(found, failed).columns["who"].role == role
