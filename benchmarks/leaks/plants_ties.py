"""Rows that belong together on both sides of a split at random: hidden people, and neighbours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.leaks.plants_labels import both, parted
from benchmarks.leaks.plants_roles import Planted, Rng
from benchmarks.leaks.splitting import Sides

VISITS = 20  # rows of a person
PEOPLE_DIFFER = 0.3  # spread of a label within a person, in spreads between people
KEEP = 0.995  # of the last row's value in the next one
RUN = 120  # rows until the state changes, on average


def hidden_people(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Rows of people without a column that says whose; age, sex and a start value stay the same."""
    if sides.kind != "random":
        return None
    whole, _ = both(sides)
    person, people = _people(len(whole), rng)
    own = {
        "v_17": rng.integers(36, 86, people)[person],
        "v_18": rng.integers(0, 2, people)[person],
        "v_19": rng.normal(28, 10, people).round(2)[person],
    }
    return parted(sides, whole.assign(**own, **_label(sides, whole, person, people, rng)), ())


def measured_people(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Rows of people without a column that says whose; four measurements hardly differ."""
    if sides.kind != "random":
        return None
    whole, _ = both(sides)
    person, people = _people(len(whole), rng)
    core = rng.normal(size=(people, 4))[person] + 0.03 * rng.normal(size=(len(whole), 4))
    own = {f"v_{17 + i}": core[:, i] for i in range(4)}
    return parted(sides, whole.assign(**own, **_label(sides, whole, person, people, rng)), ())


def neighbours(sides: Sides, rate: float, rng: Rng) -> Planted | None:
    """Rows measured and numbered one after the other; four columns and the label move slowly."""
    if sides.kind != "random":
        return None
    whole, _ = both(sides)
    rows = len(whole)
    moment = rng.permutation(rows)
    waves = np.zeros((rows, 4))
    shocks = np.sqrt(1 - KEEP**2) * rng.normal(size=waves.shape)
    for i in range(1, rows):
        waves[i] = KEEP * waves[i - 1] + shocks[i]
    waves += 0.02 * rng.normal(size=waves.shape)
    states = np.cumsum(rng.exponential(RUN, rows)).searchsorted(np.arange(rows))
    own = {f"v_{17 + i}": waves[moment, i] for i in range(4)}
    own[sides.base.id] = np.array([f"m{i:06d}" for i in moment])
    label = _label(sides, whole, states[moment], int(states.max()) + 1, rng)
    return parted(sides, whole.assign(**own, **label), ())


def _people(rows: int, rng: Rng) -> tuple[np.ndarray, int]:
    people = max(2, rows // VISITS)
    return rng.permutation(np.arange(rows) % people), people


def _label(
    sides: Sides, whole: pd.DataFrame, place: np.ndarray, places: int, rng: Rng
) -> dict[str, np.ndarray]:
    """Return a label that the place of a row decides, drawn as often as in the table."""
    values = whole[sides.base.label].to_numpy()
    own = values[rng.integers(0, len(values), places)][place]
    if sides.base.task == "regression":
        own = own + PEOPLE_DIFFER * values.std() * rng.normal(size=len(values))
    return {sides.base.label: own}
