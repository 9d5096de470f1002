"""The preflight check of whether the gradient is the slope of the loss: autograd against finite
differences, in float64.

A custom backward pass that is wrong, a hook that masks the wrong half and a part that is cut off
from the graph all train, only worse; the loss still falls. Between gradient and slope the
difference is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from schemas.errors import first_few
from schemas.records import CheckResult
from training.preflight.verdict import failed, passed

STEP = 1e-5  # of a weight, relative to its size
FINER = 3.7  # second step, by which a jump is told from a slope
FINEST = 1e-7  # of a weight: few bends of a ReLU lie within it, and float64 leaves it seven digits
APART = 1e-3  # difference that is no rounding, relative to the slopes of all tensors
APART_ALONE = 1e-2  # the same of one tensor
FLAT = 1e-3  # share of the gradient below which a slope counts as none
DIRECTIONS = 2
NODES = 50_000  # of a graph that is searched for custom functions


def check_slopes(network: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> CheckResult:
    """The loss changes along random directions of the weights as its gradient says, in eval mode.

    Args:
        network: in float64 and eval mode, made for this check alone: hooks on its parameters are
            among what is checked, and no copy has them.
        loss_of: the loss of the network, a scalar, made again in each call.
    """
    weights = {name: p for name, p in network.named_parameters() if p.requires_grad}
    loss = _repeated(network, loss_of)
    custom = _custom_functions(loss)
    loss.backward()
    gradients = {
        name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in weights.items()
    }
    padding = _padding_rows(network, weights)
    generator = torch.Generator().manual_seed(0)
    for _ in range(DIRECTIONS):
        directions = {name: _direction(p, generator) for name, p in weights.items()}
        for name, row in padding:
            directions[name][row] = 0  # kept as it is on purpose
        expected = {name: float((gradients[name] * d).sum()) for name, d in directions.items()}
        scale = sum(map(abs, expected.values()))
        if all(
            abs(_slope(network, weights, directions, loss_of, step) - sum(expected.values()))
            > APART * max(scale, 1e-12)
            for step in (STEP, FINEST)
        ):
            break
    else:
        return passed(
            "gradcheck",
            f"The gradient is the slope of the loss, by finite differences of {len(weights)}"
            " tensors in float64.",
        )
    wrong = {}
    for name, direction in directions.items():
        slope = _slope(network, weights, {name: direction}, loss_of, STEP)
        large = max(abs(slope), abs(expected[name]), APART * scale)
        if abs(slope - expected[name]) <= APART_ALONE * large or abs(slope) < FLAT * abs(
            expected[name]
        ):  # flat: rounding
            continue
        if (
            abs(slope - _slope(network, weights, {name: direction}, loss_of, STEP / FINER))
            <= APART * large
        ):  # no jump: a choice
            wrong[name] = (expected[name], slope)
    return _judged(wrong, weights, custom)


def _judged(
    wrong: dict[str, tuple[float, float]], weights: dict[str, nn.Parameter], custom: list[str]
) -> CheckResult:
    """What is probably wrong where gradient and slope, by tensor, differ."""
    if not wrong:
        return passed(
            "gradcheck",
            "The gradient is the slope of the loss, but for hard choices that are given one.",
        )
    name, (gradient, slope) = max(wrong.items(), key=lambda item: abs(item[1][0] - item[1][1]))
    told = (
        f"the gradient of {len(wrong)} of {len(weights)} tensors is not the slope of the loss:"
        f" along a random direction of {name} backward gives {gradient:.3g}, the loss moves by"
        f" {slope:.3g}"
    )
    figures: dict[str, float | int | str | None] = {
        "gradient": gradient,
        "slope": slope,
        "tensors": len(wrong),
    }
    hooked = [
        n
        for n in wrong
        if getattr(weights[n], "_backward_hooks", None)
        or getattr(weights[n], "_post_accumulate_grad_hooks", None)
    ]
    if "BackwardHookFunction" in custom:
        summary, remedy = (
            f"{told}. A backward hook of a module changes what goes through it.",
            "let the hook return None, or look at what it lets through",
        )
    elif hooked:
        summary, remedy = (
            f"{told}. A hook changes the gradient of {first_few(hooked)}.",
            "look at which part the hook lets through",
        )
    elif custom:
        summary, remedy = (
            f"{told}. The backward of {first_few(custom)} is written by hand.",
            "compare it with torch.autograd.gradcheck",
        )
        return failed("gradcheck", summary, remedy, **figures)
    else:
        summary, remedy = (
            f"{told}. A part of its way to the loss is cut out of the graph.",
            "look for .detach(), .data and torch.no_grad() in forward",
        )
    return CheckResult(
        name="gradcheck", verdict="warn", summary=summary, remedy=remedy, figures=figures
    )


def _padding_rows(network: nn.Module, weights: dict[str, nn.Parameter]) -> list[tuple[str, int]]:
    """Rows of embedding tables that never get a gradient: the table's name, and which row."""
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
    """A random direction of the size of the weights, so that every tensor has a say."""
    size = float(weight.detach().square().mean().sqrt()) or 1.0
    return size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def _slope(
    network: nn.Module,
    weights: dict[str, nn.Parameter],
    directions: dict[str, Tensor],
    loss_of: Callable[[nn.Module], Tensor],
    step: float,
) -> float:
    """Central difference of the loss along directions of some tensors; the weights are put back to
    the bit.
    """
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


def _custom_functions(loss: Tensor) -> list[str]:
    """Names of the autograd functions of somebody's own in the graph of a loss."""
    pending, seen, found = deque([loss.grad_fn]), set[object](), dict[str, None]()
    while pending and len(seen) < NODES:
        node = pending.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            found[type(node).__name__.removesuffix("Backward")] = None
        pending += [above for above, _ in node.next_functions]
    return list(found)
