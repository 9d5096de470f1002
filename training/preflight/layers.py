"""The preflight checks of layers: units and members are more than one, linear ones in a row are
one, and attention looks at what the rows say.

torch has two conventions: True in `key_padding_mask` leaves a key out, True in the `attn_mask` of
scaled_dot_product_attention lets it in. A network with the wrong one sees padding alone, and still
trains, through its residuals and its pooling. What shows it is the keys themselves: padding is the
same in every row, columns are not.
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
NOTHING = -1e4  # added to a score, at most: the key counts for nothing
PRODUCTS = ("matmul", "__matmul__", "bmm")


def check_layers(student: nn.Module, steps: int, inputs: dict[str, Tensor]) -> CheckResult:
    """After a few steps the units of a layer differ, members of a list too, and the network is more
    than linear if it has layers in a row.

    Args:
        student: every parameter of it got a gradient in the steps; in train mode.
        steps: that it made.
        inputs: of rows with pairwise different inputs.
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
    # a projection, or a stem before the first block, is no fault of a network that bends elsewhere
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
    """Linear layers of which the second is given the very tensor that the first made; pairs that
    squeeze through fewer features are left out.

    Args:
        network: run once, in its present mode.
        inputs: of a few rows.
    """
    made: dict[int, tuple[str, nn.Module, Tensor]] = {}
    pairs: dict[tuple[str, str], None] = {}

    def before(name: str, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        first, module, _ = made.get(id(given[0]) if given else 0, ("", layer, None))
        if module is not layer and type(module) is type(layer) and not _squeezes(module, layer):
            pairs[first, name] = None

    def after(name: str, layer: nn.Module, _given: tuple[Tensor, ...], result: Tensor) -> None:
        made[id(result)] = (name, layer, result)  # held, so that no other tensor gets its id

    with torch.no_grad(), hooked(network, before, after, LINEAR):
        network(copied(inputs))
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


class _Masks(TorchFunctionMode):
    """Keys of attention of which a mask leaves some out: which it lets in, and their values;
    torch's own, or a softmax times the values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []  # bool [rows, keys], [rows, keys, features]
        # what a softmax gave, held so that its id is given to no other tensor
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
        """Of keys [keys, rows, features]; a mask of bool leaves out where it is True, one of
        numbers where it adds -inf.
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
        """A mask of bool lets in where it is True, one of numbers where it does not add -inf."""
        if attn_mask is not None:
            let_in = attn_mask if attn_mask.dtype == torch.bool else attn_mask > NOTHING
            # keys and values may have fewer heads
            self._look(let_in.expand(*query.shape[:-1], key.shape[-2]), value)

    def _look(self, let_in: Tensor, keys: Tensor) -> None:
        """Of what each query is let in to, bool [rows, heads, queries, keys] or [rows, queries,
        keys], and [rows, heads, keys, features] or without heads.
        """
        if let_in.ndim < 3 or let_in.ndim != keys.ndim or let_in.shape[-1] != keys.shape[-2]:
            return
        seen = let_in.flatten(1, -2).any(1)  # by any query of any head
        features = keys if keys.ndim == 3 else keys.transpose(1, -2).flatten(2)
        if not seen.all() and seen.shape == features.shape[:2]:
            self.seen.append((seen, features.detach()))


def check_masks(network: nn.Module, inputs: dict[str, Tensor]) -> list[CheckResult]:
    """Attention with a mask sees keys that differ from row to row; no result where no mask leaves a
    key out.

    Args:
        network: run once, in eval mode.
        inputs: of a few rows, pairwise different.
    """
    # without gradients torch takes a faster way that nobody can look into
    with torch.enable_grad(), _Masks() as masks:
        network.eval()(copied(inputs))
    if not masks.seen:
        return []
    for let_in, keys in masks.seen:
        differ = (keys != keys[:1]).any(-1)
        if not (let_in & differ).any() and (~let_in & differ).any():
            wrong = ATTENTION.failed(
                "attention sees keys that are the same in each row, and its mask leaves out"
                f" {int(differ.any(0).sum())} of {keys.shape[1]} that differ between rows. The mask"
                " is the wrong way round.",
                "turn the mask: True in key_padding_mask leaves a key out, True in the attn_mask of"
                " scaled_dot_product_attention lets it in",
                keys=keys.shape[1],
            )
            return [wrong]
    told = "The masks of attention let in keys that differ between rows."
    return [ATTENTION.passed(told, calls=len(masks.seen))]
