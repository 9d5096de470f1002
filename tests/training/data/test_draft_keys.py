"""Keys, measures and series in tables of strangers, each with a counterpart that is the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.training.data.test_draft_roles import A, N, Y, guessed
from training.data.draft.draft import draft
from training.data.draft.entities import _beyond_luck

pytestmark = pytest.mark.req("P1")
RNG = np.random.default_rng(11)


@pytest.mark.parametrize("name", ["rownames", "Unnamed: 0", "row.names", "seqno"])
def test_the_numbers_of_rows_are_an_id_even_with_gaps(tmp_path: Path, name: str) -> None:
    rows = np.sort(RNG.choice(5 * N, N, replace=False))
    frame = pd.DataFrame({name: rows, "a": A, "y": Y})
    assert guessed(frame, tmp_path)[0].columns[name].role == "id"
    named = guessed(frame.assign(id=rows * 3 + rows % 2), tmp_path)[0].columns
    assert (named["id"].role, named[name].role) == ("id", "ignore")  # a file's rows change
    words = pd.DataFrame({name: [f"Car {i * i}" for i in range(N)], "a": A, "y": Y})
    assert guessed(words, tmp_path)[0].columns[name].role == "id"


def test_a_size_is_no_group_where_nearly_constant_columns_hardly_change(tmp_path: Path) -> None:
    size = np.where(RNG.random(N) < 0.5, 0, RNG.integers(300, 600, N))
    rare = {name: (RNG.random(N) < 0.01) * 1 for name in ("pool", "gas", "gravel")}
    frame = pd.DataFrame({"floor": size, **rare, "a": A, "y": Y})
    assert guessed(frame, tmp_path)[0].columns["floor"].role == "numeric"


def test_a_size_is_no_group_because_of_its_own_scales(tmp_path: Path) -> None:
    area = RNG.integers(40, 240, N)
    scales = {"width": np.sqrt(area), "volume": area**1.5, "half": -area / 2}
    frame = pd.DataFrame({"area": area, **scales, "a": A, "y": Y})
    assert guessed(frame, tmp_path)[0].columns["area"].role == "numeric"
    levels = pd.DataFrame({"school": area // 15, "degree": area // 60, "a": A, "y": Y})
    assert guessed(levels, tmp_path)[0].columns["school"].role == "numeric"


def test_exceptions_must_be_far_rarer_than_by_luck() -> None:
    sizes, values = np.array([2.0, 3.0]), np.array([400.0, 200.0])
    assert _beyond_luck(sizes, values, 600, 0.5) and _beyond_luck(sizes, values, 590, 0.5)
    assert not _beyond_luck(sizes, values, 590, 0.99)  # 590 of 600 are expected
    assert not _beyond_luck(sizes, values, 600, 0.999)


def test_stays_in_hospital_are_a_number_and_hospitals_a_category(tmp_path: Path) -> None:
    stays = pd.DataFrame({"hospital": RNG.poisson(0.4, N), "a": A, "y": Y})
    assert guessed(stays, tmp_path)[0].columns["hospital"].role == "numeric"
    places = stays.assign(hospital=RNG.integers(0, 6, N))
    assert guessed(places, tmp_path)[0].columns["hospital"].role == "categorical"


def test_names_of_places_that_hardly_repeat_make_no_group(tmp_path: Path) -> None:
    names = [f"School {i}" for i in range(N - 12)] + [f"School {i}" for i in range(12)]
    frame = pd.DataFrame({"school": names, "a": A, "y": Y})
    assert guessed(frame, tmp_path)[0].columns["school"].role == "ignore"
    frame = frame.assign(school=[f"School {i // 3}" for i in range(N)])
    assert guessed(frame, tmp_path)[0].columns["school"].role == "group"


def test_a_group_of_decimal_numbers_becomes_whole(tmp_path: Path) -> None:
    who = np.repeat(np.arange(150), 4)
    income, size = RNG.normal(size=150)[who], RNG.integers(1, 6, 150)[who]
    frame = pd.DataFrame({"person": who * 1.0, "income": income, "size": size, "a": A, "y": Y})
    frame.to_csv(tmp_path / "people.csv", index=False)
    text = draft(str(tmp_path / "people.csv"))
    assert "person_number: cast(person as bigint)" in text and "person_number: group" in text
    assert "person: ignore" in text and "split: {kind: stratified_group}" in text


@pytest.mark.parametrize("part", ["quarter", "month", ""])
def test_one_row_for_each_year_is_a_series_in_time(tmp_path: Path, part: str) -> None:
    each = {"quarter": 4, "month": 12, "": 1}[part]
    rows = np.arange(240 if part else 120)
    frame = pd.DataFrame({"year": 1890.0 + rows // each})
    if part:
        frame[part] = rows % each + 1.0
    frame = frame.assign(a=RNG.normal(size=len(rows)), y=np.cumsum(RNG.normal(size=len(rows))))
    text = draft(str(_written(frame, tmp_path)))
    assert f"one row for each year{' and ' + part if part else ''}: a series in time" in text
    assert "row_time: time" in text and "split: {kind: time, embargo: 1d}" in text
    trend = draft(str(_written(frame.assign(y=frame.year + RNG.normal(size=len(rows))), tmp_path)))
    assert "year: numeric" in trend, "a trend follows the calendar, which is known before"
    panel = draft(str(_written(pd.concat([frame, frame]).assign(a=A[: 2 * len(rows)]), tmp_path)))
    assert "split: {kind: random}" in panel


def test_footnote_marks_of_people_are_part_of_their_names(tmp_path: Path) -> None:
    who = [f"{100 + i // 4}{'b' if i % 40 < 4 else ''}" for i in range(N)]
    frame = pd.DataFrame({"subject": who, "a": A, "y": Y})
    assert guessed(frame, tmp_path)[0].columns["subject"].role == "group"
    other = guessed(frame.rename(columns={"subject": "amount"}), tmp_path)[0]
    assert other.columns["amount"].role == "numeric"


def test_classes_stay_classes_where_a_null_makes_them_decimal(tmp_path: Path) -> None:
    view = RNG.integers(-1, 2, N).astype(float)
    view[:30] = np.nan
    frame = pd.DataFrame({"a": A, "view": view})
    assert "multiclass" in guessed(frame, tmp_path, "view")[2]
    assert "multiclass" not in guessed(frame.assign(view=view / 2), tmp_path, "view")[2]


def _written(frame: pd.DataFrame, folder: Path) -> Path:
    path = folder / "series.csv"
    frame.to_csv(path, index=False)
    return path


def test_whole_numbers_that_luck_would_repeat_are_a_key(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"child": rng.choice(14_000, 2_000, replace=False), "a": rng.normal(size=2_000)}
    ).assign(
        salary=lambda t: rng.choice(10_000_000, 2_000, replace=False), y=rng.normal(size=2_000)
    )
    found = guessed(frame, tmp_path, "y")[0].columns
    assert (found["child"].role, found["salary"].role) == ("id", "numeric")
    assert "none of 2000 numbers from" in found["child"].why


def test_numbers_of_districts_are_codes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"district": rng.integers(1, 62, 600), "a": rng.normal(size=600)})
    found = guessed(frame.assign(y=rng.integers(0, 2, 600)), tmp_path, "y")[0].columns
    assert found["district"].role == "categorical"


def test_year_month_and_day_of_one_event_are_the_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    days = pd.date_range("2005-01-03", periods=600, freq="D")
    frame = pd.DataFrame({"YearBuilt": rng.integers(1900, 2000, 600), "a": rng.normal(size=600)})
    frame = frame.assign(YearSold=days.year, MonthSold=days.month, DaySold=days.day)
    path = _written(frame.assign(y=rng.normal(size=600)), tmp_path)
    text = draft(str(path), "y")
    assert "row_time: make_timestamp(YearSold, MonthSold, DaySold, 0, 0, 0)" in text
    births = frame.rename(columns=lambda n: n.replace("Sold", "Birth"))
    assert "row_time" not in draft(str(_written(births.assign(y=0.5 * frame.a), tmp_path)), "y")
