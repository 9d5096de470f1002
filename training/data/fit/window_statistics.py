"""Statistics of windows: mean and deviation of each channel over the steps of train's windows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import Declaration
from schemas.digest import verify
from schemas.errors import IntegrityError, LeakageError
from schemas.references import TableSpec, TrainTable, WindowSpec
from schemas.statistics import TensorStats

LEAST_SPREAD = 1e-7  # of the largest value; less is rounding


def fit_windows(
    train: TrainTable, spec: TableSpec, declaration: Declaration
) -> tuple[list[TensorStats], dict[str, str]]:
    """Return statistics of each window, and the reason for each useless one.

    Each step that some window of train holds counts once; unknown values do not count.

    Raises:
        LeakageError: the steps are not those of train.
        IntegrityError: a file was changed, or the table came without its windows.
    """
    found, useless = [], {}
    for name, window in spec.windows.items():
        if name not in train.histories:
            raise IntegrityError(f"{train.file.path}: without window {name!r}; split again")
        path = verify(train.histories[name].steps)
        side = (pq.read_schema(path).metadata or {}).get(b"bulkhead.side", b"no side").decode()
        if side != "train":
            raise LeakageError(f"windows are fitted on train only: {path} says it holds {side!r}")
        means, stds, varies = _moments(pq.read_table(path, columns=list(window.channels)), window)
        if not varies:
            useless[name] = "no channel varies"
        flags = len(window.channels)
        found.append(
            TensorStats(
                name=name,
                shape=(2 * flags, window.length),
                dtype="float32",
                mean=(*means, *[0.0] * flags),
                std=(*stds, *[1.0] * flags),
                encoder=declaration.data.windows[name].encoder,
                window=window.channels,
            )
        )
    return found, useless


def _moments(table: pa.Table, window: WindowSpec) -> tuple[list[float], list[float], bool]:
    """Return mean and deviation of each channel, and whether any varies."""
    means, stds, varies = [], [], False
    for channel in window.channels:
        values = table[channel].to_numpy()
        values = values[np.isfinite(values)]
        mean, std = (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)
        has_spread = len(values) > 0 and std > LEAST_SPREAD * float(np.abs(values).max())
        means.append(mean)
        stds.append(std if has_spread else 1.0)
        varies |= has_spread
    return means, stds, varies
