"""Keys that stand on more than one side, found by 64-bit hashes and settled by the keys themselves.

Hashes of a column cost one scan and eight bytes a row; sorting them is several times faster than grouping texts. Only the
few keys whose hashes meet are then read and compared, so that a collision of hashes is no finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from training.data.engine import ident, row, rows
from training.data.leakage.keys import Keys
from training.data.leakage.sides import Sides

EVIDENCE_ROWS = 10
ROWS_AT_ONCE = 2**25  # hashes in memory: 256 MiB
MOST_LISTED = 4096  # hashes that are looked up one by one; more, and the keys are grouped


class Straddle(NamedTuple):
    """Keys that stand on more than one side, their rows, the first few with their sides, and rows whose key stands on their own side already."""

    keys: int
    rows: int
    examples: list[tuple[str, str]]
    repeated: int


def parts_of(sides: Sides) -> int:
    """Into how many parts the keys of these sides are cut so that the hashes of one fit into memory."""
    return -(-sum(sides.num_rows.values()) // ROWS_AT_ONCE)


def find_straddling(sides: Sides, column: str, parts: Iterable[Keys]) -> Straddle:
    """Values of a column, nulls left out, that stand on more than one side. O(rows log rows), 8 bytes a row.

    Args:
        sides: to look at.
        column: of text.
        parts: the column's keys, all of them or part by part.
    """
    met: list[np.ndarray] = []
    repeated = 0
    for keys in parts:
        repeated += sum(int((found[1:] == found[:-1]).sum()) for found in keys.hashes.values())
        met += [_common(a, b) for a, b in combinations(keys.hashes.values(), 2)]
    suspects = np.unique(np.concatenate(met)) if met else np.empty(0, np.uint64)
    return _settled(sides, column, suspects)._replace(repeated=repeated)


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distinct values of two sorted arrays that stand in both."""
    small, large = (a, b) if len(a) <= len(b) else (b, a)
    if not len(small):
        return small
    place = np.minimum(np.searchsorted(large, small), len(large) - 1)
    return np.unique(small[large[place] == small])


def _settled(sides: Sides, column: str, suspects: np.ndarray) -> Straddle:
    """The suspects that are the same key indeed."""
    if not len(suspects):
        return Straddle(0, 0, [], 0)
    key = ident(column)
    among = f" and hash({key}) in ({', '.join(map(str, suspects.tolist()))})" if len(suspects) <= MOST_LISTED else ""
    per_key = f"""
        select {key} as key, string_agg(distinct side, ' and ' order by side desc) as sides, count(*) as n
        from {sides.together((column,))} where {key} is not null{among} group by {key} having min(side) <> max(side)"""
    count, num_rows = row(sides.connection, f"select count(*), coalesce(sum(n), 0) from ({per_key})")
    examples = rows(sides.connection, f"select key, sides from ({per_key}) order by md5(key), key limit {EVIDENCE_ROWS}") if count else []
    return Straddle(int(count), int(num_rows), [(str(k), str(s)) for k, s in examples], 0)


def repeated_keys(sides: Sides, column: str) -> int:
    """Keys that stand more than once within a side; ask only where `Straddle.repeated` says that some may."""
    counts = [
        row(sides.connection, f"select count(*) from (select 1 from {relation} where {ident(column)} is not null group by {ident(column)} having count(*) > 1)")
        for relation in sides.relations.values()
    ]
    return sum(int(c[0]) for c in counts)
