"""Runs of neighbouring rows: in the order of the source, of time, or of a column.

Rows are taken in whole runs, so that neighbours are together in a sample. Shapes: N rows.
"""

from __future__ import annotations

import numpy as np

from training.data.dependence.pool import Pool
from training.data.dependence.strength import Codes, Floats
from training.data.dependence.ties import LEAST_SHARED, Tie, between_share

BLOCKS = 20
ROWS = 4_000  # in all blocks: 200 neighbours in each
LEAST_ALONG = 0.05  # share of the label's variance between blocks of the source's order


def block_codes(positions: Floats) -> Codes:
    """Return the block [N] of each row by its position; -1 between blocks, or without a position.

    Of many rows, a run at the beginning of each twentieth is taken.
    """
    known = np.flatnonzero(~np.isnan(positions))
    order = known[np.argsort(positions[known], kind="stable")]
    place = np.arange(len(order), dtype=np.int64)
    block = place * BLOCKS // max(len(order), 1)
    starts = np.searchsorted(block, np.arange(BLOCKS))
    inside = place - starts[block] < max(1, ROWS // BLOCKS)
    codes = np.full(len(positions), -1, dtype=np.int64)
    codes[order] = np.where(inside, block, -1)
    return codes


def find_blocks(pool: Pool, positions: Floats | None, kind: str) -> list[Tie]:
    """Return the blocks of a kind if the label differs between them."""
    if positions is None or np.isfinite(positions).sum() < 0.9 * len(positions):
        return []
    codes = block_codes(positions)
    shared, _ = between_share(codes[codes >= 0], pool.target[codes >= 0])
    return [Tie(kind, (), codes, shared)] if shared >= LEAST_ALONG else []


def find_ordered_columns(pool: Pool) -> list[Tie]:
    """Return numbers that hardly repeat and along which the label moves; at most one.

    It is the one along which the label is least like chance.
    """
    found = []
    for name in pool.names:
        values = pool.column(name)
        if name in pool.categories or np.isnan(values).any():
            continue
        if len(np.unique(values)) < len(values) / 3:
            continue
        codes = block_codes(values)
        shared, _ = between_share(codes[codes >= 0], pool.target[codes >= 0])
        if shared >= LEAST_SHARED:
            found.append(Tie("order", (name,), codes, shared))
    return sorted(found, key=lambda tie: -tie.shared)[:1]
