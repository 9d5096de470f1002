"""Balanced groups: whole groups dealt out so that each split has its share of groups and of rows.

A hash gives three of 42 groups to test where six are due. Here new groups go to the split that
lacks most, large ones first and in the order of their hash. The ledger freezes their splits, so
that no group ever moves. Shapes: G new groups, S splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from schemas.config import GroupSplit
from training.data.engine.engine import fill, literal, row, rows
from training.data.split.hash_sides import hash_side_sql, hash_sql

MOST_DEALT = 2_000  # new groups; a hash gives every split its share of more
UNITS, SIDES = "group_units", "unit_sides"


def deal_groups(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    way: GroupSplit,
    assigned: str,
    pins: Mapping[str, str],
) -> None:
    """Make table `unit_sides` (key_hash, side, is_new) of all groups that are not fixed by hand.

    Args:
        connection: the engine.
        table: the rows, with `__group`.
        way: seed, and the share of groups and of rows that is due to each split.
        assigned: relation of earlier `key_hash` and `side`, which stay.
        pins: groups fixed by hand and their splits; they count, but are not written down.
    """
    pinned = " ".join(f"when {literal(g)} then {literal(side)}" for g, side in pins.items())
    fixed = f"case unit {pinned} end" if pins else "cast(null as varchar)"
    counted = f"select __group as unit, count(*) as size from {table} group by 1"
    connection.execute(
        f"create or replace temp table {UNITS} as select u.unit, u.size, md5(u.unit) as key_hash,"
        f" {hash_sql('unit', way.seed)} as digits, a.side as held, {fixed} as pinned from"
        f" ({counted}) u left join {assigned} a on a.key_hash = md5(u.unit) where u.unit is not"
        " null"
    )
    held = f"select key_hash, held as side, false as is_new from {UNITS} where held is not null"
    new = f"from {UNITS} where held is null and pinned is null"
    if row(connection, f"select count(*) {new}")[0] > MOST_DEALT:
        by_hash = hash_side_sql("unit", way.seed, way.fractions)
        fill(connection, SIDES, [f"{held} union all select key_hash, {by_hash}, true {new}"])
        return
    dealt = _dealt(connection, new, way.fractions.model_dump())
    connection.register("dealt_groups", dealt)
    fill(connection, SIDES, [f"{held} union all select key_hash, side, true from dealt_groups"])


def _dealt(
    connection: duckdb.DuckDBPyConnection, new: str, shares: Mapping[str, float]
) -> pa.Table:
    """Return `key_hash` and `side` of the new groups."""
    order = "floor(log2(size)) desc, digits, unit"  # the seed orders groups of about equal size
    found = rows(connection, f"select key_hash, size {new} order by {order}")
    known = {
        side: (int(groups), int(size))
        for side, groups, size in rows(
            connection,
            "select coalesce(pinned, held) as side, count(*), cast(sum(size) as bigint) from"
            f" {UNITS} where coalesce(pinned, held) is not null group by 1",
        )
    }
    sides = assign(
        [int(size) for _, size in found],
        [known.get(side, (0, 0)) for side in shares],
        tuple(shares.values()),
    )
    names = list(shares)
    return pa.table(
        {
            "key_hash": pa.array([key for key, _ in found], pa.string()),
            "side": pa.array([names[side] for side in sides], pa.string()),
        }
    )


def assign(
    sizes: Sequence[int], held: Sequence[tuple[int, int]], targets: Sequence[float]
) -> list[int]:
    """Return the split, as an index, of each new group in turn.

    A group goes where it lowers most the distance between what splits have and what is due to
    them, of groups and of rows alike. No split stays empty while another has two groups.

    Args:
        sizes: rows of each new group [G], in the order in which they are dealt out.
        held: groups and rows of each split [S] that are decided already.
        targets: shares [S].

    >>> [assign([1] * 42, [(0, 0)] * 3, (0.7, 0.15, 0.15)).count(side) for side in range(3)]
    [30, 6, 6]
    """
    have = np.array(held, dtype=np.float64)  # [S, 2]
    new = np.array([(1.0, float(size)) for size in sizes]).reshape(-1, 2)
    due = np.array(targets)[:, None] * (have.sum(axis=0) + new.sum(axis=0))
    mean = due.sum(axis=0) / max(1.0, due[:, 0].sum())  # rows count in groups of mean size
    have, new, due = have / mean, new / mean, np.maximum(due / mean, 1e-9)
    found: list[int] = []
    for group in new:
        # change of chi-square by split
        change = ((group * (2 * (have - due) + group)) / due).sum(axis=1)
        side = int(change.argmin())
        found.append(side)
        have[side] += group
    return _none_empty(found, [groups for groups, _ in held])


def _none_empty(sides: list[int], held: Sequence[int]) -> list[int]:
    """Give the last (smallest) new group of the split with most of them to one that has none."""
    for side in range(len(held)):
        counts = np.bincount(sides, minlength=len(held))
        donor = int(counts.argmax())
        if counts[side] + held[side] == 0 and counts[donor] + held[donor] > 1:
            last = max(place for place, of in enumerate(sides) if of == donor)
            sides[last] = side
    return sides


def balanced_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a split by hash with the words for people that say how groups fell."""
    return {**plan, "balanced": "groups dealt out at first sight, frozen in the ledger"}
