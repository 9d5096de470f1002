"""Preflight checks of the gradient: each trained tensor is a parameter and gets the right gradient.

A wrong custom backward pass, a hook that masks the wrong half and a detached part all still train,
only worse. The comparison of gradient and slope is exact, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from schemas.errors import first_few
from schemas.records import CheckResult
from training.models.shape import FIRST_VALUE
from training.objectives.losses import Loss
from training.preflight.inputs import frozen_codes
from training.preflight.subject import Probe, Subject, Trial, mean_loss, student_of, update
from training.preflight.verdict import Check, Figure

PARAMETERS = Check("parameters")
GRADIENTS = Check("gradients")
GRADCHECK = Check("gradcheck")
# a layer behind one that starts at zero gets its gradient from the second step on
GRADIENT_STEPS, RATE = 3, 1e-3
SLOPE_ROWS = 8
STEP = 1e-5  # relative to the size of a weight
FINER = 3.7  # divisor of the second step, which separates a jump from a slope
FINEST = 1e-7  # crosses few kinks of a ReLU, and leaves seven digits in float64
APART = 1e-3  # difference beyond rounding, relative to the slopes of all tensors
APART_ALONE = 1e-2  # the same for one tensor
FLAT = 1e-3  # share of the gradient below which a slope counts as none
DIRECTIONS = 2


def check_parameters(network: nn.Module, loss: Loss, rows: Probe) -> CheckResult:
    """Check that each tensor with a gradient in the loss is a parameter, and that parameters are
    float32.

    Args:
        network: network, which is not changed.
        loss: loss per row.
        rows: rows of one forward pass.
    """
    odd = {
        name: str(p.dtype).removeprefix("torch.")
        for name, p in network.named_parameters()
        if p.dtype != torch.float32
    }
    if odd:
        shown = first_few([f"{name} is {dtype}" for name, dtype in odd.items()])
        return PARAMETERS.failed(
            f"expected parameters in float32, found {len(odd)} others: {shown}.",
            "build the layers in float32 and declare train.precision",
        )
    nodes = nodes_of(mean_loss(network, loss, rows))
    # tensors for which a backward pass would leave a gradient
    leaves = [leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None]
    known = {id(p) for p in network.parameters()}
    if strangers := [list(leaf.shape) for leaf in leaves if id(leaf) not in known]:
        return PARAMETERS.failed(
            f"{len(strangers)} tensors of shapes {first_few(strangers)} take part in the loss and"
            " are no parameters of the model: nobody trains, moves or saves them.",
            "keep layers in nn.ModuleList or nn.ModuleDict instead of list or dict, and make every"
            " nn.Parameter once, in __init__",
            tensors=len(strangers),
        )
    return PARAMETERS.passed("All tensors that learn are parameters of the model, in float32.")


def check_gradients(subject: Subject) -> tuple[CheckResult, nn.Module]:
    """Check that every trainable parameter gets a finite nonzero gradient within three steps. Also
    return the copy that made the steps.
    """
    network, rows = subject.network, subject.spread
    if not any(p.requires_grad for p in network.parameters()):
        remedy = "set requires_grad to True for the layers to be trained"
        return GRADIENTS.failed("no parameter is trainable.", remedy), network
    student, optimizer = student_of(network, RATE)
    parameters = {name: p for name, p in student.named_parameters() if p.requires_grad}
    # with equal weights, the signs of an absolute error can add up to exactly 0
    uneven = torch.linspace(0.5, 1.5, len(rows))
    waiting = dict.fromkeys(parameters, "unused in forward, or cut off from the loss")
    for _ in range(GRADIENT_STEPS):
        loss = mean_loss(student, subject.loss, rows, uneven)
        if not loss.requires_grad:
            remedy = "look for torch.no_grad(), .detach(), .item(), argmax or NumPy in forward"
            return GRADIENTS.failed("the loss has no gradient at all.", remedy), student
        update(optimizer, loss, clip="none")
        for name in [name for name in waiting if parameters[name].grad is not None]:
            gradient = parameters[name].grad
            if not torch.isfinite(gradient).all():
                wrong = GRADIENTS.failed(
                    f"the gradient of {name} is not finite.",
                    "look for sqrt or log at 0 and for division by 0 in forward: their value can be"
                    " finite where their gradient is not",
                )
                return wrong, student
            if gradient.any():
                del waiting[name]
            else:
                waiting[name] = "gets a gradient of exactly 0"
    return _judge_reach(subject, waiting, len(parameters)), student


def _judge_reach(subject: Subject, waiting: dict[str, str], parameters: int) -> CheckResult:
    """Report parameters without a gradient and the cause, or categories that never get one."""
    if waiting:
        shown = first_few([f"{name} ({why})" for name, why in waiting.items()])
        return GRADIENTS.failed(
            f"{len(waiting)} of {parameters} trainable parameters are not reached by the"
            f" gradient: {shown}.",
            "use them in forward, remove .detach() and torch.no_grad() on their path, look for dead"
            " activations, or set requires_grad to False",
        )
    if frozen := frozen_codes(subject.network, subject.shape, subject.spread.inputs):
        return GRADIENTS.failed(
            f"a known category is given the padding row of {first_few(frozen)}: it is zero and"
            " never gets a gradient.",
            f"codes are 0 for unknown, 1 for null, and from {FIRST_VALUE} on for values: leave"
            " padding_idx out, or set it to one of the first two",
        )
    told = f"The gradient reaches all {parameters} trainable parameters."
    frozen_here = sum(not p.requires_grad for p in subject.network.parameters())
    told += f" {frozen_here} others are frozen." if frozen_here else ""
    return GRADIENTS.passed(told, parameters=parameters)


def check_gradient(trial: Trial) -> CheckResult:
    """Check that backward computes the slope of the declared loss."""
    network = trial.network().double().eval()
    few = trial.probe.first(SLOPE_ROWS)
    wide = {n: t.double() if t.dtype.is_floating_point else t for n, t in few.inputs.items()}
    rows = Probe(wide, few.label)
    try:
        return check_slopes(network, lambda computed: mean_loss(computed, trial.loss, rows))
    except RuntimeError as error:
        said = (str(error).splitlines() or [""])[0][:200]
        told = f"Not measured: the network does not compute in float64 ({said})."
        return GRADCHECK.passed(told)


def check_slopes(network: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> CheckResult:
    """Check that the loss changes along random weight directions as its gradient predicts.

    Args:
        network: network in float64 and eval mode, made for this check. A copy would lose the
            hooks on its parameters, which are checked too.
        loss_of: function that computes the scalar loss of the network.
    """
    weights = {name: p for name, p in network.named_parameters() if p.requires_grad}
    loss = _repeated(network, loss_of)
    custom = dict.fromkeys(
        type(node).__name__.removesuffix("Backward")  # custom autograd functions
        for node in nodes_of(loss)
        if isinstance(node, BackwardCFunction)
    )
    loss.backward()
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in weights.items()}
    padding = _padding_rows(network, weights)
    generator = torch.Generator().manual_seed(0)
    for _ in range(DIRECTIONS):
        directions = {name: _direction(p, generator) for name, p in weights.items()}
        for name, row in padding:
            directions[name][row] = 0  # padding is kept unchanged on purpose
        expected = {name: float((gradients[name] * d).sum()) for name, d in directions.items()}
        scale = sum(map(abs, expected.values()))
        slopes = (_slope(network, weights, directions, loss_of, step) for step in (STEP, FINEST))
        far, told = APART * max(scale, 1e-12), sum(expected.values())
        if all(abs(slope - told) > far for slope in slopes):
            break
    else:
        return GRADCHECK.passed(
            f"The gradient is the slope of the loss, by finite differences of {len(weights)}"
            " tensors in float64."
        )
    wrong = {}
    for name, direction in directions.items():
        slope = _slope(network, weights, {name: direction}, loss_of, STEP)
        size = abs(expected[name])
        large = max(abs(slope), size, APART * scale)
        # flat: rounding
        if abs(slope - expected[name]) <= APART_ALONE * large or abs(slope) < FLAT * size:
            continue
        finer = _slope(network, weights, {name: direction}, loss_of, STEP / FINER)
        if abs(slope - finer) <= APART * large:  # no jump: a choice
            wrong[name] = (expected[name], slope)
    return _judge_slopes(wrong, weights, custom)


def _judge_slopes(
    wrong: dict[str, tuple[float, float]], weights: dict[str, nn.Parameter], custom: Iterable[str]
) -> CheckResult:
    """Report the probable cause of tensors whose gradient differs from the slope."""
    if not wrong:
        return GRADCHECK.passed(
            "The gradient is the slope of the loss, but for hard choices that are given one."
        )
    name, (gradient, slope) = max(wrong.items(), key=lambda item: abs(item[1][0] - item[1][1]))
    told = (
        f"the gradient of {len(wrong)} of {len(weights)} tensors is not the slope of the loss:"
        f" along a random direction of {name} backward gives {gradient:.3g}, the loss moves by"
        f" {slope:.3g}"
    )
    figures: dict[str, Figure] = {"gradient": gradient, "slope": slope, "tensors": len(wrong)}
    hooked = [
        n
        for n in wrong
        if getattr(weights[n], "_backward_hooks", None)
        or getattr(weights[n], "_post_accumulate_grad_hooks", None)
    ]
    if "BackwardHookFunction" in custom:
        told += ". A backward hook of a module changes what goes through it."
        remedy = "let the hook return None, or look at what it lets through"
    elif hooked:
        told += f". A hook changes the gradient of {first_few(hooked)}."
        remedy = "look at which part the hook lets through"
    elif custom:
        told += f". The backward of {first_few(custom)} is written by hand."
        return GRADCHECK.failed(told, "compare it with torch.autograd.gradcheck", **figures)
    else:
        told += ". A part of its way to the loss is cut out of the graph."
        remedy = "look for .detach(), .data and torch.no_grad() in forward"
    return GRADCHECK.warned(told, remedy, **figures)


def _padding_rows(network: nn.Module, weights: dict[str, nn.Parameter]) -> list[tuple[str, int]]:
    """Return embedding rows that never get a gradient: name of the table and number of the row."""
    rows = {
        id(m.weight): m.padding_idx
        for m in network.modules()
        if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.padding_idx is not None
    }
    return [(name, rows[id(p)]) for name, p in weights.items() if id(p) in rows]


def _repeated(network: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> Tensor:
    torch.manual_seed(0)
    return loss_of(network)


def _direction(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random direction scaled to the weights, so that every tensor contributes."""
    size = float(weight.detach().square().mean().sqrt()) or 1.0
    return size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def _slope(
    network: nn.Module,
    weights: dict[str, nn.Parameter],
    directions: dict[str, Tensor],
    loss_of: Callable[[nn.Module], Tensor],
    step: float,
) -> float:
    """Return the central difference of the loss along directions; restore weights bitwise."""
    before = {name: weights[name].detach().clone() for name in directions}
    losses = []
    with torch.no_grad():
        for sign in (1, -1):
            for name, direction in directions.items():
                weights[name].copy_(before[name] + sign * step * direction)
            losses.append(float(_repeated(network, loss_of)))
        for name, value in before.items():
            weights[name].copy_(value)
    return (losses[0] - losses[1]) / (2 * step)


def nodes_of(value: Tensor) -> list[Any]:
    """Return each node of a value's graph once, from the value on."""
    waiting, seen = [value.grad_fn], dict[Any, None]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(seen)
