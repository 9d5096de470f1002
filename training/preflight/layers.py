"""The preflight check of whether layers, units and members are more than one: alike from the start
they stay alike, and linear ones in a row are one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from schemas.errors import first_few
from schemas.records import CheckResult
from training.objectives.losses import Loss
from training.preflight.overfit import without_dropout
from training.preflight.probe import Probe
from training.preflight.scores import scored
from training.preflight.verdict import SAME, failed, largest_difference, passed

# a layer behind one that starts at zero gets its gradient from the second step on
STEPS, RATE = (3, 1e-3)
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def check_layers(network: nn.Module, loss: Loss, rows: Probe) -> CheckResult:
    """After a few steps the units of a layer differ, members of a list too, and the network is more
    than linear if it has layers in a row.

    Args:
        network: every parameter of it gets a gradient; not changed.
        loss: by row.
        rows: with pairwise different inputs.
    """
    student = without_dropout(copy.deepcopy(network))
    pairs = nothing_between(student, rows.inputs)
    optimizer = torch.optim.AdamW(
        [p for p in student.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0
    )
    uneven = torch.linspace(0.5, 1.5, len(rows))
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        (loss.per_row(student(rows.inputs), rows.label) * uneven).mean().backward()
        optimizer.step()
    if units := [name for name, weight in _weights(student) if _all_equal(weight)]:
        told = (
            f"all units of {first_few(units)} have the same weights, and after {STEPS} steps still:"
            " they get the same gradient for ever, and are one unit."
        )
        return failed(
            "layers",
            told,
            "start weights at random: nn.init.kaiming_uniform_, or torch's default",
            layers=len(units),
        )
    if members := list(_equal_members(student)):
        told = (
            f"the members of {first_few(members)} have the same weights, and after {STEPS} steps"
            " still: together they are one of them."
        )
        return failed(
            "layers", told, "build each member, instead of copying one", lists=len(members)
        )
    # a projection, or a stem before the first block, is no fault of a network that bends elsewhere
    if pairs and linear_in_numbers(student.eval(), rows.inputs):
        told = (
            f"{pairs[0][1]} takes what {pairs[0][0]} gives, with nothing in between, and scores are"
            " linear in the numeric columns: the layers are one."
        )
        more = f" {len(pairs)} such pairs." if len(pairs) > 1 else ""
        return CheckResult(
            name="layers",
            verdict="warn",
            summary=told + more,
            remedy="put an activation between them",
            figures={"pairs": len(pairs)},
        )
    return passed(
        "layers", "No two units or members are alike, and the layers are more than one linear one."
    )


def nothing_between(network: nn.Module, inputs: dict[str, Tensor]) -> list[tuple[str, str]]:
    """Linear layers of which the second is given the very tensor that the first made; pairs that
    squeeze through fewer features are left out.

    Args:
        network: run once, in its present mode.
        inputs: of a few rows.
    """
    made: dict[int, tuple[str, nn.Module, Tensor]] = {}
    pairs: dict[tuple[str, str], None] = {}
    handles = []
    for name, module in network.named_modules():
        if not isinstance(module, LINEAR):
            continue

        def before(layer: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
            first = made.get(id(given[0])) if given else None
            if (
                first is not None
                and type(first[1]) is type(layer)
                and first[1] is not layer
                and not _squeezes(first[1], layer)
            ):
                pairs[first[0], name] = None

        def after(
            layer: nn.Module, given: tuple[Tensor, ...], result: Tensor, name: str = name
        ) -> None:
            # held, so that its id is given to no other tensor
            made[id(result)] = (name, layer, result)

        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    with torch.no_grad():
        network({name: t.clone() for name, t in inputs.items()})
    for handle in handles:
        handle.remove()
    return list(pairs)


def linear_in_numbers(network: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether the scores of a row halfway between two others, with the codes of the first, lie
    halfway too.

    Args:
        network: in eval mode.
        inputs: of a few rows; not linear where no numeric column is among them.
    """
    if "numeric" not in inputs:
        return False
    here, there = inputs["numeric"], inputs["numeric"].flip(0)
    scores = [
        scored(network, {**inputs, "numeric": numeric})
        for numeric in (here, there, (here + there) / 2)
    ]
    return largest_difference((scores[0] + scores[1]) / 2, scores[2]) <= SAME


def _squeezes(first: nn.Module, second: nn.Module) -> bool:
    """Whether the first layer has fewer features than what goes in and what comes out: a factorised
    matrix.
    """
    if isinstance(first, nn.Linear) and isinstance(second, nn.Linear):
        return bool(first.out_features < min(first.in_features, second.out_features))
    return any(
        getattr(m, "groups", 1) > 1 or set(getattr(m, "kernel_size", ())) == {1}
        for m in (first, second)
    )


def _weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Matrices of linear layers that learn, [units, ...], by name."""
    for name, module in network.named_modules():
        if isinstance(module, LINEAR) and module.weight.requires_grad:
            yield name, module.weight.detach()


def _all_equal(weight: Tensor) -> bool:
    return len(weight) > 1 and bool((weight == weight[:1]).all())


def _equal_members(network: nn.Module) -> Iterator[str]:
    """Lists of modules, and stacks of matrices in one parameter, whose members have equal
    weights.
    """
    for name, module in network.named_modules():
        children = (
            list(dict.fromkeys(module.children()))
            if isinstance(module, nn.ModuleList | nn.ModuleDict)
            else []
        )
        if len(children) > 1 and all(_same_state(children[0], other) for other in children[1:]):
            yield name
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and parameter.ndim > 2 and _all_equal(parameter.detach()):
            yield name


def _same_state(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules of one type hold the same weights, with a matrix that learns
    among them.
    """
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    if (
        type(a) is not type(b)
        or ours.keys() != theirs.keys()
        or not any(p.ndim > 1 and p.requires_grad for p in ours.values())
    ):
        return False
    return all(p is not theirs[name] and torch.equal(p, theirs[name]) for name, p in ours.items())
