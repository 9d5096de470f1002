"""Panels in first drafts: things followed over years, and other names of the same things."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.training.data.test_draft_roles import guessed
from training.data.draft.draft import draft
from training.data.draft.guesses import Guess
from training.data.draft.number_columns import FIRST_ROWS

pytestmark = pytest.mark.req("P1")
RNG = np.random.default_rng(5)
THINGS, YEARS = 60, 12
ROWS = THINGS * YEARS


def columns_of(frame: pd.DataFrame, folder: Path) -> dict[str, Guess]:
    """Return the guess for each column next to the label y."""
    return guessed(frame, folder, "y")[0].columns


def panel(by: str = "thing") -> pd.DataFrame:
    """Return a row for each of 60 firms and 12 years, the rows of a firm or of a year in a run."""
    firm, year = np.repeat(np.arange(THINGS) * 7 + 3, YEARS), np.tile(np.arange(YEARS), THINGS)
    frame = pd.DataFrame({"fcode": firm, "year": 1990 + year})
    frame["a"], frame["y"] = RNG.normal(size=ROWS), firm / 50 + RNG.normal(size=ROWS)
    return frame if by == "thing" else frame.sort_values(["year", "fcode"], ignore_index=True)


@pytest.mark.parametrize("by", ["thing", "year"])
def test_what_is_followed_over_years_is_a_group(tmp_path: Path, by: str) -> None:
    frame = panel(by)
    guess = columns_of(frame, tmp_path)["fcode"]
    assert guess.role == "group"
    assert "60 values, each followed over year with one row for each" in guess.why
    words = frame.assign(fcode="F" + frame.fcode.astype(str))
    assert columns_of(words, tmp_path)["fcode"].role == "group"


def test_values_that_come_twice_in_a_year_are_no_panel(tmp_path: Path) -> None:
    frame = panel("year")
    frame["fcode"] = RNG.permutation(frame.fcode)
    assert columns_of(frame, tmp_path)["fcode"].role != "group"
    hours = pd.DataFrame({"day": np.repeat(np.arange(1, 61), 24), "hr": np.tile(np.arange(24), 60)})
    hours["a"], hours["y"] = RNG.normal(size=1440), RNG.normal(size=1440)
    assert "group" not in {guess.role for guess in columns_of(hours, tmp_path).values()}


def test_a_measure_with_ties_is_no_panel(tmp_path: Path) -> None:
    frame = panel().drop(columns="fcode")
    frame["rent"] = RNG.choice(5_000, ROWS, replace=False) // 3
    assert columns_of(frame, tmp_path)["rent"].role == "numeric"


def test_other_names_of_a_group_are_left_out(tmp_path: Path) -> None:
    frame = panel().rename(columns={"fcode": "firm_id"})
    frame["owner"] = "owner " + (frame.firm_id + RNG.integers(0, 2, ROWS) * 1000).astype(str)
    frame["region"] = "r" + (frame.firm_id % 11).astype(str)
    words = np.array([f"word{i}" for i in range(400)])
    frame["note"] = [" ".join(row) for row in RNG.choice(words, (ROWS, 6))]  # other texts always
    found = columns_of(frame, tmp_path)
    assert [found[n].role for n in ("firm_id", "owner", "region", "note")] == [
        *("group", "ignore", "categorical", "text")
    ]
    assert "120 values that each stand with one firm_id" in found["owner"].why


@pytest.mark.parametrize("word", ["nil", "n. b."])
def test_a_word_for_a_null_may_come_late(tmp_path: Path, word: str) -> None:
    rows = 3 * FIRST_ROWS
    late = [f"{v:.2f}" for v in RNG.normal(20, 5, rows)]
    late[2 * FIRST_ROWS :: 50] = [word] * len(late[2 * FIRST_ROWS :: 50])
    frame = pd.DataFrame({"late": late, "a": RNG.normal(size=rows), "y": RNG.normal(size=rows)})
    frame["codes"] = [f"{v:05d}" for v in RNG.integers(0, 99_999, rows)]
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    lines = {line.split(":")[0].strip(): line for line in draft(str(path), "y").splitlines()}
    assert f'late: {{kind: numeric, written: {{nulls: ["{word}"]}}}}' in lines["late"]
    assert "written" not in lines["codes"]


@pytest.mark.parametrize("name", ["t", "date"])
def test_a_count_of_periods_in_their_order_is_the_time(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"a": RNG.normal(size=240), "y": RNG.normal(size=240)})
    months = np.arange(240)
    frame[name] = months + 1 if name == "t" else 1947 + months // 12 + (months % 12 + 1) / 100
    draft, plan, _ = guessed(frame, tmp_path, "y")
    assert draft.columns[name].role == "time" and draft.time == name
    assert plan.split == "{kind: time, embargo: 0}"
    mixed = frame.sample(frac=1, random_state=0)
    assert columns_of(mixed, tmp_path)[name].role != "time"
    assert columns_of(frame.rename(columns={name: "dose"}), tmp_path)["dose"].role != "time"
    twice = pd.concat([frame, frame.assign(a=frame.a + 1)])
    assert columns_of(twice, tmp_path)[name].role != "time"


def test_few_series_over_many_periods_are_split_by_time(tmp_path: Path) -> None:
    year, gas = np.repeat(np.arange(20, 120), 3), np.tile(["CO2", "CH4", "N2O"], 100)
    frame = pd.DataFrame({"year": year, "gas": gas, "y": np.sin(year / 9) + RNG.normal(size=300)})
    found, _, _ = guessed(frame, tmp_path, "y")
    assert (found.time, found.columns["gas"].role) == ("year", "categorical")
    assert found.columns["year"].why == "one row for each year and gas: 3 series in time"
    again = frame.assign(gas=RNG.permutation(gas))  # a year may have one gas twice
    assert guessed(again, tmp_path, "y")[0].columns["year"].role == "numeric"


def test_rows_without_the_group_that_a_score_rests_on_are_left_out(tmp_path: Path) -> None:
    year, thing = np.repeat(np.arange(1990, 2020), 64), np.tile(np.arange(64), 30)
    frame = pd.DataFrame({"land": [f"land {i}" for i in thing], "year": year})
    frame["member"] = RNG.integers(0, 2, 64)[thing]
    frame["y"] = np.exp(RNG.normal(size=64)[thing] * 2 + RNG.normal(size=len(frame)) / 9)
    frame.loc[thing > 60, "land"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    text = draft(str(tmp_path / "t.csv"), "y")
    assert "land: group" in text
    assert 'filter: "land is not null"  # 90 rows have no land' in text
