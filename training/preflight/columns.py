"""Effect of single columns on scores: unread columns, interchangeable columns and coarse values.

Columns are changed one by one, in eval mode. Rows must not mix, because many changed batches go
through the network at once.

V changed batches, R rows, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from schemas.records import Statistics
from training.models.shape import FIRST_VALUE, NULL, UNKNOWN, ModelShape
from training.preflight.subject import copied, scored, shifted

FIRST_ROWS = (1, 8)  # rows to test columns on; columns without any effect are tested on all rows
FEW_ROWS = 3  # rows for swaps and value tests
AT_ONCE = 256  # rows per forward pass
NOTHING = 2e-7  # rounding error of an input that cancels out, relative to the scores
# relative to the scores: largest rounding error; least effect of a column in a swap test
ROUNDING, EFFECT = 1e-6, 3e-4
# tested values of a column; least number of distinct ones; distance in standard deviations
POINTS, DISTINCT, APART = 16, 12, 0.01
FLAT = 0.06  # share of a column's effect that counts as flat on both ends of a step
LOST = 0.45  # share of equal values at one end
COLUMNS = 6  # most columns with a value test
SATURATED, LEAST_ROWS = 0.25, 9  # share of rows at a bound; least number of rows
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Column:
    """An input: a column of `numeric` or `categorical`, or a whole tensor."""

    key: str
    index: int
    name: str


@dataclass(frozen=True)
class Levels:
    """Number of 16 column values that the scores distinguish, as groups of equal size. `lost` is
    true if one group contains nearly half of them at one end.
    """

    count: float
    lost: bool


def input_columns(statistics: Statistics, shape: ModelShape) -> list[Column]:
    """Return the inputs of a network by name. Missing-value indicators follow the numeric columns.
    Categorical columns have at least one known value.
    """
    numeric = [
        *(s.name for s in statistics.numeric),
        *(f"{s.name} is missing" for s in statistics.numeric if s.indicator),
    ]
    columns = [Column("numeric", i, name) for i, name in enumerate(numeric)]
    columns += [
        Column("categorical", i, s.name)
        for i, s in enumerate(statistics.categorical)
        if shape.categories[i] > FIRST_VALUE
    ]
    columns += [Column(key, 0, key.removeprefix("tensor_")) for key in shape.tensors]
    return columns + [Column(key, 0, key.removeprefix("bag_")) for key in shape.bags]


def moved(network: nn.Module, rows: Batch, changed: Sequence[Batch]) -> Tensor:
    """Return the score change [V, R, K] of each change, exactly 0 without an effect.

    Changed rows are compared with unchanged ones at the same place of a batch of equal length,
    because rounding may depend on both.
    """
    return scores_of(network, changed) - scores_of(network, [rows] * len(changed))


def scores_of(network: nn.Module, batches: Sequence[Batch]) -> Tensor:
    """Return the scores [V, R, K] of batches with equal numbers of rows."""
    count = len(next(iter(batches[0].values())))
    size = max(1, AT_ONCE // count)
    parts = [
        scored(network, _stacked(batches[start : start + size]))
        for start in range(0, len(batches), size)
    ]
    return torch.cat(parts).unflatten(0, (len(batches), count))


def _stacked(batches: Sequence[Batch]) -> Batch:
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def _first(rows: Batch, count: int) -> Batch:
    return {name: t[:count] for name, t in rows.items()}


def _with(rows: Batch, column: Column, values: Tensor | float) -> Batch:
    """Return the rows with other values in one column, or with another tensor."""
    if column.key not in ("numeric", "categorical"):
        return {**rows, column.key: torch.as_tensor(values)}
    changed = rows[column.key].clone()
    changed[:, column.index] = torch.as_tensor(values).to(changed.dtype)
    return {**rows, column.key: changed}


def _values(rows: Batch, column: Column) -> Tensor:
    values = rows[column.key]
    return values[:, column.index] if column.key in ("numeric", "categorical") else values


def unread_columns(
    network: nn.Module, columns: list[Column], shape: ModelShape, rows: Batch
) -> list[Column]:
    """Return the columns that move no score by more than rounding, for several kinds of changes."""
    scale = 1 + float(scored(network, _first(rows, FEW_ROWS)).abs().max())
    ways: tuple[Callable[[Tensor], Tensor], ...] = (
        shifted,
        lambda v: v + 2,
        lambda v: v - 2,
        lambda v: v * 0,
    )
    waiting = list(columns)
    for number, way in enumerate(ways):
        part = _first(rows, FIRST_ROWS[number]) if number < len(FIRST_ROWS) else rows
        changed = []
        for column in waiting:
            values = _values(part, column)
            if column.key == "categorical":
                other = (values + number + 1) % shape.categories[column.index]
            elif column.key in shape.bags:
                other = (values + number + 1) % shape.bags[column.key].codes
            else:
                other = way(values)
            changed.append(_with(part, column, other))
        by = moved(network, part, changed).flatten(1).abs().amax(1).tolist() if changed else []
        waiting = [c for c, moves in zip(waiting, by, strict=True) if moves <= NOTHING * scale]
    return waiting


def interchangeable(
    network: nn.Module, columns: list[Column], shape: ModelShape, rows: Batch
) -> list[frozenset[Column]]:
    """Return groups of columns with the same key that can be swapped without a change of scores.

    All columns get one value, then one column at a time gets another. Only columns with equal
    scores can be alike, and these are swapped.
    """
    if len(columns) < 2:
        return []
    key, scale = columns[0].key, 1 + float(scored(network, rows).abs().max())
    rows = _first(rows, FEW_ROWS)
    common = min(shape.categories[c.index] for c in columns) if key == "categorical" else 0
    settings = (
        [(FIRST_VALUE, code) for code in (NULL, UNKNOWN, FIRST_VALUE + 1) if code < common]
        if common
        else [(0.3, -1.1), (-0.7, 1.6)]
    )
    groups = [columns]
    for number, (base, other) in enumerate(settings):
        level = copied(rows if number else _first(rows, 1))
        level[key][:, [c.index for c in columns]] = base
        before = scored(network, level).flatten()
        after = [
            scores_of(network, [_with(level, column, other) for column in group]).flatten(1)
            for group in groups
        ]
        groups = [
            [group[i] for i in alike]
            for group, scores in zip(groups, after, strict=True)
            for alike in _alike(scores, ROUNDING * scale)
            if float((scores[alike[0]] - before).abs().max()) > EFFECT * scale
        ]
    return [
        frozenset(part)
        for group in groups
        for part in _confirmed(network, group, common, rows, ROUNDING * scale)
    ]


def _alike(scores: Tensor, tolerance: float) -> list[list[int]]:
    """Return groups of two or more equal rows of scores [V, N]."""
    groups = list[list[int]]()
    for i, row in enumerate(scores):
        same = next(
            (group for group in groups if float((scores[group[0]] - row).abs().max()) <= tolerance),
            None,
        )
        if same is None:
            groups.append([i])
        else:
            same.append(i)
    return [group for group in groups if len(group) > 1]


def _confirmed(
    network: nn.Module, group: list[Column], common: int, rows: Batch, tolerance: float
) -> list[list[Column]]:
    """Return the parts of a group in which each column can be swapped with the next one."""
    pairs = list(pairwise(group))
    swapped, plain = (
        scores_of(network, [_swapped(rows, a, b, common, swap) for a, b in pairs])
        for swap in (True, False)
    )
    parts = [[group[0]]]
    for (_, column), moves in zip(
        pairs, (swapped - plain).flatten(1).abs().amax(1).tolist(), strict=True
    ):
        if moves <= tolerance:
            parts[-1].append(column)
        else:
            parts.append([column])
    return [part for part in parts if len(part) > 1]


def _swapped(rows: Batch, a: Column, b: Column, common: int, swap: bool = True) -> Batch:
    """Return the rows with two columns swapped. Codes are first mapped to the `common` codes of
    both.
    """
    first, second = (_values(rows, c) % common if common else _values(rows, c) for c in (a, b))
    return _with(_with(rows, a, second if swap else first), b, first if swap else second)


def told_apart(
    network: nn.Module, columns: list[Column], rows: Batch, sample: Batch
) -> dict[Column, Levels]:
    """Count how many of 16 quantiles of a numeric column the scores distinguish, for a few columns.
    The count is the best one over a few rows.

    Columns with few distinct values or hardly any effect on the scores are left out.
    """
    able = {
        column: points
        for column in columns
        if (points := _points(_values(sample, column))) is not None
    }
    rows, found = _first(rows, FEW_ROWS), {}
    scale = 1 + float(scored(network, rows).abs().max()) if able else 1.0
    for column in list(able)[:: max(1, math.ceil(len(able) / COLUMNS))]:
        scores = scores_of(network, [_with(rows, column, float(value)) for value in able[column]])
        levels = [
            level for row in scores.transpose(0, 1) if (level := _levels(row, scale)) is not None
        ]
        if levels:
            found[column] = Levels(
                max(level.count for level in levels), all(level.lost for level in levels)
            )
    return found


def _points(values: Tensor) -> Tensor | None:
    """Return 16 quantiles of a column, or None if fewer than 12 of them differ."""
    points = values.float().quantile((torch.arange(POINTS) + 0.5) / POINTS, interpolation="nearest")
    distinct = 1 + int((points.diff() > APART * float(values.float().std())).sum())
    return points if distinct >= DISTINCT else None


def _levels(scores: Tensor, scale: float) -> Levels | None:
    """Return the levels in scores [V, K] of rising values, or None if they hardly differ."""
    if float((scores.amax(0) - scores.amin(0)).max()) < EFFECT * scale:
        return None
    same = (scores.unsqueeze(0) - scores.unsqueeze(1)).abs().amax(2) <= ROUNDING * scale  # [V, V]
    if any(
        _ranges(scores[:at], scores[at:]) < FLAT * float((scores.amax(0) - scores.amin(0)).max())
        for at in range(2, len(scores) - 1)
    ):
        return Levels(2.0, False)  # a single step keeps only the sign
    shares = same.double().mean(1)
    return Levels(
        math.exp(-float(shares.log().mean())), max(float(shares[0]), float(shares[-1])) >= LOST
    )


def _ranges(*parts: Tensor) -> float:
    """Return the largest difference of scores within a part."""
    return max(float((part.amax(0) - part.amin(0)).max()) for part in parts)


def saturated(scores: Tensor) -> bool:
    """Check that many rows have the highest or lowest score [B, K]. Such an output is at its bound
    and hides the inputs.
    """
    at_bound = (scores == scores.amax(0)) | (scores == scores.amin(0))
    return bool((at_bound.float().mean(0) > SATURATED).any()) and len(scores) >= LEAST_ROWS
