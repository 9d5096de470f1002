"""What every check looks at: the sides as relations of one engine, what their columns are, and what
was declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa

from schemas.config import SPLITS, Declaration, SplitName
from schemas.records import SplitTables, TableSpec
from training.data.engine.engine import ident, parquet
from training.data.engine.in_memory import relation


class Sides(NamedTuple):
    """Two or three sides with the columns of the validated table (see `TableSpec`).

    `relations`: side → SQL relation; val may be absent where files from elsewhere are audited.
    `num_rows`: side → rows.
    """

    connection: duckdb.DuckDBPyConnection
    relations: Mapping[SplitName, str]
    num_rows: Mapping[SplitName, int]
    spec: TableSpec
    declaration: Declaration

    @property
    def held_out(self) -> tuple[SplitName, ...]:
        """The sides besides train."""
        return tuple(side for side in SPLITS if side != "train" and side in self.relations)

    def together(self, columns: Sequence[str]) -> str:
        """All sides as one relation of these columns, with the column `side` in front."""
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
        """At most `limit` rows of a side: those whose `__id` hashes lowest, in that order, whatever
        the order of the file.

        Args:
            side: which rows.
            columns: names in the validated table, `__id`, `__group`, `__time` among them.
            limit: most rows; a side with fewer is returned whole.
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
    """The sides as the split wrote them: files decide, not the plan; `as_written` reads them even
    where their rows are held in memory.
    """
    relations = {
        side: parquet(split.side(side)) if as_written else relation(connection, split.side(side))
        for side in SPLITS
    }
    return Sides(
        connection, relations, {side: split.side(side).rows for side in SPLITS}, spec, declaration
    )
