"""Places behind the end of sequences: masks that keep these alone, and scores in which they
count.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.watch.forwards import Call, Forwards
from training.watch.losses import Functions
from training.watch.record import Listener, Place, Watch

NOTHING = -1e4  # scores below it are 0 after a softmax
REMEMBERED = 8
TWICE, THRICE = 2, 3
ADDED = 2  # places that a network sets before or behind its tokens, as one for the whole row
KINDS = 3  # values of tokens from which on they are no padding
MUCH = 0.1  # of the labels
HALF = 0.5
SEQUENCES = 3  # axes

# B rows, T places of a sequence


@dataclass(eq=False)
class Compared:
    """Labels and predictions of an evaluation, some of them ignored by the loss, and what was made
    of their comparison.
    """

    place: Place
    sides: tuple[Tensor, Tensor]
    equal: Tensor  # as it was at first
    same: list[Tensor]  # it and its casts
    ignored: int
    share: float  # of labels that are ignored
    hits: bool  # most of the ignored ones are right
    summed: bool = False
    whole: bool = False  # all labels are counted
    averaged: bool = False
    spared: bool = False  # the ignored ones are told apart

    @property
    def counts(self) -> bool:
        """Whether the ignored labels count in the score."""
        return not self.spared and (self.averaged or (self.summed and (self.hits or self.whole)))


class Padding(Listener):
    """Listens to embeddings, masks, losses and comparisons."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.tokens: deque[Tensor] = deque(maxlen=REMEMBERED)
        # by line: all, and those that keep the padding alone
        self.masks: dict[Place, list[int]] = {}
        # labels that the loss was given and did not count, and of how many classes
        self.ignored: set[tuple[int, int]] = set()
        # tensors that were compared with a number
        self.told_apart: deque[Tensor] = deque(maxlen=REMEMBERED)
        self.compared: deque[Compared] = deque()
        # by line: all, those with padding in them, and the last of these
        self.scores: dict[Place, tuple[int, int, str]] = {}

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("embedding",), before=self._embedded)
        self.functions.listen(("linear",), before=self._projected)
        self.functions.listen(("masked_fill", "masked_fill_"), before=self._filled)
        self.functions.listen(("scaled_dot_product_attention",), before=self._attended)
        self.functions.listen(("cross_entropy", "nll_loss"), before=self._lost)
        self.functions.listen(
            ("eq", "__eq__", "ne", "__ne__", "gt", "__gt__", "ge", "__ge__", "lt", "__lt__"),
            after=self._equal,
        )
        self.functions.listen(
            (
                "float",
                "double",
                "half",
                "long",
                "int",
                "to",
                "type",
                "view",
                "reshape",
                "flatten",
                "cpu",
                "detach",
            ),
            after=self._cast,
        )
        self.functions.listen(("sum", "mean", "count_nonzero"), before=self._reduced)
        self.functions.listen(("numel", "nelement"), before=self._counted)

    # ---------------------------------------------------------------------------------------- masks

    def _embedded(self, name: str, tokens: Any, *_: Any, **__: Any) -> None:
        if (
            isinstance(tokens, Tensor)
            and tokens.ndim == 2
            and not any(t is tokens for t in self.tokens)
        ):
            self.tokens.append(tokens)

    def _projected(self, name: str, given: Any, *_: Any, **__: Any) -> None:
        """Sequences of numbers [B, T, F] as they come, with nothing but zeros behind their end:
        places with zeros are token 0, each other one is a token of its own.
        """
        if (
            torch.is_grad_enabled()
            and isinstance(given, Tensor)
            and given.ndim == SEQUENCES
            and given.is_floating_point()
            and not given.requires_grad
            and given.shape[1] > 1
        ):
            zero = (given == 0).all(2)
            if bool(zero.any()) and not bool(zero.all()):
                self.tokens.append(
                    torch.arange(1, zero.numel() + 1, device=given.device)
                    .reshape(zero.shape)
                    .masked_fill(zero, 0)
                )

    def _filled(
        self, name: str, given: Any, mask: Any = None, value: Any = None, *_: Any, **__: Any
    ) -> None:
        """Masks of torch's own attention come by here as well: it fills scores with -inf."""
        if (
            isinstance(given, Tensor)
            and given.is_floating_point()
            and isinstance(mask, Tensor)
            and value is not None
            and float(value) <= NOTHING
        ):
            self._look(mask)

    def _attended(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Any = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if isinstance(attn_mask, Tensor) and attn_mask.dtype == torch.bool:
            self._look(~attn_mask)

    def _look(self, mask: Tensor) -> None:
        """Look at a mask over the keys of each row (true: left out): [B, T], [B, 1, T], [B, 1, 1,
        T].
        """
        if (
            mask.dtype != torch.bool
            or mask.ndim < 2
            or mask.numel() != mask.shape[0] * mask.shape[-1]
        ):
            return
        mask = mask.reshape(len(mask), -1)
        over = [
            (t, mask.shape[1] - t.shape[1])
            for t in self.tokens
            if len(t) == len(mask) and 0 <= mask.shape[1] - t.shape[1] <= ADDED
        ]
        if over:
            counts = self.masks.setdefault(self.watch.here(), [0, 0])
            counts[0] += 1
            counts[1] += any(
                keeps_padding(part, t)
                for t, more in over
                for part in (mask[:, more:], mask[:, : mask.shape[1] - more])
            )

    # --------------------------------------------------------------------------------------- scores

    def _lost(
        self,
        name: str,
        input: Tensor,
        target: Tensor,
        *more: Any,
        ignore_index: int = -100,
        **_: Any,
    ) -> None:
        ignored = more[2] if len(more) > TWICE else ignore_index
        kind = ignored, input.shape[1] if input.ndim > 1 else len(input)
        if (
            kind not in self.ignored
            and input.requires_grad
            and not target.is_floating_point()
            and bool((target == ignored).any())
        ):
            self.ignored.add(kind)

    def _equal(self, name: str, result: Any, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        call = self.forwards.last
        if (
            not self.ignored
            or call is None
            or call.grad
            or not isinstance(a, Tensor)
            or not is_label(a)
        ):
            return
        if not isinstance(b, Tensor) or not b.ndim:
            self.told_apart.append(a)
            for known in self.compared:
                known.spared |= any(alike(a, side) for side in known.sides)
        elif name in ("eq", "__eq__") and is_label(b) and a.shape == b.shape:
            self._met(call, result, a, b)

    def _met(self, call: Call, result: Tensor, a: Tensor, b: Tensor) -> None:
        sizes = {
            size
            for out in call.outputs
            if out.is_floating_point() and out.ndim > 1
            for size in (out.shape[1], out.shape[-1])
        }
        # another loss may leave out another label
        for ignored in {index for index, classes in self.ignored if classes in sizes or not sizes}:
            shares = [float((side == ignored).float().mean()) for side in (a, b)]
            if max(shares) >= MUCH:
                there = (a if shares[0] > shares[1] else b) == ignored
                hits = float(result[there].float().mean()) > HALF
                known = Compared(
                    self.watch.here(), (a, b), result.clone(), [result], ignored, max(shares), hits
                )
                known.spared = any(alike(t, side) for t in self.told_apart for side in (a, b))
                self.compared.append(known)
                break
        while len(self.compared) > REMEMBERED:
            self._settle(self.compared.popleft())

    def _cast(self, name: str, result: Any, source: Any, *_: Any, **__: Any) -> None:
        for known in self.compared:
            if (
                isinstance(result, Tensor)
                and any(t is source for t in known.same)
                and as_it_was(source, known.equal)
            ):
                known.same.append(result)

    def _reduced(self, name: str, source: Any, *over: Any, **options: Any) -> None:
        for known in self.compared:
            if any(t is source for t in known.same) and as_it_was(source, known.equal):
                known.averaged |= name == "mean"
                known.summed |= name != "mean" and not over and "dim" not in options

    def _counted(self, name: str, source: Any, *_: Any, **__: Any) -> None:
        for known in self.compared:
            known.whole |= any(t is source for t in (*known.sides, *known.same))

    def _settle(self, known: Compared) -> None:
        every, wrong, told = self.scores.get(known.place, (0, 0, ""))
        if known.counts:
            told = (
                f"{known.share:.0%} of the labels that predictions are compared with are"
                f" {known.ignored}, which the loss leaves out: they count in the score"
            )
        self.scores[known.place] = (every + 1, wrong + known.counts, told)

    def ended(self) -> None:
        """What most calls show."""
        for known in self.compared:
            self._settle(known)
        for place, (every, wrong, told) in self.scores.items():
            if wrong >= TWICE and wrong > every * HALF:
                self.watch.tell("BH833", told, place)
        for place, (every, wrong) in self.masks.items():
            if wrong >= THRICE and wrong > every * HALF:
                self.watch.tell(
                    "BH835",
                    "the mask leaves out every token and keeps the padding behind them alone: it is"
                    " the wrong way round",
                    place,
                )


def is_label(tensor: Tensor) -> bool:
    """Whether a tensor may hold labels: several whole numbers."""
    return (
        tensor.numel() > 1
        and not tensor.is_floating_point()
        and not tensor.is_complex()
        and tensor.dtype != torch.bool
    )


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, in whatever shape."""
    return a.numel() == b.numel() and bool(torch.equal(a.reshape(-1), b.reshape(-1)))


def as_it_was(source: Tensor, equal: Tensor) -> bool:
    """Whether a comparison, or a cast of it, has not been masked in place."""
    return source.numel() == equal.numel() and bool(
        torch.equal(source.reshape(-1) != 0, equal.reshape(-1))
    )


def keeps_padding(mask: Tensor, tokens: Tensor) -> bool:
    """Whether what a mask [B, T] leaves of tokens [B, T] is one value behind (or before) the
    others, of another number in each row.

    >>> tokens = torch.tensor([[4, 5, 0, 0], [3, 7, 6, 0]])
    >>> keeps_padding(tokens != 0, tokens), keeps_padding(tokens == 0, tokens)
    (True, False)
    """
    kept = ~mask
    if not bool(kept.any()) or not bool(mask.any()):
        return False
    left, others = tokens[kept], tokens[mask]
    single = bool((left == left[0]).all()) and not bool((others == left[0]).any())
    lengths, steps = kept.sum(1), kept.long().diff(dim=1)
    at_one_end = bool((steps >= 0).all()) or bool((steps <= 0).all())
    return (
        single
        and at_one_end
        and bool((lengths != lengths[0]).any())
        and len(others.unique()) >= KINDS
    )
