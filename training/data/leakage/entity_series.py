"""Rows in order of time within an entity, whichever column names the entity.

The declared group, or the whole table, comes first; then every column whose values could have a
series of rows each. Shapes: T rows in order of entity and time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from training.data.engine.engine import count_distinct, ident, literal, row
from training.data.leakage.label_sql import LabelNumber
from training.data.leakage.sampled import Codes, Floats, numbers
from training.data.leakage.sides import Sides

ROWS = 40_000  # of the declared group or the whole table
ROWS_OF_OTHERS = 12_000  # of each other column, of which there are many
MOST_OTHERS = 6  # categories, and as many whole numbers: those of most values first
LEAST_LENGTH = 10  # rows of a series, on average
LEAST_ENTITIES = 3
MOST_REPEATED = 0.2  # share of rows at a time that their entity already has
# with these, train holds whole series, or their beginnings; else rows of a series lie on all sides
WHOLE_IN_TRAIN = ("time", "group_time", "group")


class Series(NamedTuple):
    """Rows and their entities.

    `table` holds `entity`, `__time`, `target`, `__id` and the numeric features; `entity` [T] codes;
    `repeats` [T] how many rows up to this one have the time of the row before, of one entity;
    `by` the column that names the entity, empty for the declared group or the whole table.
    `is_guess`: another entity has a series too, or the column is a number, such as the hour: what
    is in between, as the season, then looks like the future.
    """

    table: pa.Table
    entity: Codes
    repeats: Codes
    by: str
    is_guess: bool

    @property
    def target(self) -> Floats:
        """Return the label [T] as a number."""
        return numbers(self.table["target"])


def series_of(sides: Sides, label: LabelNumber) -> Iterator[Series]:
    """Yield the series of each possible entity that has several rows at different times."""
    relation = _relation(sides)
    first, is_first = "__group" if sides.spec.group else "''", True
    for by, key, limit in (
        ("", first, ROWS),
        *((n, f"cast({ident(n)} as varchar)", ROWS_OF_OTHERS) for n in _entities(sides, relation)),
    ):
        found = _in_order(sides, relation, label, key, limit)
        if found is not None:
            yield Series(*found, by, not is_first or by in sides.spec.numeric)
            is_first = False


def _relation(sides: Sides) -> str:
    if sides.declaration.split.kind in WHOLE_IN_TRAIN:
        return sides.relations["train"]
    columns = ("__id", "__time", *sides.spec.numeric, *sides.spec.categorical)
    groups = ("__group",) if sides.spec.group else ()
    return sides.together(tuple(dict.fromkeys((*columns, *groups, *sides.spec.label_columns))))


def _entities(sides: Sides, relation: str) -> list[str]:
    """Return features that may name the entity: categories and whole numbers.

    They have a value for every row of a time, and each value has several rows on average.
    """
    families = (list(sides.spec.categorical), _whole_numbers(sides, relation))
    names = [n for family in families for n in family]
    if not names:
        return []
    crowd, total = row(
        sides.connection,
        f"select max(n), sum(n) from (select count(*) as n from {relation} where __time is not null"
        " group by __time)",
    )
    counts = {n: count_distinct(sides.connection, ident(n), relation) for n in names}
    least, most = max(crowd or 1, LEAST_ENTITIES), (total or 0) / LEAST_LENGTH
    return [
        name
        for family in families
        for name in sorted(
            (n for n in family if least <= counts[n] <= most), key=lambda n: (-counts[n], n)
        )[:MOST_OTHERS]
    ]


def _whole_numbers(sides: Sides, relation: str) -> list[str]:
    names = sides.spec.numeric
    if not names:
        return []
    whole = ", ".join(f"bool_and({ident(n)} = floor({ident(n)}))" for n in names)
    found = row(sides.connection, f"select {whole} from {relation}")
    return [n for n, is_whole in zip(names, found, strict=True) if is_whole]


def _in_order(
    sides: Sides, relation: str, label: LabelNumber, key: str, limit: int
) -> tuple[pa.Table, Codes, Codes] | None:
    """Return rows, their entities [T] in order, and how many times repeated so far [T].

    Return None if entities have one row each, or many at one time.
    """
    table = _table(sides, relation, label, key, limit)
    entity = np.asarray(
        table["entity"].combine_chunks().dictionary_encode().indices.to_numpy(), dtype=np.int64
    )
    time, same = numbers(table["__time"]), entity[1:] == entity[:-1]
    again = same & (time[1:] == time[:-1])
    if not same.any() or again[same].mean() > MOST_REPEATED:
        return None
    return table, entity, np.concatenate([[0], np.cumsum(again)])


def _table(sides: Sides, relation: str, label: LabelNumber, key: str, limit: int) -> pa.Table:
    """Return whole entities, up to this many rows.

    Entities whose names have the lowest hashes come first. Of one long series, return its
    beginning.
    """
    entity = f"coalesce({key}, '')"
    known = (
        f"{label.sql} is not null and __time is not null and"
        f" {_low_hashes(sides, relation, label, entity, limit)}"
    )
    sizes = f"select {entity} as g, count(*) as n from {relation} where {known} group by 1"
    ordered = f"select g, sum(n) over (order by md5(g), g) - n as before from ({sizes})"
    listed = ", ".join(ident(n) for n in sides.spec.numeric)
    kept = f"{known} and {entity} in (select g from ({ordered}) where before < {literal(limit)})"
    sql = (
        f"select {entity} as entity, __time, {label.sql} as target, __id, {listed} from {relation}"
        f" where {kept} order by entity, __time, __id limit {limit}"
    )
    return sides.connection.sql(sql).to_arrow_table()


def _low_hashes(sides: Sides, relation: str, label: LabelNumber, entity: str, limit: int) -> str:
    """Return an SQL condition for the entities whose names hash lowest, with enough rows.

    The others need no sort.
    """
    known = f"{label.sql} is not null and __time is not null"
    share = 2 * limit / max(1, sides.num_rows["train"])
    while share < 1:
        low = f"substr(md5({entity}), 1, 8) < {literal(f'{int(share * 2**32):08x}')}"
        if row(sides.connection, f"select count(*) from {relation} where {known} and {low}")[0] >= (
            limit
        ):
            return low
        share *= 8
    return "true"
