"""Rows in order of time within an entity, whichever column names the entity.

The declared group, or the whole table, comes first; then every column whose values could have a
series of rows each. Shapes: T rows in order of entity and time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from training.data.engine.engine import ident, literal, row
from training.data.engine.many_columns import count_each_distinct, figures_of
from training.data.leakage.label_sql import LabelNumber
from training.data.leakage.sampled import Codes, Floats, numbers
from training.data.leakage.sides import Sides

ROWS = 40_000  # of the declared group or the whole table
ROWS_OF_OTHERS = 12_000  # of each other column, of which there are many
MOST_OTHERS = 6  # categories, and as many whole numbers: those of most values first
SHARED_VALUES = 20_000_000  # features that are held for all series together
LEAST_LENGTH = 10  # rows of a series, on average
LEAST_ENTITIES = 3
MOST_REPEATED = 0.2  # share of rows at a time that their entity already has
# with these, train holds whole series, or their beginnings; else rows of a series lie on all sides
WHOLE_IN_TRAIN = ("time", "group_time", "group")

Features = Callable[[Sequence[str]], Floats]


class Series(NamedTuple):
    """Rows and their entities.

    `table` holds `entity`, `__time`, `target` and `__id`; `entity` [T] codes; `repeats` [T] how
    many rows up to this one have the time of the row before, of one entity; `features` returns
    numeric features [C, T] by name, NaN for null, and reads them when it is called;
    `by` the column that names the entity, empty for the declared group or the whole table.
    `is_guess`: another entity has a series too, or the column is a number, such as the hour: what
    is in between, as the season, then looks like the future.
    """

    table: pa.Table
    entity: Codes
    repeats: Codes
    features: Features
    by: str
    is_guess: bool

    @property
    def target(self) -> Floats:
        """Return the label [T] as a number."""
        return numbers(self.table["target"])


def series_of(sides: Sides, label: LabelNumber) -> Iterator[Series]:
    """Yield the series of each possible entity that has several rows at different times."""
    relation = _relation(sides)
    rows = _FeatureRows(sides, relation)
    first, is_first = "__group" if sides.spec.group else "''", True
    for by, key, limit in (
        ("", first, ROWS),
        *((n, f"cast({ident(n)} as varchar)", ROWS_OF_OTHERS) for n in _entities(sides, relation)),
    ):
        found = _in_order(sides, relation, label, key, limit)
        if found is not None:
            sql = functools.partial(_series_sql, sides, relation, label, key, limit)
            features = functools.partial(rows.of, found[0], sql)
            yield Series(*found, features, by, not is_first or by in sides.spec.numeric)
            is_first = False


class _FeatureRows:
    """Numeric features of a relation; of few rows they are read once for all series."""

    def __init__(self, sides: Sides, relation: str) -> None:
        self._sides, self._relation = sides, relation

    def of(
        self, table: pa.Table, sql: Callable[[Sequence[str]], str], names: Sequence[str]
    ) -> Floats:
        """Return features [C, T] of the rows of a series.

        Args:
            table: the series, with `__id`.
            sql: gives a query for columns of the rows of the series, in order.
            names: the features.
        """
        if self._shared is None:
            return _matrix(self._sides.connection.sql(sql(names)).to_arrow_table(), names)
        ids, values = self._shared
        places = pc.index_in(table["__id"], value_set=ids).to_numpy()
        rows = [self._sides.spec.numeric.index(name) for name in names]
        return values[np.ix_(rows, places)]

    @functools.cached_property
    def _shared(self) -> tuple[pa.Array, Floats] | None:
        """Return ids [N] and all features [C, N]; None of many rows, or if an id repeats."""
        names, connection = self._sides.spec.numeric, self._sides.connection
        count = row(connection, f"select count(*) from {self._relation}")[0]
        if count * len(names) > SHARED_VALUES:
            return None
        listed = ", ".join(map(ident, ("__id", *names)))
        table = connection.sql(f"select {listed} from {self._relation}").to_arrow_table()
        ids = table["__id"].combine_chunks()
        return (ids, _matrix(table, names)) if len(ids.unique()) == len(ids) else None


def _matrix(table: pa.Table, names: Sequence[str]) -> Floats:
    """Return columns [C, T] with NaN for null."""
    values = np.empty((len(names), len(table)))
    for place, name in enumerate(names):
        values[place] = numbers(table[name])
    return values


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
    counts = count_each_distinct(sides.connection, names, relation)
    least, most = max(crowd or 1, LEAST_ENTITIES), (total or 0) / LEAST_LENGTH
    return [
        name
        for family in families
        for name in sorted(
            (n for n in family if least <= counts[n] <= most), key=lambda n: (-counts[n], n)
        )[:MOST_OTHERS]
    ]


def _whole_numbers(sides: Sides, relation: str) -> list[str]:
    found = figures_of(
        sides.connection, sides.spec.numeric, relation, lambda c: [f"bool_and({c} = floor({c}))"]
    )
    return [name for name, (is_whole,) in found.items() if is_whole]


def _in_order(
    sides: Sides, relation: str, label: LabelNumber, key: str, limit: int
) -> tuple[pa.Table, Codes, Codes] | None:
    """Return rows, their entities [T] in order, and how many times repeated so far [T].

    Return None if entities have one row each, or many at one time.
    """
    sql = _series_sql(sides, relation, label, key, limit, ())
    table = sides.connection.sql(sql).to_arrow_table()
    entity = np.asarray(
        table["entity"].combine_chunks().dictionary_encode().indices.to_numpy(), dtype=np.int64
    )
    time, same = numbers(table["__time"]), entity[1:] == entity[:-1]
    again = same & (time[1:] == time[:-1])
    if not same.any() or again[same].mean() > MOST_REPEATED:
        return None
    return table, entity, np.concatenate([[0], np.cumsum(again)])


def _series_sql(
    sides: Sides,
    relation: str,
    label: LabelNumber,
    key: str,
    limit: int,
    features: Sequence[str],
) -> str:
    """Return SQL of whole entities, up to this many rows, with these features.

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
    kept = f"{known} and {entity} in (select g from ({ordered}) where before < {literal(limit)})"
    listed = ", ".join(
        [f"{entity} as entity", "__time", f"{label.sql} as target", "__id", *map(ident, features)]
    )
    return (
        f"select {listed} from {relation} where {kept} order by entity, __time, __id limit {limit}"
    )


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
