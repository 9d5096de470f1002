"""How far a few rows can be told apart at all: the loss of the best linear scores of their inputs.

A network that cannot learn a batch by heart is at fault only where the batch can be learned: with
one feature, or rows that hardly differ, no loss near zero can be had. What linear scores reach is
the least that any sound network should. B rows, D directions in which their inputs differ, K
scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.objectives.losses import Loss
from training.preflight.probe import Probe

# of the largest spread: directions in which rows differ less take longer than a few hundred steps
# to learn
SMALLEST = 0.05
ROUNDS = 60


def linear_loss(loss: Loss, probe: Probe, outputs: int) -> float:
    """Mean loss of the best scores that are linear in the inputs, or the least that was found in a
    few rounds.

    Args:
        loss: convex in the scores, as all of ours are.
        probe: the rows [B].
        outputs: K.
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
    parts = [_columns(name, values) for name, values in probe.inputs.items()]
    columns = torch.cat(parts, dim=1)
    left, spread, _ = torch.linalg.svd(columns - columns.mean(0), full_matrices=False)
    kept = left[:, spread > SMALLEST * spread[:1].clamp(min=1e-6)]
    return torch.cat([torch.ones(len(columns), 1), kept * len(columns) ** 0.5], dim=1)


def _columns(name: str, values: Tensor) -> Tensor:
    """An input as numbers [B, columns]: categories as one column each, anything else flattened."""
    if name != "categorical":
        return values.reshape(len(values), -1).float() / (
            255.0 if values.dtype == torch.uint8 else 1.0
        )
    return torch.cat(
        [torch.nn.functional.one_hot(column).float() for column in values.unbind(1)], dim=1
    )
