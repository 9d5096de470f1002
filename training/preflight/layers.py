"""Preflight checks of layers: distinct units and members, activations between layers, and attention
masks.

torch has two conventions. True in `key_padding_mask` leaves a key out; True in the `attn_mask` of
scaled_dot_product_attention lets it in. A network with an inverted mask attends to padding only and
still trains, through residuals and pooling. The keys show the error: padding is the same in every
row, columns are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from schemas.errors import first_few
from schemas.records import CheckResult
from training.preflight.subject import copied, hooked, scored
from training.preflight.verdict import SAME, Check, largest_difference

LAYERS = Check("layers")
ATTENTION = Check("attention")
LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
NOTHING = -1e4  # largest added score of a key that is left out
PRODUCTS = ("matmul", "__matmul__", "bmm")


def check_layers(student: nn.Module, steps: int, inputs: dict[str, Tensor]) -> CheckResult:
    """Check that units of a layer and members of a list differ, and that layers in a row are not
    one linear layer.

    Args:
        student: network in train mode whose parameters all got a gradient in the steps.
        steps: number of steps.
        inputs: pairwise different inputs.
    """
    pairs = nothing_between(student, inputs)
    if units := [name for name, weight in _weights(student) if _all_equal(weight)]:
        return LAYERS.failed(
            f"all units of {first_few(units)} have the same weights, and after {steps} steps still:"
            " they get the same gradient for ever, and are one unit.",
            "start weights at random: nn.init.kaiming_uniform_, or torch's default",
            layers=len(units),
        )
    if members := list(_equal_members(student)):
        return LAYERS.failed(
            f"the members of {first_few(members)} have the same weights, and after {steps} steps"
            " still: together they are one of them.",
            "build each member, instead of copying one",
            lists=len(members),
        )
    # a linear projection or stem is no fault if the network is nonlinear elsewhere
    if pairs and linear_in_numbers(student.eval(), inputs):
        told = (
            f"{pairs[0][1]} takes what {pairs[0][0]} gives, with nothing in between, and scores are"
            " linear in the numeric columns: the layers are one."
        )
        more = f" {len(pairs)} such pairs." if len(pairs) > 1 else ""
        return LAYERS.warned(told + more, "put an activation between them", pairs=len(pairs))
    return LAYERS.passed(
        "No two units or members are alike, and the layers are more than one linear one."
    )


def nothing_between(network: nn.Module, inputs: dict[str, Tensor]) -> list[tuple[str, str]]:
    """Find linear layers whose input is the unchanged output of another. Pairs with fewer features
    in between are left out.

    Args:
        network: network to run once, in its current mode.
        inputs: inputs of a few rows.
    """
    made: dict[int, tuple[str, nn.Module, Tensor]] = {}
    pairs: dict[tuple[str, str], None] = {}

    def before(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        first, module, _ = made.get(id(given[0]) if given else 0, ("", layer, None))
        if module is not layer and type(module) is type(layer) and not _squeezes(module, layer):
            pairs[first, name] = None

    def after(name: str, layer: nn.Module, _given: tuple[Tensor, ...], result: Tensor) -> None:
        made[id(result)] = (name, layer, result)  # kept alive, so that ids stay unique

    with torch.no_grad(), hooked(network, before, after, LINEAR):
        network(copied(inputs))
    return list(pairs)


def linear_in_numbers(network: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Check that the scores of the midpoint of two rows, with the codes of the first, are the
    midpoint of their scores.

    Args:
        network: network in eval mode.
        inputs: inputs of a few rows. The result is False without numeric columns.
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
    """Check for a factorized matrix: fewer features between two layers than before and after."""
    if isinstance(first, nn.Linear) and isinstance(second, nn.Linear):
        return bool(first.out_features < min(first.in_features, second.out_features))
    return any(
        getattr(m, "groups", 1) > 1 or set(getattr(m, "kernel_size", ())) == {1}
        for m in (first, second)
    )


def _weights(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the trainable weights of linear layers, [units, ...], by name."""
    for name, module in network.named_modules():
        if isinstance(module, LINEAR) and module.weight.requires_grad:
            yield name, module.weight.detach()


def _all_equal(weight: Tensor) -> bool:
    return len(weight) > 1 and bool((weight == weight[:1]).all())


def _equal_members(network: nn.Module) -> Iterator[str]:
    """Yield module lists and stacked parameters whose members have equal weights."""
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
    """Check that two modules of one type have equal weights, including a trainable matrix."""
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    if (
        type(a) is not type(b)
        or ours.keys() != theirs.keys()
        or not any(p.ndim > 1 and p.requires_grad for p in ours.values())
    ):
        return False
    return all(p is not theirs[name] and torch.equal(p, theirs[name]) for name, p in ours.items())


class _Masks(TorchFunctionMode):
    """Mode that records the keys of masked attention: the mask and the values. It covers torch's
    own attention, and a softmax times values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []  # bool [rows, keys], [rows, keys, features]
        # outputs of softmax, kept alive so that ids stay unique
        self.weights: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        # mostly in the order of torch's own parameters, by name or not
        given: list[Any] = [*args, *kwargs.values(), None, None]
        first, second = given[:2]
        if name == "multi_head_attention_forward":
            self._multi_head(kwargs.get("key", second), kwargs.get("key_padding_mask"))
        elif name == "scaled_dot_product_attention":
            self._scaled(*args, **kwargs)
        elif name in PRODUCTS and id(first) in self.weights:
            self._look(first > 0, second)
        result = func(*args, **kwargs)
        if name == "softmax" or (name == "dropout" and id(first) in self.weights):
            self.weights[id(result)] = result
        return result

    def _multi_head(self, key: Tensor, mask: Tensor | None) -> None:
        """Record keys [keys, rows, features]. A bool mask leaves out where it is True, a float mask
        where it adds -inf.
        """
        if mask is not None:
            let_in = ~mask if mask.dtype == torch.bool else mask > NOTHING
            self._look(let_in.unsqueeze(1), key.transpose(0, 1))

    def _scaled(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        """Record values. Bool masks let in where True, float masks where they do not add -inf."""
        if attn_mask is not None:
            let_in = attn_mask if attn_mask.dtype == torch.bool else attn_mask > NOTHING
            # keys and values may have fewer heads
            self._look(let_in.expand(*query.shape[:-1], key.shape[-2]), value)

    def _look(self, let_in: Tensor, keys: Tensor) -> None:
        """Record the keys that any query attends to. The mask is bool [rows, heads, queries, keys],
        the keys are [rows, heads, keys, features], or both have no heads.
        """
        if let_in.ndim < 3 or let_in.ndim != keys.ndim or let_in.shape[-1] != keys.shape[-2]:
            return
        seen = let_in.flatten(1, -2).any(1)  # for any query of any head
        features = keys if keys.ndim == 3 else keys.transpose(1, -2).flatten(2)
        if not seen.all() and seen.shape == features.shape[:2]:
            self.seen.append((seen, features.detach()))


def check_masks(network: nn.Module, inputs: dict[str, Tensor]) -> list[CheckResult]:
    """Check that masked attention uses keys that differ between rows. There is no result without a
    mask.

    Args:
        network: network to run once, in eval mode.
        inputs: inputs of a few rows, pairwise different.
    """
    # without gradients, torch uses a fast path that cannot be observed
    with torch.enable_grad(), _Masks() as masks:
        network.eval()(copied(inputs))
    if not masks.seen:
        return []
    for let_in, keys in masks.seen:
        hidden = _differing(keys, ~let_in)
        if hidden and not _differing(keys, let_in):
            wrong = ATTENTION.failed(
                "attention sees keys that are the same in each row, and its mask leaves out"
                f" {hidden} of {keys.shape[1]} that differ between rows. The mask"
                " is the wrong way round.",
                "turn the mask: True in key_padding_mask leaves a key out, True in the attn_mask of"
                " scaled_dot_product_attention lets it in",
                keys=keys.shape[1],
            )
            return [wrong]
    told = "The masks of attention let in keys that differ between rows."
    return [ATTENTION.passed(told, calls=len(masks.seen))]


def _differing(keys: Tensor, of: Tensor) -> int:
    """Count places whose keys [rows, keys, features] differ between rows of the mask [rows, keys].

    Filling is compared with filling alone: next to a longer row it would seem to differ.
    """
    first = of.int().argmax(dim=0)
    reference = keys[first, torch.arange(keys.shape[1], device=keys.device)]
    return int(((keys != reference).any(-1) & of).any(0).sum())
