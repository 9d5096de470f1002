"""Windows of series from the rows of a frame, by the rule that training used.

A row's window holds the last steps of its own series that the frame has, oldest first. What the
frame does not have is unknown, so a caller passes as many earlier rows as the window is long; or
the window itself, as a list of steps, each a list of its channels. N rows, L steps, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

Rule = Mapping[str, Any]
MOST_NAMED = 5
FAR = 1e-3  # of a step, by which a moment may lie beside the grid


def with_windows(
    frame: pd.DataFrame, rules: Sequence[Rule], null_texts: tuple[str, ...] = ()
) -> pd.DataFrame:
    """Return the frame with a column of windows [2C, L] for each rule, under its `values`.

    Args:
        frame: N rows in any order, with the columns of series, time and channels, or windows.
        rules: `name`, `series`, `time`, `is_timestamp`, `channels`, `length`, `step`, `lag`,
            `fill` (what stands for an unknown value of each channel) and `values`.
        null_texts: texts that meant null in the training source.

    Raises:
        ValueError: a column is missing, a moment is unknown, twice in a series or beside the grid,
            or a value is no number; with column and rows.
    """
    made = {}
    for rule in rules:
        given = rule["name"] in frame.columns
        steps = _given(frame[rule["name"]], rule) if given else _found(frame, rule, null_texts)
        known = np.isfinite(steps)
        fill = np.asarray(rule["fill"], dtype=np.float64)
        # [N, L, C] twice → [N, 2C, L]
        block = np.concatenate([np.where(known, steps, fill), known], axis=2).swapaxes(1, 2)
        made[rule["values"]] = list(np.ascontiguousarray(block, dtype=np.float32))
    return frame.assign(**{name: pd.Series(v, frame.index, object) for name, v in made.items()})


def columns_of(rule: Rule) -> list[str]:
    """Return the columns that a window is made of."""
    return list(dict.fromkeys([*rule["series"], rule["time"], *rule["channels"]]))


def _given(cells: pd.Series, rule: Rule) -> np.ndarray:
    """Return windows that the frame has, float64 [N, L, C]; shorter ones begin with unknown."""
    length, channels = rule["length"], len(rule["channels"])
    found = np.full((len(cells), length, channels), np.nan)
    wrong = np.zeros(len(cells), dtype=bool)
    for row, cell in enumerate(cells):
        steps = [] if cell is None or cell is pd.NA else list(cell)
        try:
            values = np.array(
                [[np.nan if v is None else v for v in step] for step in steps], dtype=np.float64
            ).reshape(-1, channels)
            wrong[row] = len(values) != len(steps)
        except (TypeError, ValueError):
            wrong[row] = True
            continue
        if len(values) and not wrong[row]:
            found[row, -len(values) :] = values[-length:]
    names = ", ".join(rule["channels"])
    what = f"expected a list of steps, oldest first, each [{names}]"
    _refuse(rule["name"], what, wrong, cells.index)
    return found


def _found(frame: pd.DataFrame, rule: Rule, null_texts: tuple[str, ...]) -> np.ndarray:
    """Return windows over the rows of the frame, float64 [N, L, C]."""
    absent = [name for name in columns_of(rule) if name not in frame.columns]
    if absent:
        listed = ", ".join(map(repr, absent))
        raise ValueError(
            f"missing columns: {listed}; pass them for each row of its history, or the windows"
            f" themselves as {rule['name']!r}"
        )
    series = _numbers_of_series(frame, rule)
    time = _times(frame[rule["time"]], rule)
    order = np.lexsort((time, series))
    series, time = series[order], time[order]
    place = _places(series, time, rule, frame.index[order])
    values = np.stack([_channel(frame[c], null_texts)[order] for c in rule["channels"]], axis=1)
    values = np.concatenate([values, np.full((1, values.shape[1]), np.nan)])  # the unknown step
    back = np.arange(rule["length"], 0, -1)
    wanted = place[:, None] + 1 - rule["lag"] - back  # [N, L]
    at = np.minimum(np.searchsorted(place, wanted), max(0, len(place) - 1))
    hit = place[at] == wanted if len(place) else np.zeros(wanted.shape, dtype=bool)
    found = np.empty((len(place), rule["length"], values.shape[1]))
    found[order] = values[np.where(hit, at, -1)]
    return found


def _numbers_of_series(frame: pd.DataFrame, rule: Rule) -> np.ndarray:
    """Return the number of each row's series [N]."""
    found = np.zeros(len(frame), dtype=np.int64)
    for name in rule["series"]:
        codes, values = pd.factorize(frame[name])
        _refuse(name, "nulls, which are no series,", codes < 0, frame.index)
        found = pd.factorize(found * (len(values) + 1) + codes)[0]
    return found


def _times(values: pd.Series, rule: Rule) -> np.ndarray:
    """Return moments float64 [N]: seconds of timestamps, else numbers as they are."""
    _refuse(rule["time"], "nulls, which are no moment,", values.isna().to_numpy(), values.index)
    if not rule["is_timestamp"]:
        return np.asarray(pd.to_numeric(values), dtype=np.float64)
    if values.dtype.kind in "iuf":  # as in JSON
        return np.asarray(values, dtype=np.float64) / 1000
    moments = pd.to_datetime(values, utc=True).astype("datetime64[us, UTC]")
    return np.asarray(moments.astype("int64"), dtype=np.float64) / 1e6


def _places(series: np.ndarray, time: np.ndarray, rule: Rule, index: pd.Index) -> np.ndarray:
    """Return the place of ordered rows on one line [N], on which no window reaches two series."""
    is_first = np.diff(series, prepend=-1) != 0
    twice = ~is_first & (np.diff(time, prepend=np.nan) == 0)
    _refuse(rule["time"], "a moment that its series has twice", twice, index)
    begins = np.flatnonzero(is_first)
    sizes = np.diff(begins, append=len(time))
    if rule["step"] is None:
        place = np.arange(len(time)) - np.repeat(begins, sizes)
    else:
        steps = (time - np.repeat(time[begins], sizes)) / rule["step"]
        place = np.rint(steps).astype(np.int64)
        what = f"moments beside a grid of step {rule['step']:g}"
        _refuse(rule["time"], what, np.abs(steps - place) > FAR, index)
    if not len(place):
        return place
    lengths = place[np.append(begins[1:], len(place)) - 1] + 1 + rule["length"] + rule["lag"]
    return np.asarray(place + np.repeat(np.cumsum(lengths) - lengths, sizes))


def _channel(values: pd.Series, null_texts: tuple[str, ...]) -> np.ndarray:
    """Return a channel as float64 [N]; null and what is not finite is NaN."""
    if values.dtype.kind in "biuf":
        return np.asarray(values, dtype=np.float64)
    given = values.where(~values.isin(null_texts), None) if null_texts else values
    found = pd.to_numeric(given.astype(object), errors="coerce")
    bad = (found.isna() & given.notna()).to_numpy()
    _refuse(str(values.name), "something else than numbers", bad, values.index)
    return np.asarray(found, dtype=np.float64)


def _refuse(column: str, problem: str, bad: np.ndarray, index: pd.Index) -> None:
    """Refuse bad rows; name the column, how many rows, and the first index labels."""
    if not bad.any():
        return
    shown = ", ".join(map(str, index[bad][:MOST_NAMED]))
    more = ", …" if bad.sum() > MOST_NAMED else ""
    raise ValueError(
        f"column {column!r}: {problem} in {int(bad.sum())} rows (index {shown}{more}); fix or leave"
        " out those rows"
    )
