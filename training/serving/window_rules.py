"""Windows of series in the spec of a served model, and in raw rows that an export is tried on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schemas.records import SplitArrays, Statistics, TableSpec
from training.data.arrays.shards import load_arrays


def tensor_inputs(spec: TableSpec, statistics: Statistics) -> dict[str, Any]:
    """Return the parts `tensor` and, if there are any, `windows` of a model's spec."""
    plain = [
        {"name": s.name, "shape": list(s.shape), "dtype": s.dtype}
        for s in statistics.tensor
        if not s.window
    ]
    windows = window_rules(spec, statistics)
    return {"tensor": plain, **({"windows": windows} if windows else {})}


def window_rules(spec: TableSpec, statistics: Statistics) -> list[dict[str, Any]]:
    """Return what `training.data.serving_expressions.series_windows` needs of each window."""
    return [
        {
            "name": stats.name,
            "series": list(window.series),
            "time": spec.time,
            "is_timestamp": spec.time_is_timestamp,
            "channels": list(window.channels),
            "columns": list(window.types),
            "length": window.length,
            "step": window.step,
            "lag": window.lag,
            "fill": list(stats.mean[: len(window.channels)]),
            "values": f"__window_{stats.name}",
            "shape": list(stats.shape),
            "dtype": stats.dtype,
        }
        for stats in statistics.tensor
        if stats.window
        for window in (spec.windows[stats.name],)
    ]


def other_window(rules: Sequence[Mapping[str, Any]], spec: TableSpec) -> str:
    """Return the name of a model's window that these rows do not have alike; empty if none."""
    for rule in rules:
        own = spec.windows.get(rule["name"])
        parts = ("channels", "series", "length", "step", "lag")
        if own is None or any(rule[p] != own.model_dump(mode="json")[p] for p in parts):
            return str(rule["name"])
    return ""


def given_windows(
    statistics: Statistics, arrays: SplitArrays, rows: int | None = None
) -> dict[str, list[Any]]:
    """Return the windows of the first rows of a split as a caller may pass them.

    A list of steps for each row, oldest first, each a list of its channels; NaN is unknown.
    """
    kept = [stats for stats in statistics.tensor if stats.window]
    blocks = load_arrays(arrays) if kept else {}
    found = {}
    for stats in kept:
        values, flags = np.split(np.asarray(blocks[stats.key][:rows], dtype=np.float64), 2, axis=1)
        steps = np.where(flags > 0, values, np.nan).swapaxes(1, 2)  # [N, L, C]
        found[stats.name] = list(steps)
    return found
