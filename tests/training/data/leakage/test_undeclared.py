"""Leaks that no role gives away: siblings of the label, windows of an entity that nobody declared,
and copies in another spelling; each next to an honest table that stays silent.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.training.data.leakage.planted import (
    flagged,
    honest_table,
    named,
    results_for,
    shares,
    sides_for,
)
from training.data.leakage.look_ahead import look_ahead_results

ROLES = ["__id", "__group", "__time"]


def roles(rows: int, seed: int, hours: bool = False) -> pd.DataFrame:
    return honest_table(rows, seed, "regression", hours=hours)[ROLES]


# ------------------------------------------------------------------------------------------
# siblings


def pupils(rows: int, seed: int) -> pd.DataFrame:
    """Marks of pupils: what they are explains little of a mark, another mark nearly all."""
    rng = np.random.default_rng(seed)
    settings = {name: rng.integers(0, 4, rows) for name in ("school", "parents", "lunch", "course")}
    skill = 66 + 2 * sum(settings.values()) / 4 + 12 * rng.normal(size=rows)
    marks = {n: (skill + 2.7 * rng.normal(size=rows)).round() for n in ("reading", "y")}
    texts = {n: [f"{n}-{v}" for v in values] for n, values in settings.items()}
    return roles(rows, seed).assign(**texts, **marks)


def diamonds(rows: int, seed: int) -> pd.DataFrame:
    """Prices that the weight explains nearly alone; what it leaves open, grades explain."""
    rng = np.random.default_rng(seed)
    weight, grade, colour = rng.gamma(2, 0.4, rows) + 0.2, *rng.integers(0, 8, (2, rows))
    price = 8 + 1.7 * np.log(weight) + 0.12 * grade - 0.07 * colour + 0.1 * rng.normal(size=rows)
    return roles(rows, seed).assign(
        weight=weight.round(2),
        grade=[f"g{v}" for v in grade],
        colour=[f"c{v}" for v in colour],
        depth=60 + rng.normal(size=rows),
        y=np.exp(price),
    )


def formula(rows: int, seed: int) -> pd.DataFrame:
    """A product of two inputs, of which one varies little."""
    rng = np.random.default_rng(seed)
    volts, amperes = rng.gamma(4, 1, rows), 1 + 0.5 * rng.random(rows)
    noise = {f"z{i}": rng.normal(size=rows) for i in range(4)}
    return roles(rows, seed).assign(
        volts=volts, amperes=amperes, **noise, y=volts * amperes * (1 + 0.01 * noise["z0"])
    )


def level(rows: int, seed: int) -> pd.DataFrame:
    """Hours of a slow label, with its last value as a feature."""
    rng = np.random.default_rng(seed)
    y = np.zeros(rows)
    for i in range(1, rows):
        y[i] = 0.97 * y[i - 1] + rng.normal()
    return honest_table(rows, seed, "regression", hours=True).assign(y=y, last=np.r_[0, y[:-1]])


@pytest.mark.parametrize("seed", range(3))
def test_the_sibling_of_a_label_stops_the_run(seed: int) -> None:
    frame = pupils(1000, seed)
    assert 0.94 < np.corrcoef(frame["reading"], frame["y"])[0, 1] < 0.96
    found = named(results_for(shares(frame, seed), "regression"), "label_proxy")
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("reading",))]
    assert "nothing else does" in found[0].summary
    without = results_for(shares(frame.drop(columns="reading"), seed), "regression")
    assert "label_proxy" not in flagged(without)


@pytest.mark.parametrize("table", [diamonds, formula, level])
@pytest.mark.parametrize("seed", range(2))
def test_a_strong_column_with_company_or_a_lag_is_silent(table: object, seed: int) -> None:
    frame = table(1500, seed)  # type: ignore[operator]
    assert "label_proxy" not in flagged(results_for(shares(frame, seed), "regression"))


def test_a_lag_without_a_declared_time_is_no_failure() -> None:
    frame = level(1500, 0).assign(__time=np.nan)
    found = named(results_for(shares(frame), "regression"), "label_proxy")
    assert [(r.verdict, r.columns) for r in found] == [("warn", ("last",))]


# ------------------------------------------------------------------------------------------
# entities


def matches(seed: int, number: bool, dates: bool = False) -> pd.DataFrame:
    """Matches of 90 players with their form so far, which is lawful."""
    rng = np.random.default_rng(seed)
    rows = 3000
    player = rng.integers(0, 90, rows)
    frame = honest_table(rows, seed, "regression", hours=True)
    frame["y"] += 2 * rng.normal(size=90)[player]
    if dates:
        frame["__time"] = np.floor(np.arange(rows) / 10) * 86400.0
    frame["player"] = 1000 + 7 * player if number else [f"p{p}" for p in player]
    return frame.assign(form=_by_player(frame, lambda s: s.shift(1).rolling(5, 1).mean()))


def _by_player(frame: pd.DataFrame, window: object) -> pd.Series:
    return frame.groupby("player")["y"].transform(window)


@pytest.mark.parametrize(
    ("number", "dates", "width"), [(True, False, 5), (False, False, 4), (True, True, 7)]
)
def test_centred_windows_of_an_entity_that_no_role_names_stop_the_run(
    number: bool, dates: bool, width: int
) -> None:
    frame = matches(0, number, dates)
    with sides_for(shares(frame), "regression") as sides:
        assert [r.verdict for r in look_ahead_results(sides)] == ["pass"]
    around = _by_player(frame, lambda s: s.rolling(width, min_periods=1, center=True).mean())
    with sides_for(shares(frame.assign(around=around)), "regression") as sides:
        found = look_ahead_results(sides)
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("around",))]
    assert "(rows of one 'player' in order of time)" in found[0].summary


def test_a_random_split_hides_no_window() -> None:
    """The next rows of an entity lie on all sides."""
    frame = matches(1, True)
    frame["around"] = _by_player(frame, lambda s: s.rolling(5, 1, center=True).mean())
    place = np.random.default_rng(0).random(len(frame))
    parts = {
        "train": frame[place < 0.7],
        "val": frame[(place >= 0.7) & (place < 0.85)],
        "test": frame[place >= 0.85],
    }
    with sides_for(parts, "regression") as sides:
        split = sides.declaration.split.model_copy(update={"kind": "random"})
        declaration = sides.declaration.model_copy(update={"split": split})
        found = look_ahead_results(sides._replace(declaration=declaration))
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("around",))]
