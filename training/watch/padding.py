"""Padding of sequences: inverted masks, metrics that count padding, and padding indices of real
values.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.losses import Functions
from training.watch.record import Watch

NOTHING = -1e4  # masked scores, which are 0 after a softmax
REMEMBERED = 8
THRICE = 3
KINDS = 3  # least number of distinct tokens that are not padding
MUCH, HALF = 0.1, 0.5  # share of labels; share of masks
OFTEN, FEWEST, ROWS = 10, 3, 100_000  # embedding: least count of an index, least indices, most rows
AS_OFTEN = 2.5  # largest ratio to the usual count


@dataclass(eq=False)
class Embedded:
    """Lookups in an embedding, as long as each row has one index."""

    place: Place
    pad: int
    counts: Tensor  # count of each index
    alone: bool = True


class Padding(Listener):
    """Listener for embeddings, masks, losses and comparisons."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        self.tokens: deque[Tensor] = deque(maxlen=REMEMBERED)
        self.masks: dict[Place, list[bool]] = {}  # true for masks that keep only padding
        self.embedded: dict[tuple[int, int], Embedded] = {}  # by id and length of the weight
        # ignored label and number of classes
        self.ignored: set[tuple[int, int]] = set()
        # correctness of predictions [N], the ignored label and its share
        self.compared: deque[tuple[Tensor, int, float]] = deque(maxlen=REMEMBERED)

    def install(self) -> None:
        """Install hooks for embeddings, masks, losses and comparisons."""
        functions = self.functions
        functions.listen(("embedding",), before=self._embedded)
        functions.listen(("masked_fill", "masked_fill_"), before=self._filled)
        functions.listen(("cross_entropy", "nll_loss"), before=self._lost)
        functions.listen(("mean",), before=self._averaged)
        functions.listen(("eq", "__eq__"), after=self._equal)

    def _embedded(
        self, name: str, input: Tensor, weight: Tensor, padding_idx: Any = None, *_: Any, **__: Any
    ) -> None:
        if input.ndim == 2 and not any(t is input for t in self.tokens):
            self.tokens.append(input)
        if padding_idx is None or not torch.is_grad_enabled() or len(weight) > ROWS:
            return
        counted = torch.bincount(input.reshape(-1), minlength=len(weight))
        known = self.embedded.setdefault(
            (id(weight), len(weight)), Embedded(self.watch.here(), padding_idx, 0 * counted)
        )
        known.counts += counted
        known.alone &= input.shape[:1].numel() == input.numel() == self.forwards.given

    def _filled(self, name: str, given: Any, mask: Any, value: Any, *_: Any, **__: Any) -> None:
        """Check a key mask (true: left out), [B, T] or [B, 1, 1, T], that gives scores no weight.
        Masks of torch's own attention arrive here as well.
        """
        if float(value) <= NOTHING and mask.ndim > 1 and mask[..., 0].numel() == len(mask):
            mask = mask.reshape(len(mask), -1)
            tokens = [t for t in self.tokens if t.shape == mask.shape]
            if tokens:
                wrong = any(keeps_padding(mask, t) for t in tokens)
                self.masks.setdefault(self.watch.here(), []).append(wrong)

    def _lost(
        self, name: str, input: Tensor, target: Tensor, *_: Any, ignore_index: int = -100, **__: Any
    ) -> None:
        if input.requires_grad and input.ndim > 1 and bool((target == ignore_index).any()):
            self.ignored.add((ignore_index, input.shape[1]))

    def _equal(self, name: str, result: Any, a: Any, b: Any = None, *_: Any, **__: Any) -> None:
        """Record comparisons of integers outside of a network, after a call without gradients."""
        call = self.forwards.last
        if not self.ignored or call is None or call.grad or self.forwards.stack:
            return
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.shape != b.shape:
            return
        classes = {size for t in call.outputs if t.ndim > 1 for size in (t.shape[1], t.shape[-1])}
        for ignored in {index for index, of in self.ignored if of in classes}:
            share = max(float((side == ignored).float().mean()) for side in (a, b))
            if share >= MUCH and not a.is_floating_point():
                self.compared.append((result.reshape(-1).clone().cpu(), ignored, share))

    def _averaged(self, name: str, source: Any, *_: Any, **__: Any) -> None:
        """Report a mean over labels that includes ignored ones."""
        for right, ignored, share in self.compared if isinstance(source, Tensor) else ():
            same = source.numel() == len(right) > 1
            if same and torch.equal((source.reshape(-1) != 0).cpu(), right):
                told = f"{share:.0%} of the labels that predictions are compared with are {ignored}"
                told = f"{told}, which the loss leaves out: they count in the score"
                self.functions.often("BH833", told)
                return

    def ended(self) -> None:
        """Report masks and padding indices that most calls show."""
        for place, masks in self.masks.items():
            if sum(masks) >= THRICE and sum(masks) > len(masks) * HALF:
                told = "the mask leaves out every token and keeps the padding behind them alone"
                self.watch.tell("BH835", f"{told}: it is the wrong way round", place)
        for (weight, _), known in self.embedded.items():
            times, used = int(known.counts[known.pad]), known.counts[known.counts > 0]
            usual = float(used.float().median())
            often = times >= OFTEN and usual / AS_OFTEN <= times <= usual * AS_OFTEN
            if often and known.alone and len(used) > FEWEST and weight in self.forwards.trained:
                told = f"number {known.pad} came {times} times, others about {usual:.0f} times, and"
                told = f"{told} nothing was padded with it: the row of padding_idx is never learned"
                self.watch.tell("BH883", told, known.place)


def keeps_padding(mask: Tensor, tokens: Tensor) -> bool:
    """Check that a mask [B, T] keeps only padding: one repeated token at one end, of varying
    length.

    >>> tokens = torch.tensor([[4, 5, 0, 0], [3, 7, 6, 0]])
    >>> keeps_padding(tokens != 0, tokens), keeps_padding(tokens == 0, tokens)
    (True, False)
    """
    kept, left, others = ~mask, tokens[~mask].unique(), tokens[mask].unique()
    steps = kept.long().diff(dim=1)
    return (
        len(left) == 1
        and len(others) >= KINDS
        and not bool((others == left).any())
        and (bool((steps >= 0).all()) or bool((steps <= 0).all()))
        and len(kept.sum(1).unique()) > 1
    )
