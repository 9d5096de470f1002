"""Tables whose rows belong together, and honest ones that only look so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from tests.training.data.leakage.planted import shares, sides_for
from training.data.leakage.dependence import dependence_results

Rng = np.random.Generator
Sides = dict[str, pd.DataFrame]


def keyed(
    features: pd.DataFrame,
    label: Any,
    *,
    numbered: bool = False,
    time: Any = None,
    group: Any = None,
) -> pd.DataFrame:
    """The table with id, group and time; ids are numbered in the order of the rows if asked."""
    rows = len(features)
    order = np.arange(rows) if numbered else np.random.default_rng(rows).permutation(rows)
    frame = features.reset_index(drop=True).assign(y=np.asarray(label))
    frame.insert(0, "__id", [f"r{i:06d}" for i in order])
    frame.insert(1, "__group", None if group is None else [f"g{g}" for g in group])
    frame.insert(2, "__time", np.nan if time is None else time)
    return frame


def at_random(frame: pd.DataFrame, seed: int = 0) -> Sides:
    """Rows at random on the sides, whatever they belong to."""
    place = np.random.default_rng(seed).permutation(len(frame)) / len(frame)
    return {
        "train": frame[place < 0.7],
        "val": frame[(place >= 0.7) & (place < 0.85)],
        "test": frame[place >= 0.85],
    }


def dependence(parts: Sides, task: str, kind: str | None = None, **checks: Any) -> Any:
    """The result of the check, under another kind of split if one is given."""
    with sides_for(parts, task, **checks) as sides:
        if kind:
            tree = sides.declaration.model_dump(mode="json", exclude_unset=True)
            declaration = type(sides.declaration).model_validate({**tree, "split": {"kind": kind}})
            sides = sides._replace(declaration=declaration)
        (result,) = dependence_results(sides)
    return result


def people(rng: Rng, people: int = 42, visits: int = 40) -> tuple[pd.DataFrame, Any, Any]:
    """Repeated measurements of people; age, sex and nearly all of the label are theirs."""
    rows, person = people * visits, np.repeat(np.arange(people), visits)
    day = rng.uniform(0, 180, rows)
    frame = pd.DataFrame(
        {
            "age": rng.integers(36, 86, people)[person].astype(float),
            "sex": rng.integers(0, 2, people)[person].astype(float),
            "day": day,
        }
    )
    for i in range(5):
        own = 0.3 * rng.normal(size=people)[person]
        frame[f"voice{i}"] = np.exp(0.5 * rng.normal(size=rows) + own)
    slope = rng.normal(0, 0.02, people)[person]
    label = rng.normal(28, 10, people)[person] + slope * day + 0.3 * rng.normal(size=rows)
    return frame, label, person


def visits(
    rng: Rng, people: int = 100, each: int = 8, noise: float = 0.0, other: int = 4
) -> tuple[pd.DataFrame, Any, Any]:
    """Rows of hidden people: four columns are theirs up to noise, the label is theirs by luck."""
    person = np.repeat(np.arange(people), each)
    core = rng.normal(size=(people, 4))[person]
    frame = pd.DataFrame(core + noise * rng.normal(size=core.shape), columns=list("abcd"))
    for i in range(other):
        frame[f"n{i}"] = rng.normal(size=len(person))
    return frame, rng.integers(0, 2, people)[person], person


def waves(rng: Rng, rows: int = 3000, width: int = 6) -> tuple[pd.DataFrame, Any]:
    """Measurements in the order of time, each hardly different from the last, and a state."""
    keep = 0.995
    shocks = np.sqrt(1 - keep**2) * rng.normal(size=(rows, width))
    wave = np.zeros((rows, width))
    for i in range(1, rows):
        wave[i] = keep * wave[i - 1] + shocks[i]
    switches = np.cumsum(rng.exponential(120, rows)).astype(int)
    state = np.searchsorted(switches, np.arange(rows)) % 2
    frame = pd.DataFrame(wave, columns=[f"wave{i}" for i in range(width)])
    return frame + 0.02 * rng.normal(size=wave.shape), state


def plain(rng: Rng, rows: int, width: int, regression: bool) -> tuple[pd.DataFrame, Any]:
    """Independent rows: measured and coarse columns, and categories that rightly say something."""
    frame = pd.DataFrame(rng.normal(size=(rows, width)), columns=[f"x{i}" for i in range(width)])
    signal = frame.to_numpy() @ rng.normal(size=width) + 2 * np.sin(2 * frame["x0"].to_numpy())
    for i in range(int(rng.integers(0, 4))):
        values = int(rng.integers(3, 70))
        frame[f"k{i}"] = rng.integers(0, values, rows).astype(float)
        signal = signal + rng.normal() * np.sqrt(frame[f"k{i}"].to_numpy())
    for i in range(int(rng.integers(0, 3))):
        values = int(rng.integers(5, max(6, rows // 4)))
        city = rng.integers(0, values, rows)
        frame[f"city{i}"] = np.array([f"c{v}" for v in city])
        signal = signal + rng.choice([0.0, 0.5, 1.0, 2.0]) * rng.normal(size=values)[city]
    signal = rng.choice([0.5, 1.0, 3.0, 8.0]) * signal / signal.std() + rng.normal(size=rows)
    if regression:
        return frame, signal
    return frame, (signal > np.quantile(signal, rng.uniform(0.5, 0.9))).astype(int)


def honest_cases(count: int) -> Iterator[tuple[str, Sides, str]]:
    """Honest splits of plain, grouped and ordered tables: what it is, its sides, its task."""
    for number in range(count):
        rng = np.random.default_rng(9000 + number)
        task = "regression" if number % 2 else "binary"
        rows, width = int(rng.choice([200, 500, 1500, 4000])), int(rng.integers(2, 12))
        kind = ("plain", "plain", "groups", "ordered", "walks")[number // 2 % 5]
        frame, label = plain(rng, rows, width, task == "regression")
        if kind == "plain":
            table = keyed(frame, label, numbered=bool(number % 3))
            yield kind, at_random(table, number), task
        elif kind == "groups":
            yield kind, shares(_grouped(rng, frame, label, task), number), task
        else:
            yield kind, shares(_ordered(rng, frame, label, task, kind == "walks"), number), task


def _grouped(rng: Rng, frame: pd.DataFrame, label: Any, task: str) -> pd.DataFrame:
    """Columns and a share of the label that belong to the group, which the split keeps whole."""
    groups = max(20, len(frame) // int(rng.integers(2, 15)))
    group = np.sort(rng.integers(0, groups, len(frame)))
    own = rng.normal(size=groups)[group]
    frame = frame.assign(age=rng.integers(18, 90, groups)[group].astype(float), own=own)
    if task == "regression":
        label = label + rng.choice([0, 1, 5]) * label.std() * rng.normal(size=groups)[group]
    else:
        label = np.where(rng.random(groups)[group] < 0.5, rng.integers(0, 2, groups)[group], label)
    return keyed(frame, label, numbered=True, group=group)


def _ordered(rng: Rng, frame: pd.DataFrame, label: Any, task: str, walks: bool) -> pd.DataFrame:
    rows = len(frame)
    walk = np.cumsum(rng.normal(size=(rows, 3)), axis=0)
    if walks:
        frame = frame.assign(walk0=walk[:, 0], walk1=walk[:, 1])
    moved = label + 0.1 * label.std() * walk[:, 2] if task == "regression" else label
    if task == "binary" and walks:
        moved = (walk[:, 2] + rng.normal(size=rows) > np.median(walk[:, 2])).astype(int)
    return keyed(frame, moved, numbered=True, time=np.arange(rows) * 3600.0)
