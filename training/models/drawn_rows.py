"""Rows drawn from the statistics of train, by which a network can initialise its weights.

Shapes: N rows, D numeric columns of the statistics, W width of the model's numeric input, C
categorical columns.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from schemas.records import NumericStats, Statistics
from training.data.arrays.apply import transform_numeric


def drawn_rows(statistics: Statistics, rows: int) -> dict[str, Tensor]:
    """Return a batch of drawn rows as the body of a network gets them.

    Each column is drawn for itself and then transformed as train is, so that the rows vary as much
    as those of train: `numeric` float32 [N, W], `categorical` int64 [N, C], `tensor_<column>`
    and the vectors of bags and encoders standard normal. They follow from the statistics and
    torch's random state on the CPU.
    """
    batch = {}
    if statistics.numeric:
        raw = np.stack([_numbers(column, statistics.rows, rows) for column in statistics.numeric])
        batch["numeric"] = torch.from_numpy(transform_numeric(raw.T, statistics))
    if statistics.categorical:
        # codes: 0 unknown or rare, 1 null, then the values
        counts = [(c.rare_rows, c.nulls, *c.counts) for c in statistics.categorical]
        batch["categorical"] = torch.stack(
            [
                torch.multinomial(torch.tensor(each, dtype=torch.float64), rows, replacement=True)
                for each in counts
            ],
            dim=1,
        )
    batch |= {
        t.key: torch.randn(rows, *(t.shape if t.encoder is None else (t.encoder.size,)))
        for t in statistics.tensor
    }
    return batch | {b.key: torch.randn(rows, b.size) for b in statistics.bags}


def _numbers(column: NumericStats, train_rows: int, rows: int) -> np.ndarray:
    """Return raw values [N] of a column; NaN is null, as often as in train."""
    rng = np.random.default_rng(int(torch.randint(2**62, ())))
    if column.knots:
        levels = np.linspace(0.0, 1.0, len(column.knots))
        values = np.interp(rng.random(rows), levels, column.knots)
    else:
        values = _bounded(column, rng, rows)
    if column.fill is None or not column.nulls:
        return values
    return np.where(rng.random(rows) < column.nulls / train_rows, np.nan, values)


def _bounded(column: NumericStats, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Return values [N] of the beta distribution with the column's mean, deviation and range.

    It is skewed as a column with one long tail is, and has two heaps where most values lie at the
    ends. Without those statistics: normal.
    """
    mean, std, low, high = column.mean, column.std, column.min, column.max
    if mean is None or std is None or low is None or high is None:
        return column.center + column.scale * rng.standard_normal(rows)
    width = high - low
    if not (std > 0 and low < mean < high and np.isfinite(width)):
        return np.full(rows, mean)
    share, deviation = (mean - low) / width, std / width
    # 0 for values at both ends alone; a column of few rows may round below
    size = max(share * (1 - share) / deviation**2 - 1, 1e-3)
    drawn = rng.beta(share * size, (1 - share) * size, rows)
    return np.clip(low + drawn * width, low, high)
