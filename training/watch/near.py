"""Whether held-out pictures are copies of train pictures: mirrored, turned or lit otherwise before
rows were split, some come back nearly as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_TRAIN, MOST_HELD, MOST_VALUES = 4000, 400, 4096  # rows of either side, and values of one
FEWEST = 60  # rows of either side
TENTH, TWENTIETH = 10, 20  # nearest train rows
GAP = 6.0  # times as far is the tenth
OFTEN = 0.25  # of the held-out rows, beyond what their dimension explains


def near_copies(train: Tensor, held_out: Tensor) -> float:
    """Share of held-out rows [N, C, H, W] that have one train row far nearer than the tenth, beyond
    what rows of their dimension would have; 0 where it is small.

    Of rows that fill D dimensions evenly one in six times the tenth's distance is found with
    probability 1 - (1 - 6^-D)^9; D shows in how much farther the twentieth is.

    >>> generator = torch.Generator().manual_seed(0)
    >>> pictures = torch.rand(600, 1, 12, 12, generator=generator)
    >>> copies = torch.cat([pictures,
    ...     pictures * 1.02 + 0.01 * torch.rand(600, 1, 12, 12, generator=generator)])
    >>> order = torch.randperm(1200, generator=generator)
    >>> (near_copies(copies[order[:900]], copies[order[900:]]) > 0.5,
    ...     near_copies(pictures[:400], pictures[400:]))
    (True, 0.0)
    """
    if min(len(train), len(held_out)) < FEWEST or train[0].numel() > MOST_VALUES or train.ndim != 4:
        return 0.0
    known = train[:: -(-len(train) // MOST_TRAIN)].flatten(1).float()
    asked = held_out[:: -(-len(held_out) // MOST_HELD)].float()
    ways = torch.stack(
        [
            torch.cdist(a.flatten(1), known).topk(TWENTIETH, largest=False).values
            for a in (asked, asked.flip(-1))
        ],
        1,
    )  # [N, 2, 20]
    far = ways[torch.arange(len(ways)), ways[:, :, 0].argmin(1)]
    first, tenth, twentieth = far[:, 0], far[:, TENTH - 1], far[:, -1]
    apart = tenth > 0
    if not bool(apart.any()) or not bool(far.isfinite().all()):
        return 0.0
    growth = float((twentieth[apart] / tenth[apart]).log().mean())
    dimension = float(torch.tensor(2.0).log()) / max(growth, 1e-3)
    expected = 1 - (1 - GAP**-dimension) ** (TENTH - 1)
    share = float((first * GAP < tenth).float().mean())
    return share if share > expected + OFTEN else 0.0
