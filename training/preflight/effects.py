"""The preflight check of what a forward pass leaves behind: scores, and in train mode running
statistics; nothing else.
"""

from __future__ import annotations

import copy
from collections import deque

import torch
from torch import Tensor, nn

from schemas.errors import first_few
from schemas.records import CheckResult
from training.objectives.losses import Loss
from training.preflight.probe import Probe
from training.preflight.verdict import failed, passed

SEEDS = (1, 2)


def check_effects(network: nn.Module, loss: Loss, rows: Probe) -> CheckResult:
    """A forward pass changes neither its batch, the parameters, the modes nor the random state, in
    eval mode no buffer, and keeps nothing of it; backward runs.

    Args:
        network: not changed; no forward pass may have run on it, since the first one may differ
            from those after it.
        loss: by row.
        rows: for one batch.
    """
    for mode in (False, True):
        where = f"in {'train' if mode else 'eval'} mode"
        try:
            found = _left_behind(copy.deepcopy(network).train(mode), rows) or _every_pass(
                copy.deepcopy(network).train(mode), rows
            )
            if mode and not found:
                _backward(copy.deepcopy(network).train(), loss, rows)
        except Exception as error:  # a user's module may raise anything
            said = (str(error).splitlines() or [""])[0][:300]
            return failed(
                "effects",
                f"a step {where} raised {type(error).__name__}: {said}",
                "run forward and backward of the module on such a batch by hand",
            )
        if found:
            return failed("effects", f"a forward pass {where} {found[0]}.", found[1])
    return passed(
        "effects",
        "A forward pass changes neither its batch, the weights, the modes nor the random state.",
    )


def _left_behind(network: nn.Module, rows: Probe) -> tuple[str, str] | None:
    """What a pass changed, and what to do; None where nothing."""
    parameters, modes = (
        dict(network.named_parameters()),
        {name: m.training for name, m in network.named_modules()},
    )
    training = any(modes.values())
    watched = parameters if training else network.state_dict()
    before = {
        name: t.detach().clone() for name, t in watched.items() if not training or t.requires_grad
    }
    inputs = {name: t.clone() for name, t in rows.inputs.items()}
    network(inputs)
    after = dict(network.named_parameters())
    new = [name for name, p in after.items() if parameters.get(name) is not p]
    if new:
        return (
            f"made or replaced parameters ({first_few(new)}), which the optimizer does not hold",
            "make every layer and nn.Parameter once, in __init__",
        )
    if any(p.grad is not None for p in after.values()):
        return (
            (
                "ran its own backward pass: gradients that the loss does not know are added to"
                " its own"
            ),
            "add the term to the scores' loss instead",
        )
    changed = [
        name
        for name, t in rows.inputs.items()
        if name not in inputs or inputs[name].shape != t.shape or not _same(inputs[name], t)
    ]
    if changed:
        return (
            f"changes the batch that it is given ({first_few(changed)})",
            "compute a new tensor: x = x / y instead of x /= y, no method that ends in _",
        )
    state = after if training else network.state_dict()
    moved = [name for name, t in before.items() if not _same(state[name].detach(), t)]
    if moved:
        return (
            f"changes {first_few(moved)}",
            "leave weights to the optimizer, and update buffers only where self.training is true",
        )
    switched = [
        name or "the model"
        for name, m in network.named_modules()
        if m.training != modes.get(name, m.training)
    ]
    if switched:
        return (
            f"switches the mode of {first_few(switched)}",
            "leave train() and eval() to the training loop",
        )
    return None


def _every_pass(network: nn.Module, rows: Probe) -> tuple[str, str] | None:
    """Whether the random state after a pass is the same, whatever it was before, and whether the
    second pass keeps more than the first.
    """
    states, held = [], list[dict[str, int]]()
    for seed in SEEDS:
        torch.manual_seed(seed)
        network({name: t.clone() for name, t in rows.inputs.items()})
        states.append(torch.get_rng_state())
        held.append(_held(network))
    if torch.equal(*states):
        return (
            (
                "seeds the global random generator: dropout, and all that is drawn after it, is the"
                " same in every step"
            ),
            "use its own torch.Generator",
        )
    grown = [name for name, size in held[1].items() if size > held[0].get(name, size)]
    if grown:
        return (
            f"keeps more with each batch ({first_few(grown)}): memory grows until it ends",
            "keep nothing of a batch on the module, or clear it",
        )
    return None


def _held(network: nn.Module) -> dict[str, int]:
    """Lengths of the collections that modules hold next to their layers, parameters and hooks."""
    own = vars(nn.Module()).keys()
    named = (
        (f"{name}.{key}".lstrip("."), value)
        for name, m in network.named_modules()
        for key, value in vars(m).items()
        if key not in own
    )
    return {
        name: len(value) for name, value in named if isinstance(value, list | dict | set | deque)
    }


def _backward(network: nn.Module, loss: Loss, rows: Probe) -> None:
    value = loss.per_row(
        network({name: t.clone() for name, t in rows.inputs.items()}), rows.label
    ).mean()
    if value.requires_grad:
        value.backward()


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, not-a-numbers included."""
    return bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
