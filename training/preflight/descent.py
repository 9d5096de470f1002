"""How far a network learns a few rows, and how far constant and linear scores do.

A network that cannot learn a batch by heart is at fault only where the batch can be learned: with
one feature, or rows that hardly differ, no loss near zero can be had. What linear scores reach is
the least that any sound network should. B rows, D directions in which their inputs differ, K
scores.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.objectives.losses import Loss
from training.preflight.subject import Probe, mean_loss, student_of, update
from training.preflight.verdict import Figure

STEPS = 400
WARM_UP = 10
NEAR_ZERO = 0.02
PATIENCE = 100  # steps without a gain of 2 % after which an attempt is given up
CHECK_EVERY = 10
AS_FAR = 0.05
TINY = 1e-9
# of the largest spread: directions in which rows differ less take longer than a few hundred steps
# to learn
SMALLEST = 0.05
ROUNDS = 60


@dataclass(frozen=True)
class Curve:
    """Losses by step, what a constant and what linear scores get on the same rows, the last scores,
    and how it ended.
    """

    rows: int
    losses: tuple[float, ...]
    constant: float
    scores: Tensor
    reached: bool
    out_of_time: bool
    linear: float = 0.0

    @property
    def as_far_as_linear(self) -> bool:
        """Whether the lowest loss is that of the best linear scores, within 5 % of what these gain
        on a constant.
        """
        gain = max(self.constant - self.linear, 0.0)
        return min(self.losses) <= self.linear + AS_FAR * gain + TINY

    @property
    def share(self) -> float:
        """Last loss as a share of the constant's."""
        return self.losses[-1] / max(self.constant, TINY)

    @property
    def words(self) -> str:
        """Losses and steps, in words."""
        first, last = self.losses[0], self.losses[-1]
        return f"loss {first:.3g} → {last:.2g} in {len(self.losses)} steps"

    @property
    def figures(self) -> dict[str, Figure]:
        """Rows, steps and losses, for a result."""
        ends = {"first_loss": self.losses[0], "last_loss": self.losses[-1]}
        known = {name: loss if math.isfinite(loss) else None for name, loss in ends.items()}
        return {"rows": self.rows, "steps": len(self.losses), **known}


def learn(
    network: nn.Module, loss: Loss, probe: Probe, outputs: int, lr: float, deadline: float
) -> Curve:
    """Train a copy of the network on these rows alone until the loss is near zero, it no longer
    falls, 400 steps, or the deadline.
    """
    constant = constant_loss(loss, probe.label, outputs)
    # where all labels are alike, a constant has learned them already
    tells = constant > TINY and len(probe.label.unique()) > 1
    return descend(
        network, loss, probe, constant, NEAR_ZERO * constant if tells else None, lr, deadline
    )


def descend(
    network: nn.Module,
    loss: Loss,
    probe: Probe,
    constant: float,
    goal: float | None,
    lr: float,
    deadline: float,
) -> Curve:
    """Train a copy of the network until its loss is at the goal (default: near zero by its first
    loss), or as `learn` ends.
    """
    student, optimizer = student_of(network, lr, fused=True)
    losses, reached = list[float](), False
    for step in range(STEPS):
        scores = student(probe.inputs)
        value = loss.per_row(scores, probe.label).mean()
        losses.append(float(value.detach()))
        if step % CHECK_EVERY == 0:
            losses[-1] = min(losses[-1], _eval_loss(student, loss, probe))
        reached = losses[-1] <= (NEAR_ZERO * losses[0] if goal is None else goal)
        if reached or _stalled(losses) or time.thread_time() > deadline:
            break
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS)
        update(optimizer, value)
    late = time.thread_time() > deadline and not reached
    return Curve(len(probe), tuple(losses), constant, scores.detach(), reached, late)


def _stalled(losses: list[float]) -> bool:
    """Not finite, or without a gain of 2 % for 100 steps."""
    return not math.isfinite(losses[-1]) or (
        len(losses) > PATIENCE and min(losses[-PATIENCE:]) > 0.98 * min(losses[:-PATIENCE])
    )


def _eval_loss(student: nn.Module, loss: Loss, probe: Probe) -> float:
    """The loss in eval mode: dropout written as a function cannot be turned off otherwise."""
    student.eval()
    with torch.no_grad():
        value = float(mean_loss(student, loss, probe))
    student.train()
    return value


def constant_loss(loss: Loss, label: Tensor, outputs: int) -> float:
    """Mean loss of the best constant scores on these labels: their shares as log odds, or their
    mean.
    """
    if loss.targets:
        each = [label[~label[:, i].isnan(), i] for i in range(label.shape[1])]
        parts = [
            constant_scores(y if t.kind == "regression" else y.long(), t.width)
            for t, y in zip(loss.targets, each, strict=True)
        ]
        scores = torch.cat(parts, dim=1)
    else:
        scores = constant_scores(label, outputs)
    return float(loss.per_row(scores.expand(len(label), -1), label).mean())


def constant_scores(label: Tensor, outputs: int) -> Tensor:
    """Scores [1, K] of the best constant prediction of one label [B]; 0 where there is none."""
    if label.dtype.is_floating_point:
        return (label.mean() if len(label) else label.sum()).reshape(1, 1)
    counts = torch.bincount(label, minlength=max(2, outputs)).float().clamp(min=1e-3).log()
    return (counts[1] - counts[0]).reshape(1, 1) if outputs == 1 else counts.reshape(1, -1)


def linear_loss(loss: Loss, probe: Probe, outputs: int) -> float:
    """Mean loss of the best scores [B, K] that are linear in the inputs, or the least that was
    found in a few rounds; the loss is convex in the scores, as all of ours are.
    """
    rows = directions(probe)
    weight = torch.zeros(rows.shape[1], outputs, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        optimizer.zero_grad()
        mean = loss.per_row(rows @ weight, probe.label).mean()
        mean.backward()
        return mean

    with torch.enable_grad():
        optimizer.step(value)
    with torch.inference_mode():
        return float(loss.per_row(rows @ weight, probe.label).mean())


def directions(probe: Probe) -> Tensor:
    """Coordinates [B, 1 + D] of the rows: a constant, and the directions in which their inputs
    differ enough.
    """
    columns = torch.cat([_columns(name, values) for name, values in probe.inputs.items()], dim=1)
    left, spread, _ = torch.linalg.svd(columns - columns.mean(0), full_matrices=False)
    kept = left[:, spread > SMALLEST * spread[:1].clamp(min=1e-6)]
    return torch.cat([torch.ones(len(columns), 1), kept * len(columns) ** 0.5], dim=1)


def _columns(name: str, values: Tensor) -> Tensor:
    """An input as numbers [B, columns]: categories as one column each, anything else flattened."""
    if name == "categorical":
        return torch.cat([nn.functional.one_hot(column).float() for column in values.T], dim=1)
    return values.reshape(len(values), -1).float() / (255 if values.dtype == torch.uint8 else 1)
