"""Whether held-out rows [N, ...] are scaled as the train rows are, and whether they are copies of
those, or windows beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# deviations between means, and ratio of deviations, of rows that are scaled alike
FAR, WIDER, MOSTLY = 4.0, 8.0, 0.5
EXACT, CLOSE = 1e-4, 2e-3  # of a mean of 0 and of a deviation of 1
COLUMNS, MANY = 2, 100  # that are scaled so; one more for each so many, some are so by chance
HALF, DIGITS = 0.5, 5  # of the rows hold a value that another one holds, to so many digits
MOST_TRAIN, MOST_HELD, MOST_VALUES = 4000, 400, 4096  # pictures of either side, values of one
FEWEST = 60  # pictures of either side
# times as far is the tenth; of the rows; times as far as that is the twentieth
GAP, OFTEN, DENSE = 6.0, 0.25, 1.2
SHORTEST, LEFT = 6, 4  # places of a window, and such that two of them share
SHIFTS = (1, 2, 4, 8)
ROUNDED, MOST_SERIES = 1e-6, 4_000_000  # of the size of values; values of a side
FEW, PART = 20, 1 / 3  # held-out windows that overlap train windows

Told = Iterator[tuple[str, str]]


def scaled(train: Tensor, evaluated: list[Tensor]) -> Told:
    """Tell where the rows of evaluations, or all rows together, were scaled by what is theirs."""
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
    """Which columns have mean 0 and deviation 1 to four digits, as a sample hardly has by chance.
    What comes round, as the sine of the hour does, has them anywhere, and the same values again.

    >>> x, hour = torch.randn(480, 1, dtype=torch.float64), torch.arange(480.0)[:, None].double()
    >>> both = torch.cat([(x - x.mean(0)) / x.std(0), 2**0.5 * (hour * torch.pi / 12).sin()], 1)
    >>> standard(x).tolist(), standard(both).tolist()
    ([False], [True, False])
    """
    close = max(CLOSE, 2 / len(values))  # a deviation may count one row less, in each of two parts
    again = values.round(decimals=DIGITS).sort(0).values.diff(dim=0) == 0
    fits = (values.mean(0).abs() < EXACT) & ((values.std(0, unbiased=False) - 1).abs() < close)
    return fits & (again.double().mean(0) < HALF)


def beside(train: Tensor, evaluated: list[Tensor]) -> Told:
    """Tell where held-out rows are copies of train pictures, or overlap train windows."""
    held = torch.cat(evaluated).flatten(1).unique(dim=0).reshape(-1, *train.shape[1:])
    if share := near_copies(train, held):
        told = f"{share:.0%} of the held-out pictures have a train picture six times nearer than"
        yield "BH505", f"{told} its tenth: copies were made before rows were split"
    if count := overlapping(train, held):
        told = f"{count} of {len(held)} held-out windows overlap a window that was trained on"
        yield "BH508", f"{told}: overlapping windows were split at random"


def near_copies(train: Tensor, held: Tensor) -> float:
    """Share of held-out rows [N, C, H, W] that have one train row far nearer than the tenth; 0
    where it is small, or the twentieth is much farther than that, as where rows fill few
    dimensions.

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
    ways = [torch.cdist(v.flatten(1), known) for v in (asked, asked.flip(-1))]  # as it is, mirrored
    far = torch.minimum(*ways).topk(20, largest=False).values
    dense = float(far[:, 19].mean()) < DENSE * float(far[:, 9].mean())
    share = float((far[:, 0] * GAP < far[:, 9]).float().mean())
    return share if dense and share > OFTEN else 0.0


def overlapping(train: Tensor, held: Tensor) -> int:
    """How many held-out rows [N, T] or [N, T, C] hold a train row's places, shifted by a few; 0
    where they are too few to tell of a random split. Windows are compared by their differences, so
    that a level that was taken off does not matter.

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
    """Which stretches [N, T, C] are among the known ones; none that has few values."""
    a, b = asked.flatten(1), known.flatten(1)
    varied = (a.sort(1).values.diff(dim=1) > 4 * noise).sum(1) + 1 >= a.shape[1] / 2
    # equal stretches have equal sums, and others hardly
    weights = torch.cos(torch.arange(a.shape[1], dtype=torch.float64) ** 2)
    sums, order = (b @ weights).sort()
    near = torch.searchsorted(sums, a @ weights)
    hits = torch.zeros(len(a), dtype=torch.bool)
    for place in (near - 1, near):
        match = b[order[place.clamp(0, len(b) - 1)]]
        hits |= (a - match).abs().amax(1) <= noise
    return hits & varied
