"""What a draft consists of: a role and a reason for each column, and what belongs to the split."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import duckdb

from schemas.config import DataConfig
from training.data.advice import sql_name
from training.data.draft.profile import Profile
from training.data.engine.engine import ident, row

FEATURES = ("feature", "numeric", "categorical", "date", "text", "set", "smiles")


class Guess(NamedTuple):
    """One line of `columns`: the column's role, the reason, and a flag.

    The flag says whether `*: feature` would have the same effect.
    """

    role: str
    why: str
    obvious: bool = False

    @property
    def is_feature(self) -> bool:
        """Return True for a role or kind that the model reads."""
        return self.role in FEATURES or self.role.startswith("{kind")


class Table(NamedTuple):
    """Known facts about the table when the roles are guessed.

    `relation` is all rows as SQL, where more than the sample can be asked. `in_order` is True if
    the sample is the whole table in the order of the file.
    """

    connection: duckdb.DuckDBPyConnection
    data: DataConfig
    columns: tuple[Profile, ...]
    rows: int
    relation: str | None = None
    in_order: bool = False

    def named(self, *names: str) -> Profile | None:
        """Return the first column with one of these names, in any case."""
        return next((c for n in names for c in self.columns if c.name.lower() == n), None)

    def sql(self, column: Profile) -> str:
        """Return the column in an expression, quoted only if it must be."""
        return sql_name(column.name)

    def is_unique(self, column: Profile) -> bool:
        """Return True if no value repeats and none is null, in all rows."""
        if column.distinct < column.present or column.null_share:
            return False
        if self.relation is None or self.rows == column.present:
            return True
        count, different = row(
            self.connection,
            f"select count({ident(column.name)}), count(distinct {ident(column.name)}) from"
            f" {self.relation}",
        )
        return bool(different == count == self.rows)

    def is_complete(self, column: Profile) -> bool:
        """Return True if no row is null, in all rows."""
        if column.null_share or self.relation is None or self.rows == column.present:
            return not column.null_share
        return bool(
            row(self.connection, f"select count({ident(column.name)}) from {self.relation}")[0]
            == self.rows
        )


class Tied(NamedTuple):
    """Columns whose equal values tie rows, how many combinations there are, and the reason."""

    columns: tuple[str, ...]
    distinct: int
    why: str


class Draft(NamedTuple):
    """All guesses: derived columns, a line for each column, and the basis of the split.

    `molecules` names a column of SMILES that groups rows. `labels` are several labels, `filter` a
    condition with its reason, `row_number` the name of an id that counts rows, with its reason,
    `checks` further lines of section `checks`. `unlabelled` is the share of rows without any label.
    `together`: whether duplicates or near_duplicates are a group, and why.
    `tied` says which columns tie rows that no column groups. Numbers of `nullable` are null where
    train may have none.
    """

    derive: dict[str, tuple[str, str]]
    columns: dict[str, Guess]
    label: Profile
    groups: Profile | None
    time: str | None
    split: set[str]
    molecules: Profile | None = None
    labels: tuple[Profile, ...] = ()
    filter: tuple[str, str] | None = None
    row_number: tuple[str, str] | None = None
    unlabelled: float = 0.0
    checks: tuple[tuple[str, str], ...] = ()
    together: tuple[str, str] = ("", "")
    tied: Tied | None = None
    nullable: tuple[str, ...] = ()

    def with_column(self, name: str, guess: Guess) -> Draft:
        """Return the draft with another guess for one column."""
        return self._replace(columns={**self.columns, name: guess})


def left(columns: Iterable[Profile], guesses: dict[str, Guess]) -> list[Profile]:
    """Return the columns that have no guess yet."""
    return [c for c in columns if c.name not in guesses]
