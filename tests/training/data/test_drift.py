"""Drift is found where it was planted, and chance raises no alarm however many columns
there are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from schemas.registry_records import Drift
from training.data.leakage.drift import find_drift, one_of_each
from training.registry.reevaluate import has_drifted


def rows(seed: int, count: int = 400, columns: int = 30) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    numbers = {
        f"x{i}": np.where(rng.random(count) < 0.1, np.nan, rng.normal(size=count))
        for i in range(columns)
    }
    return pd.DataFrame(
        {
            **numbers,
            "flag": rng.random(count) < 0.3,
            "ward": rng.choice(["a", "b", "c", None], count, p=[0.5, 0.3, 0.1, 0.1]),
        }
    )


def found(before: pd.DataFrame, now: pd.DataFrame) -> dict[str, Drift]:
    return {d.column: d for d in find_drift(before, now, list(before.columns)) if has_drifted(d)}


@pytest.mark.long
@pytest.mark.req("R3")
def test_chance_in_many_columns_raises_no_alarm() -> None:
    alarms = sum(bool(found(rows(2 * seed), rows(2 * seed + 1))) for seed in range(40))
    unadjusted = sum(
        any(
            d.p_value < 0.05
            for d in find_drift(rows(2 * s), rows(2 * s + 1), list(rows(0).columns))
        )
        for s in range(10)
    )
    assert alarms <= 2 and unadjusted >= 7


@pytest.mark.req("R3")
@pytest.mark.parametrize(
    ("column", "plant"),
    [
        ("x3", lambda f: f.assign(x3=f["x3"] + 0.7)),
        ("x4", lambda f: f.assign(x4=f["x4"] * 3)),
        ("x5", lambda f: f.assign(x5=f["x5"].where(np.arange(len(f)) % 2 == 0))),
        ("x6", lambda f: f.assign(x6=np.nan)),
        ("flag", lambda f: f.assign(flag=~f["flag"])),
        ("ward", lambda f: f.assign(ward=f["ward"].replace("b", "new"))),
        ("ward", lambda f: f.assign(ward=None)),
    ],
)
def test_what_was_planted_is_found_and_nothing_else(column: str, plant: object) -> None:
    drifted = found(rows(0), plant(rows(1)))  # type: ignore[operator]
    assert list(drifted) == [column]
    assert drifted[column].psi > 0.2 and drifted[column].adjusted < 1e-6


@pytest.mark.req("R3")
def test_a_difference_that_is_certain_and_small_is_no_drift() -> None:
    before, now = rows(0, 40_000, 1), rows(1, 40_000, 1)
    (d,) = find_drift(before, now.assign(x0=now["x0"] + 0.1), ["x0"])
    assert d.adjusted < 1e-6 and d.psi < 0.1 and not has_drifted(d)


@pytest.mark.req("R3")
def test_few_rows_say_nothing_and_a_group_counts_once() -> None:
    assert (
        find_drift(rows(0, 4), rows(1), ["x0"]) == ()
        and len(find_drift(rows(0, 5), rows(1), ["x0"])) == 1
    )
    frame = pd.DataFrame({"g": ["a", "a", None, None, "b", "a"], "x": range(6)})
    assert one_of_each(frame, "g")["x"].tolist() == [0, 2, 3, 4]
