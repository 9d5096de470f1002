"""Input of every check: the splits as relations of one engine, their columns, the declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa

from schemas.config import SPLITS, Declaration, SplitName
from schemas.digest import verify
from schemas.records import SplitTables, TableRef, TableSpec, ValidatedTable
from training.data.engine.engine import ident, literal, parquet
from training.data.engine.in_memory import relation


class Sides(NamedTuple):
    """Two or three splits with the columns of the validated table (see `TableSpec`).

    `relations`: split → SQL relation; val may be absent in audits of files from elsewhere.
    `num_rows`: split → rows. `places`: relation of `__id` and `__source_row`, the order of the
    source, where it is known. `tables`: files of the splits, with the windows of their rows; empty
    for files from elsewhere.
    """

    connection: duckdb.DuckDBPyConnection
    relations: Mapping[SplitName, str]
    num_rows: Mapping[SplitName, int]
    spec: TableSpec
    declaration: Declaration
    places: str | None = None
    tables: Mapping[SplitName, TableRef] = {}

    @property
    def held_out(self) -> tuple[SplitName, ...]:
        """Return the splits other than train."""
        return tuple(side for side in SPLITS if side != "train" and side in self.relations)

    def together(self, columns: Sequence[str]) -> str:
        """Return all splits as one relation of these columns, with the column `side` in front."""
        listed = ", ".join(ident(c) for c in columns)
        return (
            "("
            + " union all ".join(
                f"select '{side}' as side, {listed} from {relation}"
                for side, relation in self.relations.items()
            )
            + ")"
        )

    def sample(self, side: SplitName, columns: Sequence[str], limit: int) -> pa.Table:
        """Return at most `limit` rows of a split: those with the lowest `__id` hashes, in order.

        The order of the file does not matter.

        Args:
            side: the split.
            columns: names in the validated table, `__id`, `__group`, `__time` among them.
            limit: most rows; a split with fewer is returned whole.
        """
        listed = ", ".join(ident(c) for c in columns)
        relation = self.relations[side]
        if self.num_rows[side] > limit:
            # a slice of the hash space that holds somewhat more than the limit, so that the sort is
            # over few rows
            share = min(1.0, 1.2 * limit / self.num_rows[side] + 100 / self.num_rows[side])
            relation = (
                f"(select * from {relation} where substr(md5(__id), 1, 8) <"
                f" '{min(int(share * 2**32), 2**32 - 1):08x}')"
            )
        return self.connection.sql(
            f"select {listed} from {relation} order by md5(__id), __id limit {limit}"
        ).to_arrow_table()


def sides_of(
    connection: duckdb.DuckDBPyConnection,
    split: SplitTables,
    spec: TableSpec,
    declaration: Declaration,
    as_written: bool = False,
) -> Sides:
    """Return the splits as written: files decide, not the plan.

    `as_written` reads the files even if their rows are in memory.
    """
    relations = {
        side: (
            parquet(split.side(side))
            if as_written
            else relation(connection, split.side(side), often=True)
        )
        for side in SPLITS
    }
    tables = {side: split.side(side) for side in SPLITS}
    num_rows = {side: table.rows for side, table in tables.items()}
    return Sides(connection, relations, num_rows, spec, declaration, tables=tables)


def places_of(validated: ValidatedTable) -> str | None:
    """Return a relation of `__id` and `__source_row`, each row's place in the source, if known.

    Raises:
        IntegrityError: the file is not what validation wrote.
    """
    if validated.row_places is None:
        return None
    verify(validated.row_places)
    places = f"read_parquet({literal(validated.row_places.path)}, hive_partitioning = false)"
    place = "cast(p.__source_row as double) as __source_row"
    return f"(select t.__id, {place} from {parquet(validated.table)} t positional join {places} p)"
