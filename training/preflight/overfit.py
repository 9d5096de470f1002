"""Overfit of one batch, without which a network, loss and optimizer cannot learn anything.

Dropout, weight decay, label smoothing and class weights are off; the network is a copy. "Near zero"
is 2 % of the loss of the best constant prediction on the batch. If linear scores do not get there
either, the rows are hardly distinguishable. A network that reaches the loss of linear scores is
then not at fault.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import nn

from schemas.config import Declaration
from schemas.records import CheckResult, Statistics
from training.models.shape import ModelShape
from training.objectives.losses import Loss, make_loss
from training.preflight.descent import AS_FAR, Curve, learn, linear_loss
from training.preflight.subject import Probe
from training.preflight.verdict import Check, Figure

OVERFIT = Check("overfit")
ROWS, FEWER_ROWS = 32, 8
LR, LR_SMALL, LR_LARGE, LR_LINEAR = 2e-3, 1e-2, 5e-2, 0.1
# rows and rates, hardest first
ATTEMPTS = (
    *((ROWS, lr) for lr in (LR, LR_SMALL, LR_LARGE)),
    *((rows, lr) for lr in (LR_SMALL, LR_LINEAR) for rows in (FEWER_ROWS, 2)),
)
MAX_SECONDS = 60.0  # CPU time of this thread, so that other work on the machine does not count
LARGE = 5.0
FELL = 0.9  # share of the first loss: above it, nothing was learned
MOVES = 0.1  # least deviation over rows for scores with a meaningful order
# scores at a bound: largest spread relative to their labels, and least number
PILED, LEAST_PILED = 0.15, 3


def overfit(
    network: nn.Module,
    declaration: Declaration,
    statistics: Statistics,
    shape: ModelShape,
    probe: Probe,
) -> tuple[CheckResult, tuple[float, ...]]:
    """Check that the network overfits one batch, and return the loss by step.

    A network that fails on 32 rows is tested again with a larger learning rate, then on 8 and 2
    rows. Success only on fewer rows is a warning: a small network, or inputs that barely differ.
    Reaching the loss of linear scores is a warning too, if that is not near zero. A linear model
    needs a large rate and at most half as many rows as inputs, since more need not be linearly
    separable. It cannot get below the loss of linear scores.
    """
    loss = make_loss(unweighted(declaration), statistics)
    deadline = time.thread_time() + MAX_SECONDS
    probe = within_reach(probe)
    curves: list[Curve] = []
    for rows, lr in _attempts(declaration, shape, len(probe)):
        curves.append(learn(network, loss, probe.first(rows), shape.outputs, lr, deadline))
        if curves[-1].reached or not math.isfinite(curves[-1].losses[-1]):
            break
    shown = curves[-1] if curves[-1].reached else _compared(loss, probe, shape.outputs, curves)
    return _judge(declaration, probe, shown), shown.losses


def within_reach(probe: Probe) -> Probe:
    """Divide a regression label [B] by its deviation if a few hundred steps cannot reach it.

    Labels have deviation 1 over all train rows. The extreme rows of a heavy-tailed label lie
    hundreds of deviations away.
    """
    if not probe.label.dtype.is_floating_point or probe.label.ndim > 1:
        return probe
    deviation = float(probe.label.std(unbiased=False))
    return Probe(probe.inputs, probe.label / deviation) if deviation > LARGE else probe


def _compared(loss: Loss, probe: Probe, outputs: int, curves: list[Curve]) -> Curve:
    """Return the first curve that reaches the loss of linear scores, or the first one."""
    measured = [
        replace(curve, linear=linear_loss(loss, probe.first(curve.rows), outputs))
        for curve in curves
    ]
    return next((curve for curve in measured if curve.as_far_as_linear), measured[0])


def unweighted(declaration: Declaration) -> Declaration:
    """Return the declaration without label smoothing, class weights and positive weights."""
    loss = declaration.loss.model_copy(
        update={"label_smoothing": 0.0, "class_weights": "none", "pos_weight": "none"}
    )
    labels = {
        name: label.model_copy(update={"pos_weight": None})
        for name, label in declaration.task.labels.items()
    }
    return declaration.model_copy(
        update={"loss": loss, "task": declaration.task.model_copy(update={"labels": labels})}
    )


def _attempts(
    declaration: Declaration, shape: ModelShape, available: int
) -> tuple[tuple[int, float], ...]:
    """Return the rows and learning rates of all attempts, hardest first."""
    if declaration.model.kind != "linear":
        return tuple((min(rows, available), lr) for rows, lr in ATTEMPTS)
    inputs = shape.numeric + shape.tensor_width + sum(n - 1 for n in shape.categories)
    inputs += sum(bag.codes - 1 for bag in shape.bags.values())
    rows = max(2, min(ROWS, available, inputs // 2))
    return (rows, LR_LINEAR), (max(2, rows // 4), LR_LINEAR), (2, LR_LINEAR)


def undecided(did: str, figures: dict[str, Figure]) -> CheckResult:
    """Report that time ran out before the check could decide."""
    return OVERFIT.warned(
        f"{did}: stopped after {MAX_SECONDS:.0f} s of CPU, so that nothing is known of whether one"
        " batch can be overfit.",
        "try the same network in a smaller size (bulkhead smoke), or on a faster machine",
        **figures,
    )


def _judge(declaration: Declaration, probe: Probe, curve: Curve) -> CheckResult:
    linear, most = declaration.model.kind == "linear", min(ROWS, len(probe))
    figures = curve.figures | {"constant_loss": curve.constant}
    figures["linear_loss"] = None if curve.reached else curve.linear
    did = f"{curve.rows} rows, {curve.words}"
    if curve.reached and (linear or curve.rows >= most):
        return OVERFIT.passed(f"One batch was overfit: {did}.", **figures)
    if curve.reached:
        return OVERFIT.warned(
            f"{did}; {most} rows were not overfit: the network is small, or its inputs barely"
            " differ between rows.",
            "try a wider or deeper model",
            **figures,
        )
    bounded = not declaration.non_negative_labels and _bounded(curve, probe)
    if curve.as_far_as_linear and not bounded:
        told = f"{did}; linear scores get to {curve.linear:.2g} on these rows: their inputs hardly"
        told += " tell them apart"
        if linear and curve.linear < (1 - AS_FAR) * curve.constant:
            return OVERFIT.passed(f"As far as a linear model can: {told}.", **figures)
        return OVERFIT.warned(
            f"{told}, or the network is linear.",
            "look whether features that distinguish rows are missing; a linear model of your own"
            " may be as it should",
            **figures,
        )
    if curve.out_of_time and math.isfinite(curve.losses[-1]):
        return undecided(did, figures)
    cause, remedy = _diagnose(declaration.task.kind, probe, curve, bounded)
    did += f", {curve.share:.0%} of a constant prediction's loss"
    return OVERFIT.failed(f"One batch could not be overfit: {did}. {cause}", remedy, **figures)


def _diagnose(task: str, probe: Probe, curve: Curve, bounded: bool) -> tuple[str, str]:
    """Return the probable cause and the remedy; scores may be known to be bounded."""
    scores, last = curve.scores, "end with a plain linear layer"
    if not math.isfinite(curve.losses[-1]):
        cause = "The loss is not finite after a few steps."
        return cause, "look for log, division or sqrt of values near 0 in forward"
    if float(scores.std(0).max()) < 1e-4:
        cause = "All rows get the same scores: the inputs do not reach the output."
        remedy = "follow one input through forward; look for a dead activation or an input that is"
        return cause, f"{remedy} multiplied by 0"
    if bool((scores >= 0).all() and (scores <= 1).all()):
        if task in ("binary", "multilabel"):
            cause = "All scores lie between 0 and 1: a sigmoid in the model."
            return cause, "return log odds; the loss applies the sigmoid"
        ones = torch.ones(len(scores))
        if task == "multiclass" and torch.allclose(scores.sum(1), ones, atol=1e-3):
            cause = "Each row's scores add up to 1: a softmax in the model."
            return cause, "return logits; the loss applies the softmax"
    if task == "multiclass" and (always := _one_order(curve)):
        cause = f"{always}: scores can only be ordered in one way (cumulated, sorted or shifted"
        return f"{cause} outputs?).", "give each class its own score from a linear layer"
    if task == "regression" and bool((scores >= 0).all() and (probe.label[: curve.rows] < 0).any()):
        cause = "No score is below 0 though labels are: the output is bounded below (relu,"
        return f"{cause} softplus, exp?).", f"{last}; labels are scaled to mean 0"
    if bounded:
        cause = f"Scores stop at {float(scores.min()):.3g} and {float(scores.max()):.3g}, labels go"
        return f"{cause} on: the output is bounded (tanh, sigmoid, clamp?).", last
    if curve.losses[-1] > FELL * curve.losses[0]:
        cause = "The loss hardly moved: the gradient does not reach what matters, or labels"
        remedy = "look for .detach(), frozen layers or a bounded output in forward, and check that"
        return f"{cause} contradict their rows.", f"{remedy} labels belong to their rows"
    cause = "It moved, but not far enough: the output is bounded or rounded, or the network is too"
    return f"{cause} small.", f"{last} without activation; try a wider model"


def _one_order(curve: Curve) -> str:
    """Describe scores of classes that have one order in every row, or one highest class although
    the loss fell. The text is empty otherwise.
    """
    order = curve.scores.argsort(dim=1, stable=True)
    apart = curve.scores - curve.scores.mean(1, keepdim=True)  # ignores shifts, as a softmax does
    if bool((order == order[0]).all()) and (
        float(curve.scores.std(0).max()) > MOVES or float(apart.std(0).max()) < 1e-4
    ):
        return "The classes' scores are in the same order in every row, though labels differ"
    if bool((order[:, -1] == order[0, -1]).all()) and curve.losses[-1] <= FELL * curve.losses[0]:
        told = "One class has the highest score in every row, though labels differ"
        return f"{told} and the loss fell"
    return ""


def _bounded(curve: Curve, probe: Probe) -> bool:
    """Check that regression scores are bounded: they pile up at one value and several labels lie
    beyond it.
    """
    label, scores = probe.label[: curve.rows], curve.scores
    if not label.dtype.is_floating_point or label.ndim > 1:
        return False
    for sign in (1.0, -1.0):
        reached, wanted = sign * scores[:, 0], sign * label
        beyond = wanted > reached.max()
        many = int(beyond.sum()) >= LEAST_PILED
        if many and bool(reached[beyond].std() < PILED * wanted[beyond].std()):
            return True
    return False
