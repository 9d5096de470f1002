"""Baselines of a series: the label's last value in a row's window, and that of a season ago.

They are fitted on nothing but the train mean, which stands for a label that no step has. N rows, L
steps of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from schemas.config import Declaration
from schemas.records import Statistics
from schemas.statistics import TensorStats

LAST, SEASONAL = "last_value", "seasonal_value"


class Past(NamedTuple):
    """Window that holds the label, the label's place among its channels, and a season's place.

    `step`: of the window, where the label of the same season lies; None: no season is declared.
    """

    window: TensorStats
    channel: int
    step: int | None


def find_past(declaration: Declaration, statistics: Statistics) -> Past | None:
    """Return where the past of a single regression label is; None without a window of it."""
    if declaration.task.kind != "regression":
        return None
    (label,) = declaration.data.named("label")
    for stats in statistics.tensor:
        if label in stats.window:
            config = declaration.data.windows[stats.name]
            step = config.seasonal_step(declaration.data.ahead)
            return Past(stats, stats.window.index(label), step)
    return None


def past_baselines(declaration: Declaration, statistics: Statistics) -> tuple[str, ...]:
    """Return the baselines that the label's past allows; they need not be declared."""
    past = find_past(declaration, statistics)
    if past is None:
        return ()
    return (LAST,) if past.step is None else (LAST, SEASONAL)


def last_values(
    declaration: Declaration, statistics: Statistics, is_seasonal: bool
) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function of a split's arrays that gives predictions float64 [N] in label units."""
    past = find_past(declaration, statistics)
    if past is None:
        raise RuntimeError("a baseline of the last value without a window that holds the label")

    def predict(rows: Mapping[str, np.ndarray]) -> np.ndarray:
        block, width = rows[past.window.key], len(past.window.window)
        number, length = len(rows["label"]), past.window.shape[1]
        found = np.full(number, past.window.mean[past.channel])
        for begin in range(0, number, 4096):
            part = np.asarray(block[begin : begin + 4096])
            values, known = part[:, past.channel], part[:, width + past.channel] > 0
            place = np.where(known, np.arange(length), -1).max(axis=1)
            if is_seasonal and past.step is not None:
                place = np.where(known[:, past.step], past.step, place)
            own = np.take_along_axis(values, np.maximum(place, 0)[:, None], axis=1)[:, 0]
            some = found[begin : begin + len(part)]
            some[place >= 0] = own[place >= 0]
        return found

    return predict
