"""The preflight check of whether attention looks at what the rows say: a mask the wrong way round
leaves it the padding alone.

torch has two conventions: True in `key_padding_mask` leaves a key out, True in the `attn_mask` of
scaled_dot_product_attention lets it in. A network with the wrong one still trains, through its
residuals and its pooling. What shows it is the keys themselves: padding is the same in every row,
columns are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from schemas.records import CheckResult
from training.preflight.verdict import failed, passed

NOTHING = -1e4  # added to a score, at most: the key counts for nothing
PRODUCTS = ("matmul", "__matmul__", "bmm")


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
        network.eval()({name: t.clone() for name, t in inputs.items()})
    if not masks.seen:
        return []
    for let_in, keys in masks.seen:
        differ = (keys != keys[:1]).any(-1)
        if not (let_in & differ).any() and (~let_in & differ).any():
            told = (
                "attention sees keys that are the same in each row, and its mask leaves out"
                f" {int(differ.any(0).sum())} of {keys.shape[1]} that differ between rows"
            )
            remedy = (
                "turn the mask: True in key_padding_mask leaves a key out, True in the attn_mask of"
                " scaled_dot_product_attention lets it in"
            )
            return [
                failed(
                    "attention",
                    f"{told}. The mask is the wrong way round.",
                    remedy,
                    keys=keys.shape[1],
                )
            ]
    return [
        passed(
            "attention",
            "The masks of attention let in keys that differ between rows.",
            calls=len(masks.seen),
        )
    ]
