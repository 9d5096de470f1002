"""Random tables of series with gaps, nulls and short histories, and their windows by pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.training.kind_cases import Prepared, prepared

COLUMNS: dict[str, Any] = {
    "row": "id",
    "unit": "group",
    "at": "time",
    "y": "label",
    "x": "numeric",
    "z": "ignore",
}
WINDOW: dict[str, Any] = {
    "columns": ["x", "z"],
    "look_back": 5,
    "encoder": {"kind": "tcn", "width": 4, "size": 3},
}
GRID = {"look_back": 6.0, "step": 2.0}
HOURS = {"look_back": "6h", "step": "2h"}
BY_TIME = {"kind": "time"}


def series(units: int = 4, rows: int = 30, seed: int = 0, clock: bool = False) -> pd.DataFrame:
    """Rows of some units at multiples of 2, with gaps and nulls, in no order."""
    rng = np.random.default_rng(seed)
    parts = []
    for unit in range(units):
        number = min(rows, int(rng.integers(1, 4))) if unit == 0 else rows
        at = np.sort(rng.choice(rows + rows // 2, number, replace=False)) * 2.0
        x = rng.normal(size=number).cumsum()
        parts.append(pd.DataFrame({"unit": f"u{unit}", "at": at, "x": x}))
    frame = pd.concat(parts, ignore_index=True)
    frame["z"] = np.where(rng.random(len(frame)) < 0.2, np.nan, rng.normal(3, 2, len(frame)))
    past = frame.groupby("unit").x.shift(1).fillna(0)
    frame["y"] = (past + rng.normal(0, 0.3, len(frame)) > 0).astype(int)
    if clock:
        frame["at"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(frame["at"], unit="h")
        frame["at"] = frame["at"].astype("datetime64[us]")
    frame.insert(0, "row", [f"r{i:04d}" for i in range(len(frame))])
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def prepared_series(
    folder: Path, frame: pd.DataFrame, window: dict[str, Any] | None = None, **options: Any
) -> Prepared:
    """Prepare a table with one window, `past`."""
    data = {"windows": {"past": WINDOW | (window or {})}} | options.pop("data", {})
    columns = options.pop("columns", COLUMNS)
    options = {"split": BY_TIME, "checks": {"constant_features": "drop"}} | options
    return prepared(folder, frame, columns, data=data, **options)


def slow_windows(frame: pd.DataFrame, window: dict[str, Any]) -> dict[str, np.ndarray]:
    """Windows of each row [L, C] by loops, NaN where unknown."""
    lag, step = window.get("lag", 0), window.get("step")
    unknown = [np.nan] * len(window["columns"])
    found = {}
    for _, own in frame.sort_values("at").groupby("unit"):
        values, at = own[window["columns"]].to_numpy(dtype=float).tolist(), list(own["at"])
        known = dict(enumerate(values)) if step is None else dict(zip(at, values, strict=True))
        for place, row in enumerate(own["row"]):
            moment, one = (place, 1) if step is None else (at[place], delta(step))
            back = range(lag + length_of(window) - 1, lag - 1, -1)
            found[row] = np.array([known.get(moment - steps * one, unknown) for steps in back])
    return found


def delta(step: float | str) -> Any:
    """A step as it is added to times."""
    return pd.Timedelta(step) if isinstance(step, str) else step


def length_of(window: dict[str, Any]) -> int:
    """Number of steps of a window."""
    if window.get("step") is None:
        return int(window["look_back"])
    return round(delta(window["look_back"]) / delta(window["step"]))
