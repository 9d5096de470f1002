"""A few sequences overfit, as far as that is possible.

What follows the first tokens of a document cannot be known from them where documents differ: a
model that knew every sequence of the batch by heart would still be left with the loss of guessing
which one it sees. That floor is counted exactly; "by heart" is within 10 % of the way from it to
the loss of the batch's token shares.

B sequences of T positions.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import nn

from schemas.records import CheckResult
from training.data.arrays.sequences import NO_TARGET
from training.models.causal_transformer import positions_of
from training.objectives.losses import Loss
from training.preflight.overfit import LR, LR_SMALL, MAX_SECONDS, Curve, descend, undecided
from training.preflight.probe import Probe

ROWS, POSITIONS = 4, 64  # of the batch, at most
BY_HEART = 0.1


def short(probe: Probe, rows: int = ROWS, positions: int = POSITIONS) -> Probe:
    """The first positions of the first rows that have a target there."""
    label = probe.label[:, :positions]
    chosen = torch.nonzero((label != NO_TARGET).any(1)).flatten()[:rows]
    return Probe(
        {name: value[chosen, :positions] for name, value in probe.inputs.items()}, label[chosen]
    )


def floor_losses(tokens: np.ndarray, segments: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Loss of each target [B, T], 0 elsewhere, of a model that knows these windows by heart and
    sees each target's window up to it.

    -log of the share of this target among those that follow the same beginning of a window.
    """
    places = positions_of(torch.from_numpy(segments)).numpy()
    beginning = np.zeros_like(places)  # number of what the window holds up to here
    floor, size = np.zeros(label.shape), int(max(tokens.max(), label.max())) + 1
    for place in range(int(places.max()) + 1):
        rows, columns = np.nonzero(places == place)
        before = beginning[rows, columns - 1] + 1 if place else np.zeros_like(rows)
        _, number = np.unique(before * size + tokens[rows, columns], return_inverse=True)
        beginning[rows, columns] = number
        asked = label[rows, columns] != NO_TARGET
        floor[rows[asked], columns[asked]] = _surprise(
            number[asked], label[rows, columns][asked].astype(np.int64), size
        )
    return floor


def _surprise(context: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """-log of the share of each target among those of its context."""
    _, pair, together = np.unique(context * size + target, return_inverse=True, return_counts=True)
    return np.asarray(np.log(np.bincount(context)[context]) - np.log(together[pair]))


def row_mean(values: np.ndarray, label: np.ndarray) -> float:
    """Mean over rows of the mean over each row's targets, as the training loss of equal row weights
    has it.
    """
    targets = label != NO_TARGET
    return float(((values * targets).sum(1) / targets.sum(1)).mean())


def overfit_tokens(
    network: nn.Module, loss: Loss, probe: Probe
) -> tuple[CheckResult, tuple[float, ...]]:
    """Whether the network learns a few sequences by heart, and the loss by step; tried again with a
    larger rate, then on two rows.
    """
    deadline, tried = time.thread_time() + MAX_SECONDS, []
    for rows, lr in ((ROWS, LR), (ROWS, LR_SMALL), (2, LR_SMALL)):
        batch = short(probe, rows)
        label = batch.label.numpy()
        floor = row_mean(
            floor_losses(batch.inputs["tokens"].numpy(), batch.inputs["segments"].numpy(), label),
            label,
        )
        constant = row_mean(
            _surprise(
                np.zeros(label.size, np.int64),
                label.ravel() - NO_TARGET,
                int(label.max()) - NO_TARGET + 1,
            ).reshape(label.shape),
            label,
        )
        curve = descend(
            network, loss, batch, constant, floor + BY_HEART * (constant - floor), lr, deadline
        )
        tried.append((curve, floor))
        if curve.reached or not math.isfinite(curve.losses[-1]):
            break
    curve, floor = tried[-1] if tried[-1][0].reached else tried[0]
    return _judge(curve, floor), curve.losses


def _judge(curve: Curve, floor: float) -> CheckResult:
    figures: dict[str, float | int | str | None] = {
        "rows": curve.rows,
        "steps": len(curve.losses),
        "first_loss": curve.losses[0] if math.isfinite(curve.losses[0]) else None,
        "last_loss": curve.losses[-1] if math.isfinite(curve.losses[-1]) else None,
        "token_shares": curve.constant,
        "floor": floor,
    }
    did = (
        f"{curve.rows} sequences, loss {curve.losses[0]:.3g} → {curve.losses[-1]:.2g} in"
        f" {len(curve.losses)} steps (floor {floor:.2g}, token shares {curve.constant:.3g})"
    )
    if curve.reached:
        verdict = "pass" if curve.rows > 2 else "warn"
        return CheckResult(
            name="overfit",
            verdict=verdict,
            summary=f"One batch was overfit: {did}.",
            figures=figures,
        )
    if curve.out_of_time and math.isfinite(curve.losses[-1]):
        return undecided(did, figures)
    return CheckResult(
        name="overfit",
        verdict="fail",
        summary=f"One batch could not be overfit: {did}.",
        figures=figures,
        remedy=(
            "look for .detach(), frozen layers, positions that are missing or shared, and logits"
            " that are bounded; try a wider model"
        ),
    )
