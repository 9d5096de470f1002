"""Fit of a network to a few rows, compared with constant and linear scores.

A failure to overfit a batch is a fault only if the batch can be learned. With one feature or nearly
equal rows, no loss is near zero. Linear scores set the standard: any sound network should reach
their loss. B rows, D directions in which their inputs differ, K scores.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.formatting import plural
from training.objectives.losses import Loss
from training.preflight.subject import Probe, joined, mean_loss, student_of, update
from training.preflight.verdict import Figure

STEPS = 400
WARM_UP = 10
NEAR_ZERO = 0.02
PATIENCE = 100  # steps without a gain of 2 % before an attempt stops
CHECK_EVERY = 10
AS_FAR = 0.05
TINY = 1e-9
# relative to the largest spread: smaller directions need more than a few hundred steps
SMALLEST = 0.05
ROUNDS = 60


@dataclass(frozen=True)
class Curve:
    """Losses by step, reference losses of constant and linear scores, last scores, and the reason
    of the end.
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
        """Check that the lowest loss is near that of the best linear scores. The tolerance is 5 %
        of their gain over a constant.
        """
        gain = max(self.constant - self.linear, 0.0)
        return min(self.losses) <= self.linear + AS_FAR * gain + TINY

    @property
    def share(self) -> float:
        """Last loss as a share of the constant's loss."""
        return self.losses[-1] / max(self.constant, TINY)

    @property
    def words(self) -> str:
        """Losses and number of steps as a text."""
        first, last = self.losses[0], self.losses[-1]
        return f"loss {first:.3g} → {last:.2g} in {plural(len(self.losses), 'step')}"

    @property
    def figures(self) -> dict[str, Figure]:
        """Rows, steps and losses for a result."""
        ends = {"first_loss": self.losses[0], "last_loss": self.losses[-1]}
        known = {name: loss if math.isfinite(loss) else None for name, loss in ends.items()}
        return {"rows": self.rows, "steps": len(self.losses), **known}


def learn(
    network: nn.Module, loss: Loss, probe: Probe, outputs: int, lr: float, deadline: float
) -> Curve:
    """Train a copy of the network on these rows until its loss is near zero or no longer falls. It
    also stops after 400 steps or at the deadline.
    """
    constant = constant_loss(loss, probe.label, outputs)
    # a constant already fits equal labels
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
    """Train a copy of the network until its loss reaches the goal, or as `learn` ends. The default
    goal is a small share of the first loss.
    """
    student, optimizer = student_of(network, lr, fused=True)
    losses, reached = list[float](), False
    for step in range(STEPS):
        scores = student(probe.inputs)
        value = loss.row_losses(scores, probe.label).mean()
        losses.append(float(value.detach()))
        if step % CHECK_EVERY == 0:
            losses[-1] = min(losses[-1], _eval_loss(student, loss, probe))
        reached = losses[-1] <= (NEAR_ZERO * losses[0] if goal is None else goal)
        if reached or _stalled(losses) or time.thread_time() > deadline:
            break
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS)
        update(optimizer, value)
    late = time.thread_time() > deadline and not reached
    last = joined(student, scores.detach())
    return Curve(len(probe), tuple(losses), constant, last, reached, late)


def _stalled(losses: list[float]) -> bool:
    """Check for a loss that is not finite or has gained less than 2 % in 100 steps."""
    return not math.isfinite(losses[-1]) or (
        len(losses) > PATIENCE and min(losses[-PATIENCE:]) > 0.98 * min(losses[:-PATIENCE])
    )


def _eval_loss(student: nn.Module, loss: Loss, probe: Probe) -> float:
    """Return the loss in eval mode, which also turns off functional dropout."""
    student.eval()
    with torch.no_grad():
        value = float(mean_loss(student, loss, probe))
    student.train()
    return value


def constant_loss(loss: Loss, label: Tensor, outputs: int) -> float:
    """Return the mean loss of the best constant scores: log odds of the shares, or the mean."""
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
    """Return the best constant scores [1, K] for one label [B], or 0 without any label."""
    if label.dtype.is_floating_point:
        return (label.mean() if len(label) else label.sum()).reshape(1, 1)
    counts = torch.bincount(label, minlength=max(2, outputs)).float().clamp(min=1e-3).log()
    return (counts[1] - counts[0]).reshape(1, 1) if outputs == 1 else counts.reshape(1, -1)


def linear_loss(loss: Loss, probe: Probe, outputs: int) -> float:
    """Return the least mean loss of linear scores [B, K] after a few rounds. All our losses are
    convex in the scores.
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
    """Return row coordinates [B, 1 + D]: a constant, and directions of different inputs."""
    columns = torch.cat([_columns(name, values) for name, values in probe.inputs.items()], dim=1)
    left, spread, _ = torch.linalg.svd(columns - columns.mean(0), full_matrices=False)
    kept = left[:, spread > SMALLEST * spread[:1].clamp(min=1e-6)]
    return torch.cat([torch.ones(len(columns), 1), kept * len(columns) ** 0.5], dim=1)


def _columns(name: str, values: Tensor) -> Tensor:
    """Return an input as numbers [B, columns], with one column per code or flattened."""
    if name == "categorical":
        return torch.cat([nn.functional.one_hot(column).float() for column in values.T], dim=1)
    if name.startswith("bag_"):
        found = torch.zeros(len(values), int(values.max()) + 1)
        return found.scatter(1, values.long(), 1.0)[:, 1:]
    return values.reshape(len(values), -1).float() / (255 if values.dtype == torch.uint8 else 1)
