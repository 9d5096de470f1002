"""Keys in more than one split, found by 64-bit hashes and confirmed by the keys themselves.

Hashes of a column cost one scan and eight bytes a row. Sorting them is several times faster than
grouping texts. Only the few keys whose hashes match are then read and compared, so that a collision
of hashes is no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from training.data.engine.distinct import distinct
from training.data.engine.engine import ident, row, rows
from training.data.leakage.keys import Keys
from training.data.leakage.sides import Sides

EVIDENCE_ROWS = 10
ROWS_AT_ONCE = 2**25  # hashes in memory: 256 MiB, and as much while they are concatenated
# of data.memory_limit: a hash in the engine's half, and two next to it, of which one split is
# sorted at a time
BYTES_A_ROW = 32


class Straddle(NamedTuple):
    """Keys in more than one split, their rows, and the first few with their splits.

    It also has the hashes, uint64, that more than one row of a split has.
    """

    keys: int
    rows: int
    examples: list[tuple[str, str]]
    repeated: np.ndarray


def parts_of(sides: Sides, bytes_a_row: int = BYTES_A_ROW) -> int:
    """Return the number of parts that a hash divides the rows into.

    The data kept for one part fits into memory.
    """
    limit = sides.declaration.data.memory_bytes
    at_once = ROWS_AT_ONCE if limit is None else min(ROWS_AT_ONCE, limit // bytes_a_row)
    return max(1, -(-sum(sides.num_rows.values()) // at_once))


def find_straddling(sides: Sides, column: str, parts: Iterable[Keys]) -> Straddle:
    """Find values of a column, without nulls, that are in more than one split.

    O(rows log rows), 8 bytes a row.

    Args:
        sides: to look at.
        column: of text.
        parts: the column's keys, all of them or part by part.
    """
    met, repeated = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for keys in parts:
        repeated += [found[1:][found[1:] == found[:-1]] for found in keys.hashes.values()]
        met += [common(a, b) for a, b in combinations(keys.hashes.values(), 2)]
    return Straddle(
        *_settled(sides, column, distinct(np.concatenate(met))),
        repeated=distinct(np.concatenate(repeated)),
    )


@contextmanager
def among(sides: Sides, column: str, hashes: np.ndarray) -> Iterator[str]:
    """Yield an SQL condition, valid in the block: the key's hash is in these, uint64 [hashes]."""
    sides.connection.register("among_hashes", pa.table({"h": hashes}))
    try:
        yield f"hash({ident(column)}) in (select h from among_hashes)"
    finally:
        sides.connection.unregister("among_hashes")


def common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return distinct values that two sorted arrays have in common."""
    small, large = (a, b) if len(a) <= len(b) else (b, a)
    if not len(small):
        return small
    place = np.minimum(np.searchsorted(large, small), len(large) - 1)
    return distinct(small[large[place] == small])


def _settled(
    sides: Sides, column: str, suspects: np.ndarray
) -> tuple[int, int, list[tuple[str, str]]]:
    """Return the suspects that really are the same key.

    The result is their number, their rows, and the first few with their splits.
    """
    if not len(suspects):
        return 0, 0, []
    key = ident(column)
    with among(sides, column, suspects) as suspected:
        per_key = f"""
            select {key} as key, count(*) as n,
                string_agg(distinct side, ' and ' order by side desc) as sides
            from {sides.together((column,))}
            where {suspected} group by {key} having min(side) <> max(side)"""
        count, num_rows = row(
            sides.connection, f"select count(*), coalesce(sum(n), 0) from ({per_key})"
        )
        examples = (
            rows(
                sides.connection,
                f"select key, sides from ({per_key}) order by md5(key), key limit {EVIDENCE_ROWS}",
            )
            if count
            else []
        )
    return int(count), int(num_rows), [(str(k), str(s)) for k, s in examples]


def repeated_keys(sides: Sides, column: str, suspects: np.ndarray) -> int:
    """Find keys that occur more than once within a split.

    Args:
        sides: to look at.
        column: of text.
        suspects: `Straddle.repeated`; some keys with these hashes may differ.
    """
    if not len(suspects):
        return 0
    key = ident(column)
    with among(sides, column, suspects) as suspected:
        counts = [
            row(
                sides.connection,
                f"select count(*) from (select 1 from {relation} where {suspected} group by {key}"
                " having count(*) > 1)",
            )
            for relation in sides.relations.values()
        ]
    return sum(int(c[0]) for c in counts)
