"""Whether held-out rows are windows of a series that lie a few places beside train windows."""

from __future__ import annotations

import torch
from torch import Tensor

SHORTEST = 6  # places of a window
SHIFTS = (1, 2, 4, 8)
STRIDES = (
    3,
    5,
    6,
    10,
    12,
    16,
    20,
    24,
    25,
    32,
    40,
    48,
    50,
    60,
    64,
    80,
    96,
    100,
    120,
    128,
    160,
    200,
    250,
    256,
)  # by which windows are cut
PARTS = (1 / 2, 1 / 4, 3 / 4, 1 / 8, 1 / 3, 2 / 3)  # of a window, likewise
LEFT = 4  # differences that two windows share
MOST_VALUES = (
    4_000_000  # of a side: of a part of the train windows, too, some lie beside each held-out one
)
MOST_COMPARED = 4 * MOST_VALUES  # values of a side, times the shifts that are tried
CLOSE, ROUNDED = 2e-6, 5e-7  # of the size of the differences, and of the level
QUIET = 100  # times the rounding
FEW, PART = 20, 1 / 3  # held-out rows
CUTS = 2  # of a split in time: at each there are as many rows as places that they are shifted by
BY_CHANCE = 0.2  # as many backwards, of those that fit


def beside(train: Tensor, held_out: Tensor) -> int:
    """How many held-out rows [N, T] or [N, T, C] continue or precede a train row; 0 where they are
    too few to tell of a random split.

    Windows are compared by their differences, each stretch in units of its own size, so that a
    level or a scale that was taken off does not matter.

    >>> series = torch.randn(300, generator=torch.Generator().manual_seed(0)).cumsum(0)
    >>> windows = series.unfold(0, 12, 1)
    >>> beside(windows[::2], windows[1::2]), beside(windows[:150], windows[150:])
    (144, 0)
    >>> rain = (torch.rand(300, generator=torch.Generator().manual_seed(1)) < 0.03).float()
    >>> windows = torch.stack([series, rain], 1).unfold(0, 24, 1).movedim(2, 1)
    >>> beside(windows[::2], windows[1::2])
    138
    """
    axes = (
        [axis for axis in range(1, train.ndim) if train.shape[axis] >= SHORTEST]
        if train.ndim in (2, 3) and train.numel()
        else []
    )
    return max(
        (_along(train.movedim(axis, 1), held_out.movedim(axis, 1)) for axis in axes), default=0
    )


def _along(train: Tensor, held_out: Tensor) -> int:
    most = max(MOST_VALUES // train[0].numel(), 1)
    train, held_out = (
        side[:most].double().reshape(min(most, len(side)), side.shape[1], -1)
        for side in (train, held_out)
    )
    if not bool(train.isfinite().all() and held_out.isfinite().all()):
        return 0
    known, other = train.diff(dim=1), held_out.diff(dim=1)
    noise = ROUNDED * max(float(train.abs().max()), float(held_out.abs().max()))
    backwards = -other.flip(1)
    new = ~_found(other, known, noise)  # rows that are merely equal are of another kind
    forth, back = (_shifted(side, known, noise) & new for side in (other, backwards))
    count = int(forth.sum())
    return (
        count
        if count >= max(FEW, PART * len(held_out)) and int(back.sum()) <= BY_CHANCE * count
        else 0
    )


def _shifted(other: Tensor, known: Tensor, noise: float) -> Tensor:
    """Which of the rows [N, T, C] overlap one of the known ones: in all but a few places, or by a
    stride that windows are cut with.
    """
    length = other.shape[1]
    hits = torch.zeros(len(other), dtype=torch.bool)
    strides = dict.fromkeys([*SHIFTS, *(round(part * (length + 1)) for part in PARTS), *STRIDES])
    most = max(MOST_COMPARED // known.numel(), len(SHIFTS))
    for shift in [s for s in strides if s > 0 and length - s >= LEFT][:most]:
        found = _found(other[:, shift:], known[:, :-shift], noise) | _found(
            other[:, :-shift], known[:, shift:], noise
        )
        if int(found.sum()) > CUTS * shift:
            hits |= found
    return hits


def _found(asked: Tensor, known: Tensor, noise: float) -> Tensor:
    """Which stretches [N, T, C] are among the known ones; none that is constant or of few
    values.
    """
    ordered = asked.sort(1).values.diff(dim=1)
    distinct = 1 + (ordered > 4 * noise).sum(1)
    varied = (
        (distinct >= max(LEFT, asked.shape[1] / 2)) & (asked.norm(dim=1) > QUIET * noise)
    ).any(1)
    sizes = [side.norm(dim=1, keepdim=True) for side in (asked, known)]
    # [N, 1, C]: a channel that stands still in a stretch does so in its like
    loud = [size > QUIET * noise for size in sizes]
    a, b = (
        (side / size.clamp(min=1e-300) * heard).flatten(1)
        for side, size, heard in zip((asked, known), sizes, loud, strict=True)
    )
    close = CLOSE + noise / torch.where(loud[0], sizes[0], torch.inf).amin(dim=(1, 2))
    # equal stretches have equal sums, and others hardly
    weights = torch.cos(torch.arange(a.shape[1], dtype=torch.float64) ** 2)
    sums, order = (b @ weights).sort()
    near = torch.searchsorted(sums, a @ weights)
    hits = torch.zeros(len(a), dtype=torch.bool)
    for place in (near - 1, near):
        match = b[order[place.clamp(0, len(b) - 1)]]
        hits |= (a - match).abs().amax(1) <= close
    return hits & varied
