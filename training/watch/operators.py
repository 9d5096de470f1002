"""Reshapes that mix axes, and softmaxes over an axis with one element."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.losses import Functions, maker
from training.watch.record import Watch

MANY = 10  # least number of calls
COLOURS = (3, 4)
PRODUCTS = ("Bmm", "ScaledDotProduct")  # last operations of attention


class Operators(Listener):
    """Listener for single functions of torch."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        # axis sizes of softmaxes whose scores are trained
        self.softmaxes: dict[Place, list[int]] = {}

    def install(self) -> None:
        """Install hooks for reshapes and softmaxes."""
        self.functions.listen(("view", "reshape"), after=self._reshaped)
        self.functions.listen(("softmax", "log_softmax"), after=self._normalised)

    def _reshaped(self, name: str, result: Tensor, given: Tensor, *_: Any, **__: Any) -> None:
        """Report a reshape that exchanges axes of a batch, an image or attention heads without a
        transpose.
        """
        shapes = f"{list(given.shape)} is read as {list(result.shape)}"
        picture = given.ndim == 3 and given.shape[2] in COLOURS and given.shape[0] > max(COLOURS)
        first = picture and tuple(result.shape) == (given.shape[2], *given.shape[:2])
        if first or turned(given.shape, result.shape):
            told = f"{shapes}: its elements are mixed, which takes a transpose"
            self.functions.often("BH411", told, 1)
        if self.forwards.stack and given.requires_grad and given.shape[:1] == result.shape[:1]:
            if parted(given.shape, result.shape):
                told = "each head gets the features of a few places, not a part of those of all"
            elif parted(result.shape, given.shape) and maker(given).startswith(PRODUCTS):
                told = "features of other places stand together"
            else:
                return
            self.functions.often("BH411", f"{shapes}: {told}, which takes a transpose")

    def _normalised(
        self, name: str, result: Tensor, scores: Tensor, dim: Any = None, *_: Any, **__: Any
    ) -> None:
        """Record the size of the softmax axis."""
        if isinstance(dim, int) and scores.requires_grad and scores.ndim and scores.numel() > 1:
            self.softmaxes.setdefault(self.watch.here(), []).append(scores.shape[dim])

    def ended(self) -> None:
        """Report softmaxes whose axis always had one element."""
        for place, sizes in self.softmaxes.items():
            if len(sizes) >= MANY and set(sizes) == {1}:
                told = f"in all {len(sizes)} calls the axis of this softmax has one element"
                self.watch.tell("BH884", f"{told}: it gives 1 whatever the scores are", place)


def turned(given: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Check that a shape is another one transposed behind the first axis.

    Shapes with an axis of size 1, and sizes that differ by 1 (relative positions), do not count.

    >>> turned((8, 50, 6), (8, 6, 50)), turned((8, 32, 24, 3), (8, 3, 32, 24))
    (True, True)
    >>> turned((8, 50, 1), (8, 1, 50)), turned((8, 9, 8), (8, 8, 9)), turned((8, 6, 6), (8, 6, 6))
    (False, False, False)
    """
    old, new = tuple(given[1:]), tuple(result[1:])
    if given[:1] != result[:1] or old == new or 1 in old:
        return False
    if len(old) == 3:
        a, b, c = old
        return new in ((c, a, b), (b, c, a), (b, a, c))
    return len(old) == 2 and old == new[::-1] and abs(old[0] - old[1]) > 1


def parted(flat: tuple[int, ...], heads: tuple[int, ...]) -> bool:
    """Check for a sequence [B, T, D] and its heads [B, H, T, D / H], which no view can convert."""
    if (len(flat), len(heads)) != (3, 4):
        return False
    (_, places, features), (_, count, along, each) = flat, heads
    return along == places > 1 and 1 < count != places and count * each == features and each > 1
