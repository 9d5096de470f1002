"""Comparison of held-out rows [N, ...] with train rows: scaling, copies and overlaps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# largest distance of means in standard deviations; ratio of deviations; share of columns
FAR, WIDER, MOSTLY = 4.0, 8.0, 0.5
EXACT, CLOSE = 1e-4, 2e-3  # tolerance for mean 0; tolerance for deviation 1
COLUMNS, MANY = 2, 100  # least standardized columns; columns per chance match
HALF, DIGITS = 0.5, 5  # share of rows with a repeated value; decimals compared
MOST_TRAIN, MOST_HELD, MOST_VALUES = 4000, 400, 4096  # most images per split; most values of one
FEWEST = 60  # least number of images per split
# distance ratio of 10th to nearest; share of rows; largest distance ratio of 20th to 10th
GAP, OFTEN, DENSE = 6.0, 0.25, 1.2
SHORTEST, LEFT = 6, 4  # least window length; least overlap
SHIFTS = (1, 2, 4, 8)
ROUNDED, MOST_SERIES = 1e-6, 4_000_000  # relative tolerance; most values per split
FEW, PART = 20, 1 / 3  # least number and share of held-out windows that overlap

Told = Iterator[tuple[str, str]]


def scaled(train: Tensor, evaluated: list[Tensor]) -> Told:
    """Report held-out rows that are scaled with their own statistics or those of all rows."""
    train, *evaluated = (side.double().flatten(1) for side in (train, *evaluated))
    other = torch.cat(evaluated).unique(dim=0)
    together = torch.cat([train, other])
    moving = (train.std(0) > 0) & (other.std(0) > 0)
    spread = train.std(0).clamp(min=1e-12)
    far = (other.mean(0) - train.mean(0)).abs() / spread > FAR
    wide = (other.std(0) / spread).log().abs() > torch.tensor(WIDER).log()
    enough = COLUMNS + train.shape[1] // MANY
    if moving.any() and (far | wide)[moving].double().mean() > MOSTLY:
        told = "evaluated rows are scaled otherwise than the train rows: most columns differ in"
        yield "BH820", f"{told} mean or deviation by several times"
    elif any(int(standard(v).sum()) >= enough for v in evaluated):
        told = f"{len(other)} held-out rows have mean 0 and deviation 1: they are scaled by"
        yield "BH502", f"{told} statistics of their own"
    elif int((standard(together) & ~standard(train)).sum()) >= enough:
        told = "train and held-out rows have mean 0 and deviation 1 together, train rows alone"
        yield "BH503", f"{told} have not: the scaling was fitted on both"


def standard(values: Tensor) -> Tensor:
    """Return a mask of columns with mean 0 and deviation 1 to four digits, rare for a random
    sample. A periodic column, such as the sine of the hour, always has them and repeats its values.

    >>> x, hour = torch.randn(480, 1, dtype=torch.float64), torch.arange(480.0)[:, None].double()
    >>> both = torch.cat([(x - x.mean(0)) / x.std(0), 2**0.5 * (hour * torch.pi / 12).sin()], 1)
    >>> standard(x).tolist(), standard(both).tolist()
    ([False], [True, False])
    """
    close = max(CLOSE, 2 / len(values))  # the deviation may use n - 1, in each of two parts
    again = values.round(decimals=DIGITS).sort(0).values.diff(dim=0) == 0
    fits = (values.mean(0).abs() < EXACT) & ((values.std(0, unbiased=False) - 1).abs() < close)
    return fits & (again.double().mean(0) < HALF)


def beside(train: Tensor, evaluated: list[Tensor]) -> Told:
    """Report held-out rows that are copies of train images or overlap train windows."""
    held = torch.cat(evaluated).flatten(1).unique(dim=0).reshape(-1, *train.shape[1:])
    if share := near_copies(train, held):
        told = f"{share:.0%} of the held-out pictures have a train picture six times nearer than"
        yield "BH505", f"{told} its tenth: copies were made before rows were split"
    if count := overlapping(train, held):
        told = f"{count} of {len(held)} held-out windows overlap a window that was trained on"
        yield "BH508", f"{told}: overlapping windows were split at random"


def near_copies(train: Tensor, held: Tensor) -> float:
    """Return the share of held-out rows [N, C, H, W] with one train row far nearer than the tenth.
    It is 0 if the share is small, or the twentieth is much farther, as in few dimensions.

    >>> generator = torch.Generator().manual_seed(0)
    >>> pictures = torch.rand(600, 1, 12, 12, generator=generator)
    >>> lit = pictures * 1.02 + 0.01 * torch.rand(600, 1, 12, 12, generator=generator)
    >>> copies = torch.cat([pictures, lit])[torch.randperm(1200, generator=generator)]
    >>> near_copies(copies[:900], copies[900:]) > 0.5, near_copies(pictures[:400], pictures[400:])
    (True, 0.0)
    """
    if min(len(train), len(held)) < FEWEST or train[0].numel() > MOST_VALUES or train.ndim != 4:
        return 0.0
    known, asked = train[:MOST_TRAIN].flatten(1).float(), held[:MOST_HELD].float()
    ways = [torch.cdist(v.flatten(1), known) for v in (asked, asked.flip(-1))]  # plain, mirrored
    far = torch.minimum(*ways).topk(20, largest=False).values
    dense = float(far[:, 19].mean()) < DENSE * float(far[:, 9].mean())
    share = float((far[:, 0] * GAP < far[:, 9]).float().mean())
    return share if dense and share > OFTEN else 0.0


def overlapping(train: Tensor, held: Tensor) -> int:
    """Count held-out rows [N, T] or [N, T, C] that contain a train row's values, shifted in time.
    It is 0 if they are too few for a random split. The comparison uses differences, so a subtracted
    level does not matter.

    >>> series = torch.randn(300, generator=torch.Generator().manual_seed(0)).cumsum(0)
    >>> windows = series.unfold(0, 12, 1)
    >>> overlapping(windows[::2], windows[1::2]), overlapping(windows[:150], windows[150:])
    (144, 0)
    """
    if train.ndim not in (2, 3) or train.shape[1] < SHORTEST:
        return 0
    most = max(MOST_SERIES // train[0].numel(), 1)
    shape = train.shape[1], -1
    sides = [v[:most].double().reshape(len(v[:most]), *shape) for v in (train, held)]
    noise = ROUNDED * max(float(side.abs().max()) for side in sides)
    known, other = (side.diff(dim=1) for side in sides)
    hits = torch.zeros(len(other), dtype=torch.bool)
    length = other.shape[1]
    for shift in {*SHIFTS, length // 4, length // 2} - {0}:
        if length - shift >= LEFT:
            after = _among(other[:, :-shift], known[:, shift:], noise)
            hits |= after | _among(other[:, shift:], known[:, :-shift], noise)
    return int(hits.sum()) if int(hits.sum()) >= max(FEW, PART * len(other)) else 0


def _among(asked: Tensor, known: Tensor, noise: float) -> Tensor:
    """Return a mask of segments [N, T, C] that are among the known ones and have enough values."""
    a, b = asked.flatten(1), known.flatten(1)
    varied = (a.sort(1).values.diff(dim=1) > 4 * noise).sum(1) + 1 >= a.shape[1] / 2
    # equal segments have equal sums; others almost never
    weights = torch.cos(torch.arange(a.shape[1], dtype=torch.float64) ** 2)
    sums, order = (b @ weights).sort()
    near = torch.searchsorted(sums, a @ weights)
    hits = torch.zeros(len(a), dtype=torch.bool)
    for place in (near - 1, near):
        match = b[order[place.clamp(0, len(b) - 1)]]
        hits |= (a - match).abs().amax(1) <= noise
    return hits & varied
