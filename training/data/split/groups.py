"""Derived groups: rows that share a group, scaffold or (near) duplicate, directly or indirectly.

What a hash of the row alone cannot decide is frozen in a separate ledger: the widths of the grids,
and for each key the representative of its first cluster. A new row joins the cluster of the keys
that it shares. A row that shares keys of several clusters belongs to all of them, and is left out
where they are in different splits. So no placed row ever moves, and no key is in two splits (see
docs/decisions/0012-derived-groups.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from schemas.config import Declaration, GroupByConfig
from schemas.errors import SplitError
from schemas.records import TableSpec, ValidatedTable
from training.data.engine.engine import ident, literal, parquet, row, rows
from training.data.engine.in_memory import relation
from training.data.split.clusters import representatives
from training.data.split.group_keys import ROW_KEYS, add_keys, near_columns
from training.data.split.ledger import Ledger

GROUPED_ROWS, BRIDGES = "grouped_rows", "bridging_rows"
NEW_KEYS = "(select key_hash, side from new_keys)"
LARGEST_SHARE = 0.5  # of the rows in one derived group; above it, the grouping is useless
ENOUGH_ROWS = 100  # with fewer rows, one group may well hold half
EXAMPLES = 5
# of data.memory_limit for each key of a row: measured, arrays of `clusters.py` and the engine's
# joins over them
BYTES_A_KEY = 160
# of the engine while it groups; beyond it, it spills to disk; the arrays of `clusters.py` are extra
MEMORY = "1GB"


class Grouping(NamedTuple):
    """Derived groups: figures for people, what to freeze, and whether rows have several groups."""

    plan: dict[str, Any]
    frozen: Mapping[str, Any] = MappingProxyType({})
    decided: str | None = None
    has_bridges: bool = False


def needs_group_ledger(declaration: Declaration, spec: TableSpec) -> bool:
    """Return True if derived groups depend on more than the row.

    They may depend on a scale, or on clusters of keys of several kinds.
    """
    by = declaration.data.group_by
    return by is not None and (
        by.near_duplicates is not None
        or (by.scaffold is not None) + (by.duplicates is not None) + bool(spec.group) > 1
    )


def grouping_way(declaration: Declaration, spec: TableSpec) -> dict[str, Any]:
    """Return the settings that must stay the same for frozen clusters to hold."""
    by = declaration.data.group_by
    features = (
        list(spec.features) if by and "features" in (by.duplicates, by.near_duplicates) else []
    )
    return {
        "group_by": by.model_dump(mode="json") if by else {},
        "group": list(spec.group),
        "features": features,
        "derive": dict(declaration.data.derive),
    }


def derive_groups(
    connection: duckdb.DuckDBPyConnection,
    validated: ValidatedTable,
    declaration: Declaration,
    book: Ledger | None,
) -> Grouping:
    """Make view `grouped_rows` and table `bridging_rows` (`__id`, `__group`) of derived groups.

    Args:
        connection: the engine.
        validated: the rows of the view; without `data.group_by` they are used as they are.
        declaration: section `data.group_by`.
        book: the ledger of groups where `needs_group_ledger`.

    Returns:
        New decisions to freeze, and figures: keys and clusters of each kind, the largest group,
            label conflicts.

    Raises:
        SplitError: half of the rows would be one group, or the keys need more than
            `data.memory_limit`.
        ConfigError: RDKit is needed and not installed.
    """
    by, spec, table = (
        declaration.data.group_by,
        validated.spec,
        relation(connection, validated.table),
    )
    if by is None:
        connection.execute(f"create view {GROUPED_ROWS} as select * from {table}")
        return Grouping({})
    if declaration.data.memory_limit is None:
        connection.execute(f"set memory_limit = {literal(MEMORY)}")
    _join_columns(connection, validated, by)
    steps = _steps(connection, spec, by, book)
    unread = add_keys(connection, "keyed_rows", spec, by, steps)
    _refuse_too_many_keys(connection, declaration.data.memory_bytes)
    held = book.assigned if book is not None else Ledger.nothing()
    _cluster(connection, held)
    _refuse_giant(connection, by)
    connection.execute(
        f"create view {GROUPED_ROWS} as select t.* exclude (__group), g.__group from {table} t join"
        " row_groups g on g.__id = t.__id"
    )
    plan = _plan(connection, by, spec, declaration, unread)
    frozen = {"steps": steps} if book is not None and steps and "steps" not in book.frozen else {}
    has_bridges = bool(row(connection, f"select count(*) from {BRIDGES}")[0])
    if declaration.data.memory_limit is None:
        connection.execute("reset memory_limit")
    return Grouping(plan, frozen, NEW_KEYS if book is not None else None, has_bridges)


def settled_sql(side_sql: str, table: str, joined: str = "") -> str:
    """Return SQL of `__id` and split where rows may belong to several groups.

    The split is the one that all groups of a row have, else 'bridge'.

    Args:
        side_sql: the split of one row by its `__group`; null where it is unknown.
        table: the rows, with one group each; the others are in `bridging_rows`.
        joined: a join that `side_sql` looks things up in.
    """
    plain = (
        f"select __id, {side_sql} as side from {table} {joined} where __id not in (select __id from"
        f" {BRIDGES})"
    )
    several = (
        f"(select t.* exclude (__group), b.__group from {table} t join {BRIDGES} b on b.__id ="
        " t.__id)"
    )
    each = (
        f"(select __id, coalesce({side_sql}, 'bridge') as side from {several} as several {joined})"
    )
    return (
        f"{plain} union all select __id, case when min(side) = max(side) then min(side) else"
        f" 'bridge' end from {each} group by __id"
    )


def _join_columns(
    connection: duckdb.DuckDBPyConnection, validated: ValidatedTable, by: GroupByConfig
) -> None:
    """Make view `keyed_rows`: the validated rows with their grouping columns as `__by_<name>`."""
    table = parquet(validated.table)
    if validated.group_columns is None:
        connection.execute(f"create view keyed_rows as select * from {table}")
        return
    columns = ", ".join(f"c.{ident(n)} as {ident(f'__by_{n}')}" for n in by.source_columns)
    given = f"read_parquet({literal(validated.group_columns.path)}, hive_partitioning = false)"
    connection.execute(
        f"create view keyed_rows as select t.*, {columns} from {table} t join {given} c on c.__id ="
        " t.__id"
    )


def _steps(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, by: GroupByConfig, book: Ledger | None
) -> dict[str, float]:
    """Return the grid width of each numeric column: a share of its standard deviation.

    The deviation is that of all rows, computed once and then frozen. It decides only which rows
    stay together, as a stratum does; no value that a model sees depends on it.
    """
    if book is not None and "steps" in book.frozen:
        return dict(book.frozen["steps"])
    names = (
        [c for c in near_columns(connection, "keyed_rows", spec, by) if c.how == "number"]
        if by.near_duplicates
        else []
    )
    if not names:
        return {}
    spreads = row(
        connection,
        "select"
        f" {', '.join(f'stddev_pop({c.sql}) filter (where isfinite({c.sql}))' for c in names)} from"
        " keyed_rows",
    )
    # sums of a parallel engine differ in the last bits from run to run
    return {
        c.name: float(f"{by.tolerance * (spread or 1.0):.6g}")
        for c, spread in zip(names, spreads, strict=True)
    }


def _refuse_too_many_keys(connection: duckdb.DuckDBPyConnection, limit: int | None) -> None:
    """Refuse, under a memory limit, more keys than fit into it.

    Clusters grow over all keys at once, so they cannot be computed in parts.
    """
    keys = row(connection, f"select count(*) from {ROW_KEYS}")[0]
    needed = keys * BYTES_A_KEY
    if limit is not None and needed > limit:
        raise SplitError(
            f"data.memory_limit: the {keys:,} keys of data.group_by are clustered in memory, which"
            f" takes about {needed / 1e6:,.0f}MB, more than the limit of {limit / 1e6:,.0f}MB; set"
            f" data.memory_limit: {-(-needed // 10**6)}MB or more, or declare the group as a column"
            " of the source"
        )


def _cluster(connection: duckdb.DuckDBPyConnection, held: str) -> None:
    """Make tables `row_groups`, `bridging_rows` (`__id`, `__group`) and `new_keys`."""
    connection.execute(
        "create or replace temp table known_keys as select k.key, a.side as held from (select"
        f" distinct key from {ROW_KEYS}) k left join {held} a on a.key_hash = k.key"
    )
    connection.execute(
        "create or replace temp table nodes as select key, bool_or(known) as known, row_number()"
        " over (order by key) - 1 as number from (select coalesce(held, key) as key, held is not"
        " null as known from known_keys) group by key"
    )
    connection.execute(
        "create or replace temp table numbered as select __id, row_number() over (order by __id) -"
        f" 1 as number from (select distinct __id from {ROW_KEYS})"
    )
    edges = connection.sql(
        f"select distinct r.number as l, n.number as r from {ROW_KEYS} e join numbered r on r.__id"
        " = e.__id join known_keys k on k.key = e.key join nodes n on n.key = coalesce(k.held,"
        " k.key)"
    ).to_arrow_table()
    known = (
        connection.sql("select known from nodes order by number")
        .to_arrow_table()["known"]
        .to_numpy()
    )
    chosen = representatives(
        edges["l"].to_numpy(), edges["r"].to_numpy(), np.asarray(known, dtype=bool)
    )
    connection.register(
        "chosen", pa.table({"number": np.arange(len(chosen)), "representative": chosen})
    )
    connection.execute(
        "create or replace temp table stands_for as select n.key, p.key as representative from"
        " nodes n join chosen c on c.number = n.number join nodes p on p.number = c.representative"
    )
    connection.unregister("chosen")
    of_key = "coalesce(k.held, s.representative)"
    connection.execute(
        f"create or replace temp table memberships as select distinct e.__id, {of_key} as __group"
        f" from {ROW_KEYS} e join known_keys k on k.key = e.key left join stands_for s on s.key ="
        " k.key"
    )
    connection.execute(
        "create or replace temp table row_groups as select __id, min(__group) as __group from"
        " memberships group by __id"
    )
    connection.execute(
        f"create or replace temp table {BRIDGES} as select * from memberships where __id in (select"
        " __id from memberships group by __id having count(*) > 1)"
    )
    connection.execute(
        "create or replace temp table new_keys as select k.key as key_hash, s.representative as"
        " side from known_keys k join stands_for s on s.key = k.key where k.held is null"
    )


def _refuse_giant(connection: duckdb.DuckDBPyConnection, by: GroupByConfig) -> None:
    total, largest = row(
        connection,
        "select sum(n), max(n) from (select count(*) as n from row_groups group by __group)",
    )
    of_one_key = row(
        connection,
        f"select max(n) from (select count(distinct __id) as n from {ROW_KEYS} group by key)",
    )[0]
    # connected link by link
    if total >= ENOUGH_ROWS and largest > LARGEST_SHARE * total and largest > of_one_key:
        raise SplitError(
            f"data.group_by ({'; '.join(by.titles)}): expected many groups, but one would hold"
            f" {largest:,} of {total:,} rows, each tied to the next by a key that they share;"
            " compare more columns, lower data.group_by.tolerance, or use duplicates instead of"
            " near_duplicates"
        )


def _plan(
    connection: duckdb.DuckDBPyConnection,
    by: GroupByConfig,
    spec: TableSpec,
    declaration: Declaration,
    unread: Mapping[str, int],
) -> dict[str, Any]:
    groups, largest = row(
        connection,
        "select count(*), max(n) from (select count(*) as n from row_groups group by __group)",
    )
    plan: dict[str, Any] = {
        "by": list(by.titles),
        "groups": groups,
        "largest": largest,
        "bridging_rows": row(connection, f"select count(distinct __id) from {BRIDGES}")[0],
    }
    if any(unread.values()):
        plan["unreadable_smiles"] = dict(unread)
    for family in ("duplicates", "near_duplicates"):
        if getattr(by, family) is not None:
            plan[family] = _copies(connection, family, spec, declaration)
    return plan


def _copies(
    connection: duckdb.DuckDBPyConnection, family: str, spec: TableSpec, declaration: Declaration
) -> dict[str, Any]:
    """Count rows that share a key of the family, and keys whose rows have different labels."""
    repeated = (
        f"(select key from {ROW_KEYS} where family = {literal(family)} group by key having count(*)"
        " > 1)"
    )
    found: dict[str, Any] = {
        "rows": row(
            connection,
            f"select count(distinct __id) from {ROW_KEYS} where family = {literal(family)} and key"
            f" in {repeated}",
        )[0],
    }
    names = [
        n
        for n in spec.label_columns
        if spec.text is None and declaration.task.label(n).kind != "regression"
    ]
    if not names:
        return found
    labels = " or ".join(f"count(distinct {ident(n)}) > 1" for n in names)
    shown = " || ', ' || ".join(
        f"coalesce(cast(any_value({ident(n)}) as varchar), 'unknown')" for n in names
    )
    of_key = (
        f"{ROW_KEYS} k join keyed_rows t on t.__id = k.__id where family = {literal(family)} and"
        f" key in {repeated}"
    )
    connection.execute(
        f"create or replace temp table disputed as select key from {of_key} group by key having"
        f" {labels}"
    )
    found["conflicting_rows"] = row(
        connection,
        f"select count(distinct __id) from {ROW_KEYS} where key in (select key from disputed)",
    )[0]
    first = (
        f"(select min(__id) as __id from {ROW_KEYS} where key in (select key from disputed) group"
        " by key)"
    )
    some = (
        f"select key from {ROW_KEYS} where key in (select key from disputed) and __id in {first}"
        f" group by key order by key limit {EXAMPLES}"
    )
    members = rows(
        connection,
        f"select k.key, k.__id, {shown} from {ROW_KEYS} k join keyed_rows t on t.__id = k.__id"
        f" where key in ({some}) group by 1, 2 order by 1, 2",
    )
    found["examples"] = [{"id": i, "label": label} for _, i, label in members][: 2 * EXAMPLES]
    return found
