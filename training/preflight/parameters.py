"""The preflight check of what is trained at all: every tensor that learns is a parameter of the
network, in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from schemas.errors import first_few
from schemas.records import CheckResult
from training.objectives.losses import Loss
from training.preflight.probe import Probe
from training.preflight.verdict import failed, passed


def check_parameters(network: nn.Module, loss: Loss, rows: Probe) -> CheckResult:
    """No tensor takes part in the loss with a gradient that is not among the network's parameters;
    these are float32.

    Args:
        network: not changed.
        loss: by row.
        rows: for one forward pass.
    """
    odd = {
        name: str(p.dtype).removeprefix("torch.")
        for name, p in network.named_parameters()
        if p.dtype != torch.float32
    }
    if odd:
        shown = first_few([f"{name} is {dtype}" for name, dtype in odd.items()])
        return failed(
            "parameters",
            f"expected parameters in float32, found {len(odd)} others: {shown}.",
            "build the layers in float32 and declare train.precision",
        )
    value = loss.per_row(
        network({name: t.clone() for name, t in rows.inputs.items()}), rows.label
    ).mean()
    strangers = [
        list(leaf.shape)
        for leaf in leaves(value)
        if not any(leaf is p for p in network.parameters())
    ]
    if strangers:
        return failed(
            "parameters",
            f"{len(strangers)} tensors of shapes {first_few(strangers)} take part in the loss and"
            " are no parameters of the model: nobody trains, moves or saves them.",
            "keep layers in nn.ModuleList or nn.ModuleDict instead of list or dict, and make every"
            " nn.Parameter once, in __init__",
            tensors=len(strangers),
        )
    return passed("parameters", "All tensors that learn are parameters of the model, in float32.")


def leaves(value: Tensor) -> list[Tensor]:
    """The tensors at the ends of a value's graph, for which a backward pass would leave a
    gradient.
    """
    seen, waiting, found = set[object](), [value.grad_fn], list[Tensor]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.append(leaf)
        waiting += [following for following, _ in node.next_functions]
    return found
