"""Preflight check of inputs: every column is read, distinct from the others and not made coarse.

A finding must hold with the initial weights and in two copies after a few steps. If all scores are
equal at first, as behind a last layer of zeros, only the copies decide.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from schemas.errors import first_few
from schemas.records import CheckResult, Statistics
from training.models.shape import FIRST_VALUE, NULL, ModelShape
from training.objectives.losses import Loss
from training.preflight.columns import (
    POINTS,
    Batch,
    Column,
    Levels,
    input_columns,
    interchangeable,
    saturated,
    told_apart,
    unread_columns,
)
from training.preflight.subject import Probe, copied, hooked, mean_loss, scored, student_of, update
from training.preflight.verdict import Check

INPUTS = Check("inputs")
SIGN = 2.0  # two levels, one on either end of a step
LEVELS = 4.6  # least number of 16 values that are distinguished
MOST = 0.75  # share of tested numeric columns for which it must hold
STIRRED, STIRRING_STEPS, STIRRING_RATE = 2, 10, 1e-2  # number of copies, and their training
TABLES = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Found:
    """Faults in the inputs of one network.

    Attributes:
        unread: columns that move no score.
        alike: groups of columns that can be swapped without a change of scores.
        coarse: numeric columns whose values are hardly distinguished.
    """

    unread: frozenset[Column] = frozenset()
    alike: tuple[frozenset[Column], ...] = ()
    coarse: tuple[tuple[Column, Levels], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unread or self.alike or self.coarse)


def check_inputs(
    network: nn.Module,
    statistics: Statistics,
    shape: ModelShape,
    loss: Loss,
    rows: Probe,
    sample: Probe,
) -> CheckResult:
    """Check that each column moves a score, no columns can be swapped, and numeric columns have
    several levels.

    Args:
        network: repeatable network whose rows do not mix. It is not changed.
        statistics: statistics with the names of the columns.
        shape: shape of the network.
        loss: loss per row.
        rows: rows with pairwise different inputs.
        sample: random rows with the usual values of columns.
    """
    columns = input_columns(statistics, shape)
    found = look(network, columns, shape, rows.inputs, sample.inputs)
    inert = len(found.unread) == len(columns)
    for _ in range(STIRRED):
        # two of thousands of weights may be equal by chance, but not after other steps again
        if found:
            student = stirred(network, shape, loss, rows)
            later = look(student, columns, shape, rows.inputs, sample.inputs)
            found, inert = later if inert else _both(found, later), False
    return judge_inputs(found, columns, shape, shared_rows(network, shape, rows.inputs))


def look(
    network: nn.Module, columns: list[Column], shape: ModelShape, rows: Batch, sample: Batch
) -> Found:
    """Find the faults in the inputs of a network with these weights."""
    unread = unread_columns(network, columns, shape, rows)
    read = [c for c in columns if c not in unread]
    numeric = [c for c in read if c.key == "numeric" and c.index < shape.numeric - shape.indicators]
    alike = [
        group
        for part in (numeric, [c for c in read if c.key == "categorical"])
        for group in interchangeable(network, part, shape, rows)
    ]
    bounded = saturated(scored(network, rows))
    levels = {} if bounded else told_apart(network, numeric, rows, sample)
    coarse = tuple(
        (column, found)
        for column, found in levels.items()
        if found.count < LEVELS or (found.lost and len(levels) > 1)
    )
    most = len(coarse) >= MOST * max(len(levels), 1)
    return Found(frozenset(unread), tuple(alike), coarse if most else ())


def stirred(network: nn.Module, shape: ModelShape, loss: Loss, rows: Probe) -> nn.Module:
    """Return a copy after a few steps on random inputs. They also train the weights of columns that
    are constant in the rows.
    """
    student, optimizer = student_of(network, STIRRING_RATE)
    for _ in range(STIRRING_STEPS):
        value = mean_loss(student, loss, Probe(_drawn(rows.inputs, shape), rows.label))
        if not bool(value.isfinite()):
            break
        update(optimizer, value)
    return student


def _drawn(rows: Batch, shape: ModelShape) -> Batch:
    """Return the rows with noise on numeric columns and random flags and codes."""
    inputs = copied(rows)
    if "numeric" in inputs:
        values, scaled = inputs["numeric"], shape.numeric - shape.indicators
        numbers, flags = values[:, :scaled], values[:, scaled:]
        noisy = numbers + torch.randn_like(numbers)
        inputs["numeric"] = torch.cat([noisy, torch.rand_like(flags).round()], dim=1)
    if "categorical" in inputs:
        drawn = torch.rand(inputs["categorical"].shape) * torch.tensor(shape.categories)
        inputs["categorical"] = drawn.long()
    for key, bag in shape.bags.items():
        inputs[key] = torch.randint_like(inputs[key], bag.codes)
    return inputs


def _both(first: Found, later: Found) -> Found:
    """Return the faults that both have."""
    alike = tuple(a & b for a in first.alike for b in later.alike if len(a & b) > 1)
    coarse = tuple(pair for pair in first.coarse if pair[0] in dict(later.coarse))
    return Found(first.unread & later.unread, alike, coarse)


def judge_inputs(
    found: Found, columns: list[Column], shape: ModelShape, shared: list[str]
) -> CheckResult:
    """Report the faults.

    Args:
        found: faults of a network.
        columns: all inputs of the network.
        shape: shape of the network.
        shared: tables in which two columns share some rows, with their number.
    """
    told, remedies = list[str](), list[str]()
    if found.unread:
        told += _of_unread(found.unread, columns)
        remedies.append("leave it out in data.columns, or check how forward reads it")
    if found.alike:
        told += _of_alike(found.alike, columns, shape)
        remedies.append(
            "give each column its own weights or embedding: [net] * n is one net n times, a shared"
            " table needs an offset for each column"
        )
    if found.coarse:
        told.append(_of_coarse(found.coarse))
        remedies.append(
            "feed numbers as they are: no .long(), round(), clamp or norm before the first layer;"
            " bins at train quantiles"
        )
    if shared:
        told.append(
            f"Codes of two columns share rows of one embedding ({first_few(shared)}), the others"
            " not: are the offsets of columns too small?"
        )
        remedies.append(
            "begin each column's codes where the last one's end: torch.tensor([0,"
            " *shape.categories[:-1]]).cumsum(0)"
        )
    if not told:
        return INPUTS.passed(
            f"Each of the {len(columns)} inputs moves the scores, and no two can be swapped.",
            inputs=len(columns),
        )
    # a network may ignore its inputs or be symmetric in them on purpose
    result = INPUTS.warned(" ".join(told), "; ".join(remedies))
    unread = tuple(sorted(c.name for c in found.unread))
    return result.model_copy(update={"columns": unread})


def _of_unread(unread: frozenset[Column], columns: list[Column]) -> list[str]:
    """Describe unread inputs: all, whole keys of the batch, or single columns."""
    if len(unread) == len(columns):
        return [f"No score of any row depends on any of the {len(columns)} inputs."]
    told, single = list[str](), list[str]()
    for key in dict.fromkeys(c.key for c in columns):
        group = [c for c in columns if c.key == key]
        names = [c.name for c in group if c in unread]
        if len(names) < len(group):
            single += names
            continue
        told.append(
            f"Forward never reads batch[{key!r}] ({first_few(names)}): nothing in it moves a score."
        )
    if single:
        told.append(
            f"No score of any row depends on {len(single)} of {len(columns)} inputs"
            f" ({first_few(single)}), however they are changed."
        )
    return told


def _of_alike(
    groups: tuple[frozenset[Column], ...], columns: list[Column], shape: ModelShape
) -> list[str]:
    """Describe columns that can be swapped, one sentence per group."""
    told = []
    for group in (sorted(g, key=lambda c: c.index) for g in groups):
        key, most = group[0].key, shape.numeric - shape.indicators
        every = sum(c.key == key and not (key == "numeric" and c.index >= most) for c in columns)
        which = f"All {every}" if len(group) == every else f"{len(group)} of {every}"
        told.append(
            f"{which} {key} columns ({first_few([c.name for c in group])}) can be swapped without"
            " moving any score: they cannot be distinguished."
        )
    return told


def _of_coarse(coarse: tuple[tuple[Column, Levels], ...]) -> str:
    """Describe the numeric columns whose values the scores hardly distinguish."""
    names = first_few([column.name for column, _ in coarse])
    least = min(levels.count for _, levels in coarse)
    what = "nearly half, at one end, give the same scores"
    if least < LEVELS:
        what = f"the scores tell about {least:.2g} apart"
    cause = "rounded, cast to integers or clamped?"
    if least <= SIGN:
        cause = "a norm that leaves the sign of value times weight alone, or rounded?"
    return f"Of {POINTS} values of a numeric column ({names}) {what}: {cause}"


def frozen_codes(network: nn.Module, shape: ModelShape, inputs: dict[str, Tensor]) -> list[str]:
    """Find tables whose padding row is used for known values. It is zero and never gets a gradient.

    Args:
        network: network, which is not changed.
        shape: shape with the number of codes per categorical column.
        inputs: inputs of a few rows.

    Returns:
        Names of the tables with the row, such as `tables.0, row 6`.
    """
    padded = {
        name: m.padding_idx
        for name, m in network.named_modules()
        if isinstance(m, TABLES) and m.padding_idx is not None
    }
    if not padded or "categorical" not in inputs:
        return []
    known = _known(shape)
    of_known, of_null = (
        _looked_up(network, {**_repeated(shape, inputs), "categorical": codes})
        for codes in (known, torch.full_like(known, NULL))
    )
    return [
        f"{name}, row {row}"
        for name, row in padded.items()
        if any(
            (codes == row).any() and not torch.equal(codes, null)
            for codes, null in zip(of_known[name], of_null[name], strict=False)
        )
    ]


def shared_rows(network: nn.Module, shape: ModelShape, inputs: dict[str, Tensor]) -> list[str]:
    """Find tables for several columns in which two columns share some but not all rows. Then the
    offset of one is too small or too large.

    Args:
        network: network, which is not changed.
        shape: shape with the number of codes per categorical column.
        inputs: inputs of a few rows.

    Returns:
        Names of the tables with the number of shared rows, such as `table, 2 rows`.
    """
    if len(shape.categories) < 2 or "categorical" not in inputs:
        return []
    rows = torch.arange(max(shape.categories))
    every = torch.stack([rows % codes for codes in shape.categories], dim=1)
    found = dict[str, int]()
    looked_up = _looked_up(network, {**_repeated(shape, inputs), "categorical": every})
    for name, calls in looked_up.items():
        for codes in calls:
            if isinstance(network.get_submodule(name), nn.Embedding) and (
                shared := _shared(codes, shape)
            ):
                found[name] = shared
    return [f"{name}, {count} rows" for name, count in found.items()]


def _shared(codes: Tensor, shape: ModelShape) -> int:
    """Count the table rows that columns share in part. It is 0 if a column has no contiguous codes,
    as with hashing on purpose.
    """
    if codes.ndim != 2 or codes.shape[1] != len(shape.categories):
        return 0
    columns = [set(column.tolist()) for column in codes.T]
    if any(
        max(c) - min(c) + 1 != len(c) or len(c) != n
        for c, n in zip(columns, shape.categories, strict=True)
    ):
        return 0
    pairs = [(a, b) for i, a in enumerate(columns) for b in columns[:i]]
    return sum(len(a & b) for a, b in pairs if len(a & b) < min(len(a), len(b)))


def _looked_up(network: nn.Module, batch: Batch) -> dict[str, list[Tensor]]:
    """Return the inputs of each embedding table in one pass of a copy, by name and call."""
    seen, student = defaultdict[str, list[Tensor]](list), copy.deepcopy(network)

    def look(name: str, _table: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given:
            seen[name].append(given[0].detach().clone())

    with hooked(student, look, kind=TABLES):
        scored(student, batch)
    return seen


def _repeated(shape: ModelShape, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Repeat rows up to the largest number of codes of a column."""
    return {name: t[torch.arange(max(shape.categories)) % len(t)] for name, t in inputs.items()}


def _known(shape: ModelShape) -> Tensor:
    """Return all known codes of each column, [rows, columns]."""
    known = torch.stack(
        [
            FIRST_VALUE + torch.arange(max(shape.categories)) % max(codes - FIRST_VALUE, 1)
            for codes in shape.categories
        ],
        dim=1,
    )
    # a column without a known value has no such code
    return torch.minimum(known, torch.tensor(shape.categories) - 1)
