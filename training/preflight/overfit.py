"""One batch overfit: a network, loss and optimizer that cannot do that cannot learn
anything.

Dropout, weight decay, label smoothing and class weights are off; the network is a copy. "Near zero"
is 2 % of what the best constant prediction gets on the batch. Where no scores that are linear in
the inputs get there either, rows can hardly be told apart, and a network that comes as far as these
is not at fault.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.records import CheckResult, Statistics
from training.models.shape import ModelShape
from training.objectives.losses import Loss, make_loss
from training.preflight.linear_bound import linear_loss
from training.preflight.probe import Probe

ROWS, FEWER_ROWS = 32, 8
STEPS = 400
WARM_UP = 10
NEAR_ZERO = 0.02
LR, LR_SMALL, LR_LARGE, LR_LINEAR = 2e-3, 1e-2, 5e-2, 0.1
PATIENCE = 100  # steps without a gain of 2 % after which an attempt is given up
MAX_SECONDS = 60.0  # of this thread's CPU, so that other work on the machine does not use them up
CHECK_EVERY = 10
AS_FAR = 0.05
LARGE = 5.0
TINY = 1e-9
FELL = 0.9  # of the first loss: above it, nothing was learned
MOVES = 0.1  # deviation over rows of scores whose order says something
# scores that pile up at a bound: how near each other, relative to their labels, and how many
PILED, LEAST_PILED = (0.15, 3)


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
        return (
            min(self.losses) <= self.linear + AS_FAR * max(self.constant - self.linear, 0.0) + TINY
        )

    @property
    def share(self) -> float:
        """Last loss as a share of the constant's."""
        return self.losses[-1] / max(self.constant, TINY)


def overfit(
    network: nn.Module,
    declaration: Declaration,
    statistics: Statistics,
    shape: ModelShape,
    probe: Probe,
) -> tuple[CheckResult, tuple[float, ...]]:
    """Whether the network learns one batch by heart, and the loss by step.

    A network that fails on 32 rows is tried again with a larger learning rate, then on 8 and on 2
    rows (a linear one needs a large rate): passing those alone is a warning (a small network, or
    inputs that barely differ), and so is coming as far as linear scores where these do not reach
    zero either. A linear model is tried on at most half as many rows as it has inputs, because more
    need not be linearly separable; to come as far as linear scores is all that it can do.
    """
    loss, deadline = (
        make_loss(unweighted(declaration), statistics),
        time.thread_time() + MAX_SECONDS,
    )
    probe = within_reach(probe)
    curves: list[Curve] = []
    for rows, lr in _attempts(declaration, shape, len(probe)):
        curves.append(learn(network, loss, probe.first(rows), shape.outputs, lr, deadline))
        if curves[-1].reached or not math.isfinite(curves[-1].losses[-1]):
            break
    shown = curves[-1] if curves[-1].reached else _compared(loss, probe, shape.outputs, curves)
    return _judge(declaration, probe, shown), shown.losses


def within_reach(probe: Probe) -> Probe:
    """The rows with the label [B] of a regression divided by its deviation, where that is so large
    that a few hundred steps cannot reach it.

    Labels are scaled to deviation 1 over all train rows; of a heavy-tailed one the rows at the ends
    lie hundreds of deviations out.
    """
    if not probe.label.dtype.is_floating_point or probe.label.ndim > 1:
        return probe
    deviation = float(probe.label.std(unbiased=False))
    return Probe(probe.inputs, probe.label / deviation) if deviation > LARGE else probe


def _compared(loss: Loss, probe: Probe, outputs: int, curves: list[Curve]) -> Curve:
    """The first of the curves that comes as far as linear scores of its rows, else the
    first one.
    """
    measured = [
        replace(curve, linear=linear_loss(loss, probe.first(curve.rows), outputs))
        for curve in curves
    ]
    return next((curve for curve in measured if curve.as_far_as_linear), measured[0])


def unweighted(declaration: Declaration) -> Declaration:
    """The declaration without label smoothing, class weights and positive weights."""
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
    """Rows and learning rates to try, hardest first."""
    if declaration.model.kind != "linear":
        return tuple(
            (min(rows, available), lr)
            for rows, lr in (
                (ROWS, LR),
                (ROWS, LR_SMALL),
                (ROWS, LR_LARGE),
                (FEWER_ROWS, LR_SMALL),
                (2, LR_SMALL),
                (FEWER_ROWS, LR_LINEAR),
                (2, LR_LINEAR),
            )
        )
    inputs = shape.numeric + shape.tensor_width + sum(n - 1 for n in shape.categories)
    rows = max(2, min(ROWS, available, inputs // 2))
    return (rows, LR_LINEAR), (max(2, rows // 4), LR_LINEAR), (2, LR_LINEAR)


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
    student = without_dropout(copy.deepcopy(network))
    parameters = [p for p in student.parameters() if p.requires_grad]
    # goes once over each tensor; torch refuses it for other types
    fused = all(p.dtype in (torch.float32, torch.float64) for p in parameters)
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=fused)
    losses, reached = list[float](), False
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        scores = student(probe.inputs)
        value = loss.per_row(scores, probe.label).mean()
        losses.append(float(value.detach()))
        if step % CHECK_EVERY == 0:
            losses[-1] = min(losses[-1], _eval_loss(student, loss, probe))
        reached = losses[-1] <= (NEAR_ZERO * losses[0] if goal is None else goal)
        if reached or _stalled(losses) or time.thread_time() > deadline:
            break
        value.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS)
        optimizer.step()
    return Curve(
        len(probe),
        tuple(losses),
        constant,
        scores.detach(),
        reached,
        time.thread_time() > deadline and not reached,
    )


def _stalled(losses: list[float]) -> bool:
    """Not finite, or without a gain of 2 % for 100 steps."""
    return not math.isfinite(losses[-1]) or (
        len(losses) > PATIENCE and min(losses[-PATIENCE:]) > 0.98 * min(losses[:-PATIENCE])
    )


def without_dropout(network: nn.Module) -> nn.Module:
    """The network in train mode with every dropout module set to 0."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return network.train()


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


def _eval_loss(student: nn.Module, loss: Loss, probe: Probe) -> float:
    """The loss in eval mode: dropout written as a function cannot be turned off otherwise."""
    student.eval()
    with torch.no_grad():
        value = float(loss.per_row(student(probe.inputs), probe.label).mean())
    student.train()
    return value


# ----------------------------------------------------------------------------------------- verdict


def undecided(did: str, figures: dict[str, float | int | str | None]) -> CheckResult:
    """What is told where the time ran out first: neither that the network can learn, nor that it
    cannot.

    Args:
        did: rows, losses and steps in words.
        figures: of the curve.
    """
    summary = (
        f"{did}: stopped after {MAX_SECONDS:.0f} s of CPU, so that nothing is known of whether one"
        " batch can be overfit."
    )
    remedy = "try the same network in a smaller size (bulkhead smoke), or on a faster machine"
    return CheckResult(
        name="overfit", verdict="warn", summary=summary, remedy=remedy, figures=figures
    )


def _judge(declaration: Declaration, probe: Probe, curve: Curve) -> CheckResult:
    figures: dict[str, float | int | str | None] = {
        "rows": curve.rows,
        "steps": len(curve.losses),
        "first_loss": _finite(curve.losses[0]),
        "last_loss": _finite(curve.losses[-1]),
        "constant_loss": curve.constant,
        "linear_loss": None if curve.reached else curve.linear,
    }
    did = (
        f"{curve.rows} rows, loss {curve.losses[0]:.3g} → {curve.losses[-1]:.2g} in"
        f" {len(curve.losses)} steps"
    )
    if curve.reached and (
        declaration.model.kind == "linear" or curve.rows >= min(ROWS, len(probe))
    ):
        return CheckResult(
            name="overfit",
            verdict="pass",
            summary=f"One batch was overfit: {did}.",
            figures=figures,
        )
    if curve.reached:
        summary = (
            f"{did}; {min(ROWS, len(probe))} rows were not overfit: the network is small,"
            " or its inputs barely differ between rows."
        )
        return CheckResult(
            name="overfit",
            verdict="warn",
            summary=summary,
            figures=figures,
            remedy="try a wider or deeper model",
        )
    bounded = _bounded(curve, probe)
    if curve.as_far_as_linear and not bounded:
        told = (
            f"{did}; linear scores get to {curve.linear:.2g} on these rows: their inputs hardly"
            " tell them apart"
        )
        if declaration.model.kind == "linear" and curve.linear < (1 - AS_FAR) * curve.constant:
            return CheckResult(
                name="overfit",
                verdict="pass",
                summary=f"As far as a linear model can: {told}.",
                figures=figures,
            )
        remedy = (
            "look whether features that distinguish rows are missing; a linear model of your own"
            " may be as it should"
        )
        return CheckResult(
            name="overfit",
            verdict="warn",
            summary=f"{told}, or the network is linear.",
            figures=figures,
            remedy=remedy,
        )
    if curve.out_of_time and math.isfinite(curve.losses[-1]):
        return undecided(did, figures)
    summary, remedy = _diagnose(declaration, probe, curve)
    return CheckResult(
        name="overfit",
        verdict="fail",
        summary=(
            f"One batch could not be overfit: {did}, {curve.share:.0%} of a constant"
            f" prediction's loss. {summary}"
        ),
        figures=figures,
        remedy=remedy,
    )


def _diagnose(declaration: Declaration, probe: Probe, curve: Curve) -> tuple[str, str]:
    """What is probably wrong, and what to do."""
    scores = curve.scores
    within = bool((scores >= 0).all() and (scores <= 1).all())
    if not math.isfinite(curve.losses[-1]):
        return (
            "The loss is not finite after a few steps.",
            "look for log, division or sqrt of values near 0 in forward",
        )
    if float(scores.std(0).max()) < 1e-4:
        return (
            "All rows get the same scores: the inputs do not reach the output.",
            (
                "follow one input through forward; look for a dead activation or an input that is"
                " multiplied by 0"
            ),
        )
    if declaration.task.kind in ("binary", "multilabel") and within:
        return (
            "All scores lie between 0 and 1: a sigmoid in the model.",
            "return log odds; the loss applies the sigmoid",
        )
    if (
        declaration.task.kind == "multiclass"
        and within
        and torch.allclose(scores.sum(1), torch.ones(len(scores)), atol=1e-3)
    ):
        return (
            "Each row's scores add up to 1: a softmax in the model.",
            "return logits; the loss applies the softmax",
        )
    if declaration.task.kind == "multiclass" and (always := _one_order(curve)):
        return (
            (
                f"{always}: scores can only be ordered in one way (cumulated, sorted or shifted"
                " outputs?)."
            ),
            "give each class its own score from a linear layer",
        )
    if (
        declaration.task.kind == "regression"
        and bool((scores >= 0).all())
        and bool((probe.label[: curve.rows] < 0).any())
    ):
        return (
            (
                "No score is below 0 though labels are: the output is bounded below (relu,"
                " softplus, exp?)."
            ),
            "end with a plain linear layer; labels are scaled to mean 0",
        )
    if _bounded(curve, probe):
        low, high = float(scores.min()), float(scores.max())
        return (
            (
                f"Scores stop at {low:.3g} and {high:.3g}, labels go on: the output is bounded"
                " (tanh, sigmoid, clamp?)."
            ),
            "end with a plain linear layer",
        )
    if curve.losses[-1] > FELL * curve.losses[0]:
        return (
            (
                "The loss hardly moved: the gradient does not reach what matters, or labels"
                " contradict their rows."
            ),
            (
                "look for .detach(), frozen layers or a bounded output in forward, and check that"
                " labels belong to their rows"
            ),
        )
    return (
        (
            "It moved, but not far enough: the output is bounded or rounded, or the network is too"
            " small."
        ),
        "end with a plain linear layer without activation; try a wider model",
    )


def _one_order(curve: Curve) -> str:
    """In words, where the scores of several classes stand in one order in every row, or one is the
    highest though the loss fell; else empty.
    """
    order = curve.scores.argsort(dim=1, stable=True)
    apart = curve.scores - curve.scores.mean(1, keepdim=True)  # what a softmax sees
    if bool((order == order[0]).all()) and (
        float(curve.scores.std(0).max()) > MOVES or float(apart.std(0).max()) < 1e-4
    ):
        return "The classes' scores are in the same order in every row, though labels differ"
    if bool((order[:, -1] == order[0, -1]).all()) and curve.losses[-1] <= FELL * curve.losses[0]:
        return (
            "One class has the highest score in every row, though labels differ and the loss fell"
        )
    return ""


def _bounded(curve: Curve, probe: Probe) -> bool:
    """Whether the scores of a regression pile up at one value where several different labels lie
    beyond it.
    """
    label, scores = probe.label[: curve.rows], curve.scores
    if not label.dtype.is_floating_point or label.ndim > 1:
        return False
    for sign in (1.0, -1.0):
        reached, wanted = sign * scores[:, 0], sign * label
        beyond = wanted > reached.max()
        if int(beyond.sum()) >= LEAST_PILED and float(reached[beyond].std()) < PILED * float(
            wanted[beyond].std()
        ):
            return True
    return False


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
