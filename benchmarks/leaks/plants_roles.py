"""Leaks that follow from declared roles: a key, a time or an interval in both splits.

All are pure functions of train and test, rate and generator.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.leaks.splitting import Sides

Rng = np.random.Generator


@dataclass(frozen=True)
class Planted:
    """Train and test with a leak: the column that reveals the label, if any, and the roles that
    must be declared to see it.
    """

    sides: Sides
    columns: tuple[str, ...] = ()
    available: dict[str, str] | None = None
    label_time: str | None = None


def some(frame: pd.DataFrame, rate: float, rng: Rng) -> np.ndarray:
    """Return the positions of a share of the rows, at least one."""
    return np.sort(rng.choice(len(frame), max(1, round(rate * len(frame))), replace=False))


def shared_ids(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Test rows carry ids of train rows; nothing else is alike."""
    return Planted(sides.having(test=_renamed(sides, sides.base.id, rate, rng, str)))


def respelt_ids(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Test rows carry ids of train rows, spelt otherwise."""
    return Planted(sides.having(test=_renamed(sides, sides.base.id, rate, rng, spelling(rng))))


def straddling_groups(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Test rows belong to groups of train."""
    if sides.kind != "group" or not sides.base.group:
        return None
    return Planted(sides.having(test=_renamed(sides, sides.base.group, rate, rng, str)))


def respelt_groups(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Test rows belong to groups of train, whose names are spelt otherwise."""
    if sides.kind != "group" or not sides.base.group:
        return None
    return Planted(sides.having(test=_renamed(sides, sides.base.group, rate, rng, spelling(rng))))


def _renamed(sides: Sides, column: str, rate: float, rng: Rng, spell: object) -> pd.DataFrame:
    test = sides.test.copy()
    rows = some(test, rate, rng)
    taken = sides.train[column].iloc[
        rng.choice(len(sides.train), len(rows), replace=column != sides.base.id)
    ]
    test[column] = test[column].astype(object)
    test.iloc[rows, test.columns.get_loc(column)] = [spell(str(k)) for k in taken]  # type: ignore[operator]
    test[column] = test[column].astype(str)
    return test


def spelling(rng: Rng) -> object:
    """Return a way to spell a key: case, space, width, punctuation or leading zeros."""
    ways = (
        lambda k: k.lower() if k.lower() != k else k.upper() if k.upper() != k else f" {k}",
        lambda k: f"{k} ",
        lambda k: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in k),
        lambda k: (
            k.replace("_", "-")
            if "_" in k
            else k.replace("-", " ")
            if "-" in k
            else f"{k[:1]}-{k[1:]}"
        ),
        _zeros,
        lambda k: (
            unicodedata.normalize("NFD", k)
            if unicodedata.normalize("NFD", k) != k
            else f"\u200b{k}"
        ),
    )
    return ways[int(rng.integers(len(ways)))]


def _zeros(key: str) -> str:
    """Return the number in a key with leading zeros."""
    digits = next((i for i, c in enumerate(key) if c.isdigit()), None)
    return f"{key} " if digits is None else f"{key[:digits]}00{key[digits:]}"


def later_train(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Test rows stand in train: the sides' times overlap."""
    if sides.kind != "time":
        return None
    rows = some(sides.test, rate, rng)
    train = pd.concat([sides.train, sides.test.iloc[rows]], ignore_index=True)
    return Planted(
        sides.having(train, sides.test.drop(sides.test.index[rows]).reset_index(drop=True))
    )


def broken_embargo(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Train rows lie in the gap before the test rows."""
    base = sides.base
    if sides.kind != "time" or not base.embargo or base.time is None:
        return None
    train = sides.train.copy()
    begin = sides.test[base.time].min()
    rows = some(train, rate, rng)
    train.iloc[rows, train.columns.get_loc(base.time)] = _after(
        begin, -base.embargo * rng.uniform(0.1, 0.9, len(rows))
    )
    return Planted(sides.having(train))


def _after(begin: pd.Timestamp, days: np.ndarray) -> np.ndarray:
    """Return moments `days` days later, to the minute."""
    return (begin + pd.to_timedelta((1440 * days).round(), unit="min")).as_unit("us").to_numpy()  # type: ignore[no-any-return]


def late_feature(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """A feature became known after the moment of prediction, in a share of the rows."""
    base = sides.base
    if sides.kind != "time" or base.time is None or not base.numeric:
        return None
    late = []
    for frame in (sides.train, sides.test):
        known = frame[base.time] - pd.to_timedelta(rng.integers(60, 2880, len(frame)), unit="min")
        rows = some(frame, rate, rng)
        known.iloc[rows] = frame[base.time].iloc[rows] + pd.to_timedelta(
            rng.integers(60, 2880, len(rows)), unit="min"
        )
        late.append(frame.assign(known_at=known))
    return Planted(sides.having(*late), available={"known_at": base.numeric[0]})


def overlapping_labels(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """The label of train rows was known only after the test rows began."""
    base = sides.base
    if sides.kind != "time" or base.time is None:
        return None
    frames = []
    for frame in (sides.train, sides.test):
        frames.append(
            frame.assign(label_known=frame[base.time] + pd.Timedelta(days=base.embargo * 0.5))
        )
    rows = some(frames[0], rate, rng)
    begin = sides.test[base.time].min()
    frames[0].iloc[rows, frames[0].columns.get_loc("label_known")] = _after(
        begin, rng.uniform(0.5, 5, len(rows))
    )
    return Planted(sides.having(*frames), label_time="label_known")
