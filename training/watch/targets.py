"""Labels of losses: outside what they may be, several a row, left out though they are classes, and
in another order than the scores.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.watch.forwards import Call, Forwards
from training.watch.losses import Functions, at_end
from training.watch.networks import rows_first
from training.watch.record import Listener, Place, Watch

FEW, SOME = 0.02, 5  # share of the labels; losses
ENOUGH = 200  # labels
ROUNDED = 1e-4
APART = 4.0  # times the usual frequency of a token, or a part of it
KINDS = 4  # tokens, below which none is usual


@dataclass(eq=False)
class Ignored:
    """Labels of a loss at one line that it leaves out."""

    index: int
    calls: int = 0
    inside: int = 0  # calls in which they are labels as others are
    counts: Counter[int] = field(default_factory=Counter)


class Targets(Listener):
    """Listens to losses with labels."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.ignored: dict[Place, Ignored] = {}

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("binary_cross_entropy_with_logits",), before=self._shares)
        self.functions.listen(("cross_entropy", "nll_loss"), before=self._left_out)
        self.functions.listen(("cross_entropy", "nll_loss"), before=self._order)
        self.functions.listen(("cross_entropy",), before=self._several)
        self.functions.listen(("ctc_loss",), before=self._blank)
        self.functions.listen(
            ("cosine_embedding_loss", "margin_ranking_loss"), before=self._signs_of_pairs
        )
        self.functions.listen(("hinge_embedding_loss", "soft_margin_loss"), before=self._signs)

    def _signs_of_pairs(
        self, name: str, first: Tensor, second: Tensor, target: Tensor, *_: Any, **__: Any
    ) -> None:
        self._signs(name, first, target)

    def _signs(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        """Labels that are all 0 or 1, some of either, where the loss asks for -1 and 1."""
        zeros, ones = (float((target == v).float().mean()) for v in (0, 1))
        if input.requires_grad and zeros > FEW and ones > FEW and zeros + ones == 1.0:
            self.functions.often(
                "BH888",
                f"{name} is given labels 0 and 1, and asks for -1 and 1: what is labelled 0"
                f" ({zeros:.0%}) costs nothing or is taken for neither",
            )

    def _shares(
        self,
        name: str,
        input: Tensor,
        target: Tensor,
        weight: Any = None,
        *_: Any,
        reduction: str = "mean",
        **__: Any,
    ) -> None:
        if not input.requires_grad or target.requires_grad or reduction == "none":
            return
        wrong = (target < -ROUNDED) | (target > 1 + ROUNDED)
        if isinstance(weight, Tensor):
            wrong &= weight.detach() != 0
        share = float(wrong.float().mean())
        if share > FEW:
            low, high = float(target.min()), float(target.max())
            self.functions.often(
                "BH849",
                f"{name} is given labels from {low:g} to {high:g}, {share:.0%} of them outside 0 to"
                " 1: its loss has no lower bound there",
            )

    def _several(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        """Labels [rows, classes] of 0 and 1 with several a row; where they are what the network was
        given, as in a recommender, they are a distribution.
        """
        call = self.forwards.last
        if (
            not input.requires_grad
            or not target.is_floating_point()
            or target.ndim != 2
            or not bool(((target == 0) | (target == 1)).all())
        ):
            return
        several = float((target.sum(1) > 1).float().mean())
        if several > FEW and (
            call is None
            or all(
                t.shape != target.shape or not torch.equal(t.to(target), target)
                for t in call.inputs
            )
        ):
            self.functions.often(
                "BH873",
                f"{several:.0%} of the rows that {name} is given have several labels: its"
                f" {target.shape[1]} classes exclude each other",
            )

    def _blank(
        self,
        name: str,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        *_: Any,
        **__: Any,
    ) -> None:
        """Labels [N] of all rows, or [B, L] of which the first of each row count."""
        lengths = torch.as_tensor(target_lengths).reshape(-1)
        told = targets.reshape(-1)
        if targets.ndim == 2 and len(lengths) == len(targets):
            told = targets[
                torch.arange(targets.shape[1], device=targets.device)
                < lengths.to(targets.device)[:, None]
            ]
        count = int((told == blank).sum())
        if count > FEW * told.numel():
            self.functions.often(
                "BH865",
                f"{count} of {told.numel()} labels are {blank}, which is the blank of {name}: they"
                " cannot be written",
            )

    # --------------------------------------------------------------------------------- classes left
    # out

    def _left_out(
        self, name: str, input: Tensor, target: Tensor, *_: Any, ignore_index: int = -100, **__: Any
    ) -> None:
        call = self.forwards.last
        if (
            call is None
            or not input.requires_grad
            or target.is_floating_point()
            or input.ndim < 2
            or not 0 <= ignore_index < input.shape[1]
        ):
            return
        known = self.ignored.setdefault(self.watch.here(), Ignored(ignore_index))
        known.calls += 1
        labels = target.detach().reshape(-1)
        following = is_next(call.inputs, labels, ignore_index)
        counted = (
            labels[~at_end(labels.reshape(len(call.inputs[0]), -1), ignore_index).reshape(-1)]
            if following
            else labels
        )
        known.counts.update(counted.tolist() if sum(known.counts.values()) < ENOUGH * 100 else [])
        if not bool((labels == ignore_index).any()):
            known.calls -= 1
        elif input.ndim == 2 and target.ndim == 1 and len(target) == call.rows:
            known.inside += 1
        elif following:
            rows = labels.reshape(len(call.inputs[0]), -1)
            known.inside += float(inside(rows, ignore_index)) > 1 / 2

    def _order(self, name: str, input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
        """Scores [B · T, V] of a result [T, B, V] or its transpose, beside labels of [B, T]."""
        call, base = self.forwards.last, target._base
        if (
            call is None
            or not input.requires_grad
            or input.ndim != 2
            or target.ndim != 1
            or target.is_floating_point()
        ):
            return
        output = next(
            (
                t
                for t in call.outputs
                if t.is_floating_point() and t.ndim == 3 and t.numel() == input.numel()
            ),
            None,
        )
        if output is None or output.shape[2] != input.shape[1]:
            return
        order = order_of(input.detach().float(), output.detach().float())
        given = (
            tuple(base.shape)
            if base is not None
            and base.ndim == 2
            and base.numel() == target.numel()
            and same_order(base, target)
            else None
        )
        if given is None and is_next(call.inputs, target.detach()):
            given = tuple(call.inputs[0].shape)
        if (
            order is not None
            and given is not None
            and self._crossed(call, output, input, target.detach(), order, given)
        ):
            told = (
                f"{name} is given scores in the order {list(order)} and labels in the order"
                f" {list(given)}"
            )
            self.functions.often(
                "BH851",
                f"{told}, both made flat: nearly each score meets the label of another place",
            )

    def _crossed(
        self,
        call: Call,
        output: Tensor,
        scores: Tensor,
        labels: Tensor,
        order: tuple[int, int],
        given: tuple[int, ...],
    ) -> bool:
        """Whether the orders differ; in a square of rows and places, whether the axis of rows in
        the result is that of the tokens.
        """
        if order[0] != order[1]:
            return given == order[::-1]
        straight = torch.allclose(
            output.detach().float().reshape(scores.shape),
            scores.detach().float(),
            rtol=1e-3,
            atol=1e-4,
        )
        return not straight and order == given and is_next(call.inputs, labels) and rows_first(call)

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """Labels that are left out in most losses, and occur as others do."""
        for place, known in self.ignored.items():
            total = sum(known.counts.values())
            usual = sorted(known.counts.values())[len(known.counts) // 2] if known.counts else 0
            count = known.counts[known.index]
            if (
                known.inside < SOME
                or known.inside < known.calls / 2
                or total < ENOUGH
                or count < FEW * total
            ):
                continue
            if len(known.counts) < KINDS or usual / APART <= count <= usual * APART:
                told = (
                    f"ignore_index is {known.index}, and {count} of {total} labels are"
                    f" {known.index}, among the others"
                )
                self.watch.tell("BH850", f"{told}: the network is never told of that class", place)


def is_next(inputs: list[Tensor], labels: Tensor, padding: int | None = None) -> bool:
    """Whether labels are the tokens after those of the first input [B, T], row by row; of shorter
    rows until padding fills what is left.
    """
    tokens = inputs[0] if inputs else None
    if (
        tokens is None
        or tokens.ndim != 2
        or tokens.dtype != torch.int64
        or labels.numel() != tokens.numel()
        or tokens.shape[1] < 2
    ):
        return False
    same = labels.reshape(tokens.shape)[:, :-1] == tokens[:, 1:]
    if padding is not None:
        filled = at_end(tokens, padding)[:, 1:]
        same |= filled
        return bool(same.all()) and float(filled.float().mean()) < 1 / 2
    return bool(same.all())


def inside(rows: Tensor, index: int) -> float:
    """Share of the rows with such labels that have others before and after one of them: padding
    stands at an end.

    >>> inside(torch.tensor([[5, 6, 0, 0], [4, 0, 3, 1]]), 0)
    0.5
    """
    other = rows != index
    before, after = (
        other.long().cummax(1).values.bool(),
        other.flip(1).long().cummax(1).values.flip(1).bool(),
    )
    holding = ~other.all(1)
    return float((~other & before & after).any(1)[holding].float().mean())


def order_of(scores: Tensor, output: Tensor) -> tuple[int, int] | None:
    """In which order scores [N, V] were made flat from a result [A, B, V].

    >>> output = torch.arange(12.0).reshape(2, 3, 2)
    >>> (order_of(output.reshape(6, 2), output),
    ...     order_of(output.transpose(0, 1).reshape(6, 2), output))
    ((2, 3), (3, 2))
    """
    a, b = output.shape[:2]
    for order, flat in (((a, b), output), ((b, a), output.transpose(0, 1))):
        if torch.allclose(flat.reshape(scores.shape), scores, rtol=1e-3, atol=1e-4):
            return order
    return None


def same_order(base: Tensor, target: Tensor) -> bool:
    """Whether a view holds all values of its base in the order of their rows."""
    return base.is_contiguous() and bool((base.reshape(-1) == target).all())
