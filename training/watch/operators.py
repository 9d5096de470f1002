"""What single functions and operators are given: reshapes that mix axes, numbers that wrap, weights
of rows, variances.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from training.watch.forwards import Forwards
from training.watch.losses import Functions, probabilities
from training.watch.record import Listener, Place, Watch

FEWEST, MOST = 4, 1_000_000  # values that are compared
POWERS = 8  # that are remembered
SAME = 1e-5
MANY = 10  # calls
PLANES = (3, 4)  # of a picture


class Operators(Listener):
    """Listens to single functions of torch."""

    def __init__(self, watch: Watch, forwards: Forwards, functions: Functions) -> None:
        self.watch, self.forwards, self.functions = watch, forwards, functions
        # sizes of the axis, of those whose scores learn
        self.softmaxes: dict[Place, list[int]] = {}
        # a power of something, and what it is a power of
        self.powers: list[tuple[weakref.ref[Tensor], Tensor]] = []

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("view", "reshape"), after=self._reshaped)
        self.functions.listen(("pow", "__pow__", "float_power"), after=self._raised)
        self.functions.listen(
            ("mul", "__mul__", "__rmul__", "multiply", "neg", "__neg__", "detach"),
            after=self._weighted,
        )
        self.functions.listen(("softmax", "log_softmax"), after=self._normalised)

    # L = a batch of B rows, T places of a sequence with D features, H heads of D / H

    def _reshaped(self, name: str, result: Tensor, given: Tensor, *_: Any, **__: Any) -> None:
        """[B, T, D] read as [B, D, T], or as [B, H, T, D / H] and back, without a transpose: a head
        gets parts of a few places instead of a part of all.
        """
        if (
            result.ndim == 2 < given.ndim
            and result.shape[1] == given.shape[1] != given.shape[-1]
            and given.requires_grad
            and given[0, 0].numel() > 1
        ):
            self.functions.often(
                "BH411",
                f"{list(given.shape)} is read as {list(result.shape)}: the {given.shape[1]} scores"
                " of a place stand in different rows, which takes a permute",
            )
        if (
            given.ndim == 3
            and given.shape[2] in PLANES
            and given.shape[0] > max(PLANES)
            and tuple(result.shape) == (given.shape[2], *given.shape[:2])
        ):
            self.functions.often(
                "BH411",
                f"a picture {list(given.shape)} is read as {list(result.shape)}: its colours are"
                " mixed, which takes a permute",
                1,
            )
        if given.shape[:1] != result.shape[:1]:
            return
        if flattened(given.shape, result.shape) or flattened(result.shape, given.shape):
            self.functions.often(
                "BH411",
                f"{list(given.shape)} is read as {list(result.shape)}: channels and places are"
                " mixed, which takes a permute",
                1,
            )
        if turned(given.shape, result.shape):
            where = "of a batch " if self.forwards.stack else ""
            self.functions.often(
                "BH411",
                f"{list(given.shape)} {where}is read as {list(result.shape)}: its elements are"
                " mixed, which takes a transpose",
                1,
            )
        if not self.forwards.stack or not given.requires_grad:
            return
        if (given.ndim, result.ndim) == (3, 4):
            flat, parted, split = given, result, True
        elif (given.ndim, result.ndim) == (4, 3) and of_attention(given):
            flat, parted, split = result, given, False
        else:
            return
        _, places, features = flat.shape
        _, heads, along, each = parted.shape
        if (
            along == places > 1
            and heads > 1
            and heads != places
            and heads * each == features
            and each > 1
        ):
            shapes = f"{list(given.shape)} is read as {list(result.shape)}"
            what = (
                "each head gets the features of a few places, not a part of the features of all"
                if split
                else "features of other places stand together"
            )
            self.functions.often("BH411", f"{shapes}: {what}, which takes a transpose")

    # ---------------------------------------------------------------------------------- weights of
    # one

    def _normalised(
        self, name: str, result: Tensor, scores: Tensor, dim: Any = None, *_: Any, **__: Any
    ) -> None:
        """The size of the axis along which something is chosen."""
        if isinstance(dim, int) and scores.requires_grad and scores.ndim and scores.numel() > 1:
            self.softmaxes.setdefault(self.watch.here(), []).append(scores.shape[dim])

    def ended(self) -> None:
        """Softmaxes whose axis was never longer than one."""
        for place, sizes in self.softmaxes.items():
            if len(sizes) >= MANY and set(sizes) == {1}:
                self.watch.tell(
                    "BH884",
                    f"in all {len(sizes)} calls the axis of this softmax has one element: it gives"
                    " 1 whatever the scores are",
                    place,
                )

    # ---------------------------------------------------------------------------------- weights of
    # rows

    def _raised(
        self, name: str, result: Tensor, base: Any, exponent: Any, *_: Any, **__: Any
    ) -> None:
        number = (
            float(exponent)
            if isinstance(exponent, int | float)
            or (isinstance(exponent, Tensor) and exponent.numel() == 1)
            else 0.0
        )
        if (
            number >= 1
            and isinstance(base, Tensor)
            and base.is_floating_point()
            and FEWEST <= base.numel() <= MOST
        ):
            self._remember(result, base.detach())

    def _remember(self, result: Tensor, base: Tensor) -> None:
        self.powers = [*self.powers[1 - POWERS :], (weakref.ref(result), base)]

    def _weighted(self, name: str, result: Tensor, *factors: Any, **_: Any) -> None:
        """A power of the probability of the label is multiplied with its logarithm."""
        for factor in factors:
            base = next((b for power, b in self.powers if power() is factor), None)
            if base is None or not isinstance(result, Tensor):
                continue
            self._remember(result, base)
            for other in factors:
                if (
                    isinstance(other, Tensor)
                    and other is not factor
                    and other.requires_grad
                    and other.shape == base.shape
                    and is_logarithm(other, base)
                ):
                    self.functions.often(
                        "BH829",
                        "each row is weighted by a power of the probability of its label: those"
                        " that are right count most",
                    )


def flattened(maps: tuple[int, ...], listed: tuple[int, ...]) -> bool:
    """Whether one is the shape of maps [B, C, H, W] and the other that of a list of their places
    [B, H * W, C], which no view can make of it.

    >>> (flattened((8, 12, 6, 6), (8, 36, 12)), flattened((8, 6, 6, 12), (8, 36, 12)),
    ...     flattened((8, 12, 6, 6), (8, 12, 36)))
    (True, False, False)
    """
    if len(maps) != len(PLANES) + 2 or len(listed) != len(PLANES) + 1:
        return False
    channels, height, width = maps[1:]
    return (
        tuple(listed[1:]) == (height * width, channels)
        and channels not in (1, width, height * width)
        and height > 1
        and width > 1
    )


def turned(given: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether a shape has the sizes of another behind its first in an order in which a transpose
    would put them.

    Sizes of 1 stand anywhere, and relative positions are shifted by a view of sizes one apart.

    >>> (turned((8, 50, 6), (8, 6, 50)), turned((8, 32, 24, 3), (8, 3, 32, 24)),
    ...     turned((8, 50, 4, 16), (8, 4, 50, 16)))
    (True, True, True)
    >>> turned((8, 50, 1), (8, 1, 50)), turned((8, 9, 8), (8, 8, 9)), turned((8, 6, 6), (8, 6, 6))
    (False, False, False)
    """
    old, new = tuple(given[1:]), tuple(result[1:])
    if old == new or 1 in old or len(old) != len(new):
        return False
    if len(old) == 2:
        return old == new[::-1] and abs(old[0] - old[1]) > 1
    return len(old) == 3 and new in (
        (old[2], *old[:2]),
        (*old[1:], old[0]),
        (old[1], old[0], old[2]),
    )


def of_attention(tensor: Tensor) -> bool:
    """Whether a product of matrices, or attention, made a tensor, as far as its graph tells."""
    node = tensor.grad_fn
    while (
        node is not None
        and type(node).__name__.startswith(("Clone", "UnsafeView", "View"))
        and node.next_functions
    ):
        node = node.next_functions[0][0]
    return type(node).__name__.startswith(("Bmm", "ScaledDotProduct"))


def is_logarithm(values: Tensor, base: Tensor) -> bool:
    """Whether values are the logarithms of probabilities, or these without their sign; not of a
    whole distribution.
    """
    known = values.detach()
    if (
        bool((base < 0).any() or (base > 1).any())
        or float(base.std()) == 0
        or (base.ndim > 1 and base.shape[-1] > 1 and probabilities(base, -1))
    ):
        return False
    return any(
        bool((sign * known).max() <= SAME) and torch.allclose((sign * known).exp(), base, atol=SAME)
        for sign in (1, -1)
    )
