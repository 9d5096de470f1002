"""The rows that preflight looks at: few, spread over the labels, never twice the same inputs.

B rows; a batch is array name → tensor, as the network takes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.errors import PreflightError
from training.objectives.targets import Targets

TARGETS = ("label", "weight")
CANDIDATES = 2048


@dataclass(frozen=True)
class Probe:
    """A batch of inputs with its labels [B], copied from the train arrays."""

    inputs: dict[str, Tensor]
    label: Tensor

    def __len__(self) -> int:
        return len(self.label)

    def first(self, rows: int) -> Probe:
        """The first rows alone."""
        return Probe({name: t[:rows] for name, t in self.inputs.items()}, self.label[:rows])


def first_rows(arrays: dict[str, np.ndarray], rows: int) -> Probe:
    """The first rows of a side: a random sample, because rows lie in the order of a hash."""
    return _take(arrays, np.arange(min(rows, len(arrays["label"]))))


def spread_rows(arrays: dict[str, np.ndarray], rows: int, labels: Targets = ()) -> Probe:
    """Up to so many rows with pairwise different inputs, spread over the labels.

    Classes take turns, so that any first few rows are balanced too; values are taken at equal steps
    of their order. Of several labels a row takes the turn of the rarest class that it has (a value:
    above or below its mean). Where rows share their inputs only the first is kept: no batch holds a
    contradiction that nobody could learn.

    Args:
        arrays: of the train side.
        rows: most rows.
        labels: of a task of several labels.

    Raises:
        PreflightError: fewer than two rows have different inputs.
    """
    label = rarest_class(arrays["label"], labels) if labels else arrays["label"]
    candidates = _distinct(
        arrays,
        _by_class(label) if label.dtype.kind == "i" else np.arange(min(CANDIDATES, len(label))),
    )
    if len(candidates) < 2:
        raise PreflightError(
            f"all of the {len(label)} train rows looked at have the same inputs; nothing can be"
            " learned from them: declare features that differ between rows"
        )
    chosen = (
        _take_turns(label, candidates)[:rows]
        if label.dtype.kind == "i"
        else candidates[_interleaved(label[candidates], rows)]
    )
    return _take(arrays, chosen)


def rarest_class(label: np.ndarray, labels: Targets) -> np.ndarray:
    """For each row [N] of several labels [N, L] a number of the rarest class that it has; -1 for a
    row without any.
    """
    codes = np.full(label.shape, -1, dtype=np.int64)
    start = 0
    for i, target in enumerate(labels):
        known = ~np.isnan(label[:, i])
        codes[known, i] = start + (
            label[known, i] > 0 if target.kind == "regression" else label[known, i]
        ).astype(np.int64)
        start += max(2, len(target.statistics.classes))
    # the last stands for -1
    counts = np.append(np.bincount(codes[codes >= 0], minlength=start), len(codes) + 1)
    return np.asarray(
        np.take_along_axis(codes, counts[codes].argmin(axis=1)[:, None], axis=1)[:, 0]
    )


def _by_class(label: np.ndarray) -> np.ndarray:
    """The first rows of each class, as many as fit, in row order."""
    classes = np.unique(label)
    each = max(1, CANDIDATES // len(classes))
    return np.sort(np.concatenate([np.flatnonzero(label == c)[:each] for c in classes]))


def _distinct(arrays: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Those of the rows whose inputs no earlier one has."""
    parts = [
        np.ascontiguousarray(a[rows]).reshape(len(rows), -1).view(np.uint8)
        for name, a in arrays.items()
        if name not in TARGETS
    ]
    _, first = np.unique(np.concatenate(parts, axis=1), axis=0, return_index=True)
    return rows[np.sort(first)]


def _take_turns(label: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows ordered so that classes alternate: first of each class, second of each class, ..."""
    order = np.argsort(label[rows], kind="stable")
    ordered = label[rows][order]
    turn = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return rows[order][np.argsort(turn, kind="stable")]


def _interleaved(values: np.ndarray, rows: int) -> np.ndarray:
    """Positions of values at equal steps of their order; the ends come first, so that any first few
    differ much.
    """
    order = np.argsort(values, kind="stable")
    steps = np.unique(np.linspace(0, len(values) - 1, min(rows, len(values))).round().astype(int))
    middle_out = np.argsort(-np.abs(steps - (len(values) - 1) / 2), kind="stable")
    return np.asarray(order[steps[middle_out]])


def _take(arrays: dict[str, np.ndarray], rows: np.ndarray) -> Probe:
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(a[rows]))
        for name, a in arrays.items()
        if name != "weight"
    }
    return Probe({name: t for name, t in tensors.items() if name != "label"}, tensors["label"])
