"""Strata: distribute units so that every class, or bin of a number, has its share in each split.

A unit is a row's key or a whole group. Units with the same number of rows in each class have the
same profile and are interchangeable, so that cost grows with the number of different profiles.
Shapes: P profiles, C classes, S splits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from schemas.errors import SplitError
from training.data.engine.engine import (
    fill,
    ident,
    literal,
    num_parts,
    part_number_sql,
    part_sql,
    row,
)
from training.data.fit.order_statistics import values_at

BYTES_A_UNIT = 256  # of data.memory_limit: a unit while it is counted, joined or placed
BYTES_A_CELL = 32  # of a profile's rows of one class: int64, float64, and temporaries
EPSILON = 1e-9  # keeps 0.7 * 10 from being floored to 6


def bin_edges(
    connection: duckdb.DuckDBPyConnection, table: str, label: str, bins: int
) -> list[float]:
    """Return where the bins of a numeric label begin: distinct exact quantiles."""
    values = (
        f"(select cast({ident(label)} as double) as x from {table} where {ident(label)} is not"
        " null)"
    )
    total = row(connection, f"select count(*) from {values}")[0]
    return sorted(
        set(
            values_at(
                connection,
                values,
                [max(1, math.ceil(total * i / bins)) - 1 for i in range(1, bins)],
            ).values()
        )
    )


def stratum_sql(label: str, edges: list[float] | None) -> str:
    """Return SQL for the name of a row's class, or of the bin of its label."""
    if edges is None:
        return f"cast({ident(label)} as varchar)"
    whens = " ".join(
        f"when {ident(label)} < {literal(edge)} then '{i}'" for i, edge in enumerate(edges)
    )
    return f"case {whens} else '{len(edges)}' end"


class Units(NamedTuple):
    """Units to distribute: the rows, the unit column, and SQL for class and hash.

    The SQL gives a row's class and the seeded hash of `unit`, which orders units of the same
    profile. `assigned` is a relation of earlier `key_hash` and `side`. `limit` is the bytes of
    `data.memory_limit`.
    """

    table: str
    key: str
    stratum: str
    digits: str
    assigned: str
    limit: int | None = None


def allot(connection: duckdb.DuckDBPyConnection, units: Units, shares: Mapping[str, float]) -> None:
    """Make table `unit_sides` (key_hash, side, is_new): known units stay, new ones are distributed.

    Args:
        connection: the engine.
        units: to distribute.
        shares: split → target share of rows.

    Raises:
        SplitError: the units have so many profiles that distributing them takes more than the
            limit.
    """
    parts = num_parts(
        row(connection, f"select count(*) from {units.table}")[0], units.limit, BYTES_A_UNIT
    )
    _count_units(connection, units, parts)
    order = (  # large units first; the seed orders those of equal size
        "floor(log2(size)) desc, min(digits), profile"
    )
    connection.execute(
        "create or replace temp table new_profiles as select profile, count(*) as units, min(unit)"
        f" as example, row_number() over (order by {order}) - 1 as position from units where held"
        " is null group by profile, size"
    )
    connection.execute(
        "create or replace temp table strata as select stratum, row_number() over (order by"
        " stratum) - 1 as position from (select distinct stratum from unit_counts)"
    )
    _refuse_too_many_profiles(connection, units.limit)
    counts = allocate(*_matrices(connection, tuple(shares)), tuple(shares.values()))
    upto = counts.cumsum(axis=1)
    connection.register(
        "dealt",
        pa.table(
            {"position": np.arange(len(counts))}
            | {f"upto_{i}": upto[:, i] for i in range(len(shares))}
        ),
    )
    side = (
        "case "
        + " ".join(f"when place <= upto_{i} then {literal(n)}" for i, n in enumerate(shares))
        + " end"
    )
    held = "select key_hash, held as side, false as is_new from units where held is not null"
    new = [
        f"select key_hash, {side}, true from ({_placed_sql(part, parts)})" for part in range(parts)
    ]
    fill(connection, "unit_sides", [f"{held} union all {new[0]}", *new[1:]])


def _count_units(connection: duckdb.DuckDBPyConnection, units: Units, parts: int) -> None:
    """Make tables of rows by unit and stratum, and of units.

    A unit has its profile, its digits and, if it was decided before, its split.
    """
    numbered = f"{part_number_sql('md5(unit)', parts)} as part"
    counted = (
        f"select {units.key} as unit, {units.stratum} as stratum, count(*) as n from {units.table}"
        f" where {part_sql(units.key, part, parts)} group by 1, 2"
        for part in range(parts)
    )
    fill(connection, "unit_counts", (f"select *, {numbered} from ({query})" for query in counted))
    profile = "string_agg(concat(length(stratum), ':', stratum, '=', n), ',' order by stratum)"
    made = (
        f"select unit, md5(unit) as key_hash, {profile} as profile, sum(n) as size, {units.digits}"
        " as digits from unit_counts where part = "
    )
    held = (
        f"(select * from {units.assigned} as known where {part_sql('key_hash', part, parts)})"
        for part in range(parts)
    )
    joined = (
        f"select u.*, a.side as held from ({made}{part} group by unit) u left join {known} a on"
        " a.key_hash = u.key_hash"
        for part, known in enumerate(held)
    )
    fill(connection, "units", joined)


def _placed_sql(part: int, parts: int) -> str:
    """Return new units with their rank in their profile, and the ranks at which each split ends.

    Covers one range of hashes.
    """
    begin, end = (literal(f"{2**32 * i // parts:08x}") for i in (part, part + 1))
    here = " and ".join(
        [
            "u.held is null",
            *([f"u.digits >= {begin}"] if part else []),
            *([f"u.digits < {end}"] if part + 1 < parts else []),
        ]
    )
    rank = "row_number() over (partition by u.profile order by u.digits, u.unit)"
    joined = (
        "units u join new_profiles p on p.profile = u.profile join dealt d on d.position ="
        " p.position"
    )
    if part:  # units of earlier ranges
        rank += " + coalesce(b.n, 0)"
        joined += (
            " left join (select profile, count(*) as n from units where held is null and digits <"
            f" {begin} group by profile) b on b.profile = u.profile"
        )
    return f"select u.key_hash, {rank} as place, d.* exclude (position) from {joined} where {here}"


def _refuse_too_many_profiles(connection: duckdb.DuckDBPyConnection, limit: int | None) -> None:
    """Refuse, under a memory limit, tables of profiles by class that do not fit into it."""
    if limit is None:
        return
    profiles, classes = (
        row(connection, f"select count(*) from {table}")[0] for table in ("new_profiles", "strata")
    )
    needed = profiles * classes * BYTES_A_CELL
    if needed > limit:
        raise SplitError(
            f"data.memory_limit: groups have {profiles:,} different numbers of rows by class, which"
            f" to deal out takes {needed / 1e6:,.0f}MB, more than the limit of"
            f" {limit / 1e6:,.0f}MB; raise it, declare fewer bins, or use split.kind: group"
        )


def _matrices(
    connection: duckdb.DuckDBPyConnection, sides: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the arguments of `allocate`.

    They are profiles [P, C], units [P], held rows [S, C] and held units [S].
    """
    units = _numbers(connection, "select units from new_profiles order by position")["units"]
    classes = row(connection, "select count(*) from strata")[0]
    profiles = np.zeros((len(units), classes), dtype=np.int64)
    cells = (
        "select p.position as p, s.position as c, n from new_profiles p join unit_counts u on"
        " u.unit = p.example join strata s on s.stratum = u.stratum"
    )
    found = _numbers(connection, cells)
    profiles[found["p"], found["c"]] = found["n"]
    held_rows, held_units = (
        np.zeros((len(sides), classes), dtype=np.int64),
        np.zeros(len(sides), dtype=np.int64),
    )
    for i, side in enumerate(sides):
        of_side = f"from units where held = {literal(side)}"
        held_units[i] = row(connection, f"select count(*) {of_side}")[0]
        cells = (
            "select s.position as c, cast(sum(n) as bigint) as n from unit_counts u join strata s"
            f" on s.stratum = u.stratum where unit in (select unit {of_side}) group by 1"
        )
        found = _numbers(connection, cells)
        held_rows[i, found["c"]] = found["n"]
    return profiles, units, held_rows, held_units


def _numbers(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Return columns of whole numbers as int64 arrays."""
    table = connection.sql(sql).to_arrow_table()
    return {
        str(name): table.column(name).cast(pa.int64()).to_numpy() for name in table.column_names
    }


def allocate(
    profiles: np.ndarray,
    units: np.ndarray,
    held_rows: np.ndarray,
    held_units: np.ndarray,
    targets: Sequence[float],
) -> np.ndarray:
    """Return the units of each profile for each split, so that classes come closest to the shares.

    Profiles are processed in the given order (large ones first does best). Each is divided in
    proportion to what the splits still lack of its classes. Single units left over go where they
    lower the chi-square distance most. What is held already stays. No split is left without a unit
    while another has two.

    Args:
        profiles: rows by class of one unit, int [P, C].
        units: how many new units have the profile, int [P].
        held_rows: rows by class of the units whose split is decided already, int [S, C].
        held_units: how many those are, int [S].
        targets: shares of rows, one for each split.

    Returns:
        int [P, S]; each row sums to `units`.

    Source: the greedy algorithm of scikit-learn's StratifiedGroupKFold, with unequal folds and many
        equal units at once.
    """
    shares = np.array(targets)
    totals = held_rows.sum(axis=0) + (profiles * units[:, None]).sum(axis=0)
    target = shares[:, None] * totals  # [S, C]
    scale = 1.0 / np.maximum(target, EPSILON)
    rows = held_rows.astype(np.float64)
    result = np.zeros((len(profiles), len(shares)), dtype=np.int64)
    for i, profile in enumerate(profiles.astype(np.float64)):
        lacking = np.maximum(((target - rows) * profile * scale[0]).sum(axis=1), 0.0)
        result[i] = np.floor(
            units[i] * (lacking / lacking.sum() if lacking.sum() > 0 else shares) + EPSILON
        )
        rows += result[i][:, None] * profile
        for _ in range(int(units[i] - result[i].sum())):
            # change of chi-square by split
            distance = (profile * (2 * (rows - target) + profile) * scale).sum(axis=1)
            side = int(distance.argmin())
            result[i, side] += 1
            rows[side] += profile
    return _none_empty(result, held_units)


def _none_empty(result: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Move the last (smallest) unit of the split with most new units to a split that has none."""
    for side in range(len(held)):
        counts = held + result.sum(axis=0)
        donor = int(result.sum(axis=0).argmax())
        if counts[side] == 0 and counts[donor] > 1:
            last = int(np.flatnonzero(result[:, donor])[-1])
            result[last, donor] -= 1
            result[last, side] += 1
    return result
