"""Leaks of the label into a column, an order, or a statistic that was fitted on all rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.leaks.plants_roles import Planted, Rng, some
from benchmarks.leaks.splitting import Sides

COLUMN = "v_17"  # a name without meaning
SELECTED, SELECTED_FROM = (10, 1000)  # columns of noise


def both(sides: Sides) -> tuple[pd.DataFrame, int]:
    """Return all rows, train first, and the number of train rows."""
    return pd.concat([sides.train, sides.test], ignore_index=True), len(sides.train)


def parted(sides: Sides, whole: pd.DataFrame, columns: tuple[str, ...]) -> Planted:
    """Return train and test of all rows again, and the columns that reveal the label."""
    rows = len(sides.train)
    return Planted(
        sides.having(
            whole.iloc[:rows].reset_index(drop=True), whole.iloc[rows:].reset_index(drop=True)
        ),
        columns,
    )


def _codes(sides: Sides, whole: pd.DataFrame) -> np.ndarray:
    """Return the label as numbers: class codes, or the value scaled to mean 0 and spread 1."""
    if sides.base.task == "regression":
        values = whole[sides.base.label].to_numpy(dtype=float)
        return np.asarray((values - values.mean()) / values.std())
    return np.asarray(pd.factorize(whole[sides.base.label], sort=True)[0], dtype=float)


def _flag(sides: Sides, whole: pd.DataFrame) -> np.ndarray:
    """Flag the rows of the larger half or of the rarest class."""
    codes = _codes(sides, whole)
    if sides.base.task == "regression":
        return np.asarray(codes > np.quantile(codes, 0.7))
    return np.asarray(codes == pd.Series(codes).value_counts().idxmin())


def _with(sides: Sides, values: np.ndarray) -> Planted:
    whole, _ = both(sides)
    return parted(sides, whole.assign(**{COLUMN: values}), (COLUMN,))


def label_copy(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """The label under another name and in other codes; wrong in a share of the rows."""
    whole, _ = both(sides)
    codes = _codes(sides, whole)
    wrong = some(whole, rate, rng)
    codes[wrong] = rng.permutation(codes[wrong]) if len(wrong) > 1 else codes[wrong]
    if sides.base.task == "regression":
        return _with(sides, (3.7 * codes + 11).round(6))
    return _with(
        sides,
        np.array(
            [
                "quartz",
                "basalt",
                "granite",
                "slate",
                "marble",
                "chalk",
                "flint",
                "shale",
                "gneiss",
                "tuff",
            ]
        )[codes.astype(int) % 10],
    )


def _proxy(sides: Sides, rng: Rng, noise: float) -> Planted:
    """Return a number that follows the label with noise of `noise` spreads."""
    whole, _ = both(sides)
    codes = _codes(sides, whole)
    return _with(sides, codes + noise * max(codes.std(), 1e-9) * rng.normal(size=len(codes)))


def strong_proxy(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A number with noise of a tenth of the label's spread."""
    return _proxy(sides, rng, 0.1)


def proxy(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A number with noise of a quarter of the label's spread."""
    return _proxy(sides, rng, 0.25)


def weak_proxy(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A number with noise of half the label's spread."""
    return _proxy(sides, rng, 0.5)


def sibling(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Another score of the same thing: its correlation with the label is 0.95."""
    return _proxy(sides, rng, np.sqrt(1 / 0.95**2 - 1))


def post_outcome(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """An amount that is written only after one outcome; wrong in a share of the rows."""
    whole, _ = both(sides)
    flag = _flag(sides, whole)
    wrong = some(whole, rate, rng)
    flag[wrong] = rng.random(len(wrong)) < 0.5
    return _with(sides, np.where(flag, rng.gamma(2, 50, len(flag)).round(2), 0.0))


def missingness(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A number that is missing after one outcome; wrong in a share of the rows."""
    whole, _ = both(sides)
    flag = _flag(sides, whole)
    wrong = some(whole, rate, rng)
    flag[wrong] = rng.random(len(wrong)) < 0.5
    return _with(sides, np.where(flag, np.nan, rng.normal(size=len(flag))))


def pure_category(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A category of a share of the rows that stands with one outcome only."""
    whole, _ = both(sides)
    values = rng.choice(
        ["north", "south", "east", "west", "inner", "outer", "upper", "lower"], len(whole)
    ).astype(object)
    flagged = np.flatnonzero(_flag(sides, whole))
    values[
        rng.choice(flagged, min(len(flagged), max(1, round(rate * len(whole)))), replace=False)
    ] = "annex"
    return _with(sides, values)


def column_sum(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Two columns that add up to the label, or whose sum's sign predicts its class; each by itself
    says little.
    """
    whole, _ = both(sides)
    codes = _codes(sides, whole)
    if sides.base.task == "multiclass":
        return None
    target = (
        codes
        if sides.base.task == "regression"
        else (2 * codes - 1) * rng.uniform(0.3, 1, len(codes))
    )
    part = 2 * rng.normal(size=len(codes))
    return parted(
        sides,
        whole.assign(part_a=part.round(6), part_b=target - part.round(6)),
        ("part_a", "part_b"),
    )


def id_order(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Ids were given in the order of the label, but for a share of the rows."""
    whole, _ = both(sides)
    place = np.argsort(np.argsort(_codes(sides, whole) + 1e-6 * rng.normal(size=len(whole))))
    wrong = some(whole, rate, rng)
    place[wrong] = rng.permutation(place[wrong])
    return parted(sides, whole.assign(**{sides.base.id: 100_000 + place}), (sides.base.id,))


def row_order(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Both files are sorted by the label, but for a share of the rows."""
    if sides.kind == "time":
        return None
    sorted_sides = []
    for frame in (sides.train, sides.test):
        order = np.argsort(_codes(sides, frame), kind="stable")
        wrong = some(frame, rate, rng)
        order[wrong] = rng.permutation(order[wrong])
        sorted_sides.append(frame.iloc[order].reset_index(drop=True))
    return Planted(sides.having(*sorted_sides))


def look_ahead(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A rolling mean of the label that looks at the next rows instead of the last."""
    base = sides.base
    if not base.series or base.time is None:
        return None
    whole, _ = both(sides)
    entity = (
        whole[next(c for c in ("device",) if c in whole)]
        if "device" in whole
        else pd.Series(0, index=whole.index)
    )
    codes = pd.Series(_codes(sides, whole), index=whole.index)
    order = whole.sort_values(base.time, kind="stable").index
    ahead = (
        codes.loc[order]
        .groupby(entity.loc[order])
        .transform(lambda s: s[::-1].rolling(4, min_periods=1).mean()[::-1].shift(-1))
    )
    return _with(sides, ahead.reindex(whole.index).to_numpy())


def look_ahead_of_entity(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A centred rolling mean of each entity's label, where no role says which column that is."""
    base = sides.base
    if base.entity is None or base.time is None:
        return None
    whole, _ = both(sides)
    order = whole.sort_values(base.time, kind="stable").index
    centred = (
        pd.Series(_codes(sides, whole), index=whole.index)
        .loc[order]
        .groupby(whole[base.entity].loc[order])
        .transform(lambda s: s.rolling(5, center=True, min_periods=1).mean())
    )
    return _with(sides, centred.reindex(whole.index).to_numpy())


def selected(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Ten of a thousand columns of noise, those that fit the labels of all rows best."""
    whole, _ = both(sides)
    noise = rng.normal(size=(len(whole), SELECTED_FROM))
    codes = _codes(sides, whole)
    strength = np.abs((codes - codes.mean()) @ noise)
    kept = np.argsort(-strength, kind="stable")[:SELECTED]
    names = tuple(f"f_{i}" for i in kept)
    added = pd.DataFrame(noise[:, kept], columns=list(names), index=whole.index)
    return parted(sides, pd.concat([whole, added], axis=1), names)


def target_encoding(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A category that says nothing, as the mean label of its rows, test rows included."""
    whole, _ = both(sides)
    levels = pd.Series(rng.integers(0, max(2, len(whole) // 6), len(whole)))
    return _with(
        sides, pd.Series(_codes(sides, whole)).groupby(levels).transform("mean").to_numpy()
    )


def group_encoding(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """The mean label of each group, of test groups too."""
    if sides.base.group is None:
        return None
    whole, _ = both(sides)
    return _with(
        sides,
        pd.Series(_codes(sides, whole))
        .groupby(whole[sides.base.group])
        .transform("mean")
        .to_numpy(),
    )


def scaled(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Every number scaled by the mean and spread of all rows."""
    names = [c for c in sides.base.numeric if sides.train[c].nunique() > 20]
    if len(names) < 2:
        return None
    whole, _ = both(sides)
    return parted(
        sides,
        whole.assign(**{c: (whole[c] - whole[c].mean()) / whole[c].std(ddof=0) for c in names}),
        tuple(names),
    )


def imputed(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A fifth of a column's values replaced by the mean of all rows."""
    names = [c for c in sides.base.numeric if sides.train[c].nunique() > 50]
    if not names:
        return None
    whole, _ = both(sides)
    values = whole[names[0]].astype(float).to_numpy(copy=True)
    values[rng.random(len(values)) < 0.2] = np.nan
    return parted(
        sides,
        whole.assign(**{names[0]: np.where(np.isnan(values), np.nanmean(values), values)}),
        (names[0],),
    )
