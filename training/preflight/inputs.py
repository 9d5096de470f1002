"""The preflight check of what the network makes of its inputs: every column is read, told from the
others, and not made coarse.

What is found has to hold with the initial weights and in two copies after a few steps too; where
all scores are the same at first, as behind a last layer of zeros, the copies decide alone.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from schemas.errors import first_few
from schemas.records import CheckResult, Statistics
from training.models.shape import ModelShape
from training.objectives.losses import Loss
from training.preflight.codes import shared_rows
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
from training.preflight.overfit import without_dropout
from training.preflight.probe import Probe
from training.preflight.scores import scored
from training.preflight.verdict import passed

SIGN = 2.0  # levels: one on either side of a step
LEVELS = 4.6  # least number of 16 values that are separated
MOST = 0.75  # share of the numeric columns tried for which it must hold
STIRRED, STIRRING_STEPS, STIRRING_RATE = 2, 10, 1e-2  # copies, and how they are trained


@dataclass(frozen=True)
class Found:
    """What is wrong with the inputs of one network.

    Attributes:
        unread: Columns that move no score.
        alike: Groups of columns that can be swapped without moving one.
        coarse: Numeric columns whose values are hardly told apart.
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
    """Each column moves a score in some row, columns cannot be swapped, and a numeric column has
    more than a handful of levels.

    Args:
        network: repeatable, and its rows do not mix; not changed.
        statistics: with the names of the columns.
        shape: of the network.
        loss: by row.
        rows: with pairwise different inputs.
        sample: drawn at random, for the values that columns take.
    """
    columns = input_columns(statistics, shape)
    found = look(network, columns, shape, rows.inputs, sample.inputs)
    inert = len(found.unread) == len(columns)
    for _ in range(STIRRED):
        # two weights out of thousands may be equal by chance, but not again after other steps
        if found:
            later = look(
                stirred(network, shape, loss, rows), columns, shape, rows.inputs, sample.inputs
            )
            found, inert = later if inert else _both(found, later), False
    return judge_inputs(found, columns, shape, shared_rows(network, shape, rows.inputs))


def look(
    network: nn.Module, columns: list[Column], shape: ModelShape, rows: Batch, sample: Batch
) -> Found:
    """What is wrong with the inputs of a network with these weights."""
    unread = unread_columns(network, columns, shape, rows)
    read = [c for c in columns if c not in unread]
    numeric = [c for c in read if c.key == "numeric" and c.index < shape.numeric - shape.indicators]
    alike = [
        group
        for part in (numeric, [c for c in read if c.key == "categorical"])
        for group in interchangeable(network, part, shape, rows)
    ]
    levels = (
        told_apart(network, numeric, rows, sample) if not saturated(scored(network, rows)) else {}
    )
    coarse = tuple(
        (column, found)
        for column, found in levels.items()
        if found.count < LEVELS or (found.lost and len(levels) > 1)
    )
    return Found(
        frozenset(unread), tuple(alike), coarse if len(coarse) >= MOST * max(len(levels), 1) else ()
    )


def stirred(network: nn.Module, shape: ModelShape, loss: Loss, rows: Probe) -> nn.Module:
    """A copy after a few steps on inputs drawn again each time, so that the weights of columns that
    are constant in the rows move, too.
    """
    student = without_dropout(copy.deepcopy(network))
    optimizer = torch.optim.AdamW(
        [p for p in student.parameters() if p.requires_grad], lr=STIRRING_RATE, weight_decay=0.0
    )
    for _ in range(STIRRING_STEPS):
        optimizer.zero_grad(set_to_none=True)
        value = loss.per_row(student(_drawn(rows.inputs, shape)), rows.label).mean()
        if not bool(value.isfinite()):
            break
        value.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
    return student


def _drawn(rows: Batch, shape: ModelShape) -> Batch:
    """The rows with noise on numeric columns, flags and codes at random."""
    inputs = {name: t.clone() for name, t in rows.items()}
    if "numeric" in inputs:
        values, scaled = inputs["numeric"], shape.numeric - shape.indicators
        inputs["numeric"] = torch.cat(
            [
                values[:, :scaled] + torch.randn_like(values[:, :scaled]),
                torch.rand_like(values[:, scaled:]).round(),
            ],
            dim=1,
        )
    if "categorical" in inputs:
        inputs["categorical"] = (
            torch.rand(inputs["categorical"].shape) * torch.tensor(shape.categories)
        ).long()
    return inputs


def _both(first: Found, later: Found) -> Found:
    """What holds for both."""
    alike = tuple(a & b for a in first.alike for b in later.alike if len(a & b) > 1)
    return Found(
        first.unread & later.unread,
        alike,
        tuple(pair for pair in first.coarse if pair[0] in dict(later.coarse)),
    )


# ------------------------------------------------------------------------------------------ verdict


def judge_inputs(
    found: Found, columns: list[Column], shape: ModelShape, shared: list[str]
) -> CheckResult:
    """The finding in words.

    Args:
        found: of a network.
        columns: all of its inputs.
        shape: of the network.
        shared: tables in which two columns share some rows, and how many.
    """
    told = [
        *_of_unread(found.unread, columns),
        *_of_alike(found.alike, columns, shape),
        *_of_coarse(found.coarse),
    ]
    if shared:
        told.append(
            f"Codes of two columns share rows of one embedding ({first_few(shared)}), the others"
            " not: are the offsets of columns too small?"
        )
    remedies = (
        (found.unread, "leave it out in data.columns, or check how forward reads it"),
        (
            found.alike,
            (
                "give each column its own weights or embedding: [net] * n is one net n times,"
                " a shared table needs an offset for each column"
            ),
        ),
        (
            found.coarse,
            (
                "feed numbers as they are: no .long(), round(), clamp or norm before the first"
                " layer; bins at train quantiles"
            ),
        ),
        (
            shared,
            (
                "begin each column's codes where the last one's end: torch.tensor([0,"
                " *shape.categories[:-1]]).cumsum(0)"
            ),
        ),
    )
    if not told:
        return passed(
            "inputs",
            f"Each of the {len(columns)} inputs moves the scores, and no two can be swapped.",
            inputs=len(columns),
        )
    return CheckResult(
        name="inputs",
        # a network may be meant to be blind to what it is given, or symmetric in it
        verdict="warn",
        summary=" ".join(told),
        remedy="; ".join(remedy for what, remedy in remedies if what),
        columns=tuple(sorted(c.name for c in found.unread)),
    )


def _of_unread(unread: frozenset[Column], columns: list[Column]) -> list[str]:
    """Which inputs are not read: all, whole keys of the batch, or single columns."""
    if len(unread) == len(columns):
        return [f"No score of any row depends on any of the {len(columns)} inputs."]
    keys = [
        key
        for key in dict.fromkeys(c.key for c in columns)
        if all(c in unread for c in columns if c.key == key)
    ]
    single = [c.name for c in columns if c in unread and c.key not in keys]
    told = [
        f"Forward never reads batch[{key!r}]"
        f" ({first_few([c.name for c in columns if c.key == key])}): nothing in it moves a score."
        for key in keys
    ]
    return told + (
        [
            f"No score of any row depends on {len(single)} of {len(columns)} inputs"
            f" ({first_few(single)}), however they are changed."
        ]
        if single
        else []
    )


def _of_alike(
    groups: tuple[frozenset[Column], ...], columns: list[Column], shape: ModelShape
) -> list[str]:
    """Which columns cannot be distinguished, one sentence a group."""
    told = []
    for group in (sorted(g, key=lambda c: c.index) for g in groups):
        key = group[0].key
        every = sum(
            c.key == key and not (key == "numeric" and c.index >= shape.numeric - shape.indicators)
            for c in columns
        )
        which = (
            f"All {every} {key} columns"
            if len(group) == every
            else f"{len(group)} of {every} {key} columns"
        )
        told.append(
            f"{which} ({first_few([c.name for c in group])}) can be swapped without moving any"
            " score: they cannot be distinguished."
        )
    return told


def _of_coarse(coarse: tuple[tuple[Column, Levels], ...]) -> list[str]:
    """What the scores do not tell apart within a numeric column."""
    if not coarse:
        return []
    names = first_few([column.name for column, _ in coarse])
    least = min(levels.count for _, levels in coarse)
    what = (
        f"the scores tell about {least:.2g} apart"
        if least < LEVELS
        else "nearly half, at one end, give the same scores"
    )
    cause = (
        "a norm that leaves the sign of value times weight alone, or rounded?"
        if least <= SIGN
        else "rounded, cast to integers or clamped?"
    )
    return [f"Of {POINTS} values of a numeric column ({names}) {what}: {cause}"]
