"""Checks of the arrays that were written, block by block, before anything trains on them."""

from __future__ import annotations

import numpy as np

from schemas.errors import DataError, IntegrityError, first_few
from schemas.records import Statistics


def check_block(block: np.ndarray, name: str, side: str, statistics: Statistics) -> None:
    """Check some rows of a written array: finite values, weights, class indices.

    Raises:
        DataError: the column and the side of a value that training could not use.
        IntegrityError: something else than a class index was written.
    """
    if name == "label" and statistics.labels:
        _check_labels(block, side, statistics)
        return
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        bad = np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(axis=0))
        which = (
            [s.name for i, s in enumerate(statistics.numeric) if i in bad]
            if name == "numeric"
            else [name]
        )
        raise DataError(
            f"{side} side: values that are not finite in {first_few(which)}; filter those rows,"
            " bound them with min/max, or set normalize.clip"
        )
    if name == "weight" and (block < 0).any():
        raise DataError(
            f"{side} side: {int((block < 0).sum())} weights are negative; weights must be at"
            " least 0"
        )
    if (
        name == "label"
        and statistics.classes
        and not ((block >= 0) & (block < len(statistics.classes))).all()
    ):
        raise IntegrityError(
            f"{side} side: class indices outside 0 to {len(statistics.classes) - 1} after writing;"
            " check the disk"
        )


def _check_labels(block: np.ndarray, side: str, statistics: Statistics) -> None:
    """Check several labels: NaN if unknown, else a finite value or a class index."""
    for index, label in enumerate(statistics.labels):
        known = block[~np.isnan(block[:, index]), index]
        if not np.isfinite(known).all():
            raise DataError(
                f"{side} side: infinite values of the label {label.name!r}; filter those rows, or"
                " bound them with min/max"
            )
        if (
            label.classes
            and not ((known >= 0) & (known < len(label.classes)) & (known == np.floor(known))).all()
        ):
            raise IntegrityError(
                f"{side} side: class indices of {label.name!r} outside 0 to"
                f" {len(label.classes) - 1} after writing; check the disk"
            )
