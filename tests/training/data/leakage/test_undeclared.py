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
from training.data.leakage.entity_series import series_of
from training.data.leakage.label_sql import label_numbers
from training.data.leakage.look_ahead import _of_series, find_look_ahead, look_ahead_results

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


@pytest.mark.parametrize("seed", range(2))
def test_the_sibling_of_a_label_stops_the_run(seed: int) -> None:
    frame = pupils(1000, seed)
    assert 0.94 < np.corrcoef(frame["reading"], frame["y"])[0, 1] < 0.96
    found = named(results_for(shares(frame, seed), "regression"), "label_proxy")
    assert [(r.verdict, r.columns) for r in found] == [("fail", ("reading",))]
    assert "nothing else does" in found[0].summary
    without = results_for(shares(frame.drop(columns="reading"), seed), "regression")
    assert "label_proxy" not in flagged(without)


@pytest.mark.parametrize("table", [diamonds, formula, level])
@pytest.mark.parametrize("seed", range(1))
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
    rows = 2400
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


def test_a_season_within_one_hour_of_the_day_is_no_window() -> None:
    """Days of one hour follow each other, and the temperature knows where the season goes."""
    rng = np.random.default_rng(4)
    rows = 3600
    season = np.sin(np.arange(rows) * 2 * np.pi / 2400)
    ahead = np.roll(season, -400) + 0.3 * rng.normal(size=rows)
    frame = honest_table(rows, 4, "regression", hours=True).assign(
        hour=np.arange(rows) % 24, temperature=ahead, y=season + 0.5 * rng.normal(size=rows)
    )
    with sides_for(shares(frame), "regression") as sides:
        found = find_look_ahead(sides)
        assert [r.verdict for r in look_ahead_results(sides)] == ["pass"]
        guessed = [
            item
            for label in label_numbers(sides)
            for series in series_of(sides, label)
            for item in _of_series(sides, label, series._replace(is_guess=False))
            if series.by == "hour"
        ]
    assert found and any(i.future - i.past > 0.1 and i.future > 0.3 for i in guessed)


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


# ------------------------------------------------------------------------------------------
# spellings

WAYS = (str.upper, str.title, lambda t: f" {t} ", lambda t: f"{t}.", lambda t: t.replace("e", "é"))


def towns(rows: int = 1200, seed: int = 0, groups: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    names = ["green meadow", "red hill", "blue lake", "the heath", "seven wells"]
    return honest_table(rows, seed, groups=groups).assign(
        town=rng.choice(names, rows), sex=rng.choice(["female", "male"], rows)
    )


def respelt(frame: pd.DataFrame, names: tuple[str, ...], seed: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return frame.assign(**{n: [WAYS[rng.integers(len(WAYS))](t) for t in frame[n]] for n in names})


def with_copies(parts: dict[str, pd.DataFrame], number: int, noise: float = 0.0) -> dict:
    """Put copies of train rows with other ids, spelt otherwise, in the place of test rows."""
    test = parts["test"]
    copies = respelt(parts["train"].iloc[:number], ("town", "sex")).assign(
        __id=test["__id"].iloc[:number].to_numpy()
    )
    for name in ("x0", "x1", "x2", "x3"):
        copies[name] += noise * np.random.default_rng(1).normal(size=number)
    return {**parts, "test": pd.concat([copies, test.iloc[number:]])}


@pytest.mark.parametrize("noise", [0.0, pytest.param(1e-4, marks=pytest.mark.long)])
def test_copies_whose_categories_are_spelt_otherwise_stop_the_run(noise: float) -> None:
    parts = shares(towns())
    assert "near_duplicates" not in flagged(results_for(parts))
    found = named(results_for(with_copies(parts, 20, noise)), "near_duplicates")
    assert [r.verdict for r in found] == ["fail"]
    assert noise or (found[0].summary.startswith("20 of ") and len(found[0].evidence) == 5)


def test_one_copy_in_another_spelling_is_a_warning() -> None:
    found = named(results_for(with_copies(shares(towns()), 1)), "near_duplicates")
    assert [r.verdict for r in found] == ["warn"] and found[0].summary.startswith("1 of ")


@pytest.mark.parametrize("where", ["test", pytest.param("all", marks=pytest.mark.long)])
def test_a_side_that_spells_its_values_otherwise_is_silent(where: str) -> None:
    """Whether the rows are fine, or coarse and alike by chance within train, too."""
    for frame in (towns(), towns().drop(columns=["x0", "x1", "x2", "x3", "dose"])):
        parts = shares(frame)
        sides = ("test",) if where == "test" else tuple(parts)
        spelt = {s: respelt(p, ("town",)) if s in sides else p for s, p in parts.items()}
        assert "near_duplicates" not in flagged(results_for(spelt))


def test_values_that_differ_in_a_sign_stay_different() -> None:
    frame = towns().assign(town=lambda f: np.where(f["x0"] > 0, "C++", "C"))
    parts = shares(frame)
    turned = (
        parts["train"]
        .iloc[:20]
        .assign(
            __id=parts["test"]["__id"].iloc[:20].to_numpy(),
            town=lambda f: np.where(f["town"] == "C", "C++", "C"),
        )
    )
    parts["test"] = pd.concat([turned, parts["test"].iloc[20:]])
    summaries = [r.summary for r in named(results_for(parts), "near_duplicates")]
    assert not any("spelling" in text for text in summaries)
