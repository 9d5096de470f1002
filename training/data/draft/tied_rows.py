"""Rows that belong together, found by what a score loses when they are kept together."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.errors import counted
from training.data.dependence.pool import Pool, ranks
from training.data.dependence.search import Found, first_value_tie
from training.data.dependence.strength import Floats, as_score
from training.data.draft.guesses import Draft, Guess, Table, Tied
from training.data.draft.profile import SAMPLE, Profile, plain
from training.data.engine.engine import ident

ROWS, FEW = 20_000, 5_000  # a table of more rows is looked at in few of them
MOST_COLUMNS = 40
MOST_NULLS = 0.1  # share of rows without a group that are left out


def tie_rows(table: Table, draft: Draft, task: str) -> Draft:
    """Group rows that a score rests on: by a column that numbers things, or by equal values.

    Only where nothing else decides the split, and only if the fall is sure.
    """
    decided = draft.groups or draft.time or draft.split or draft.molecules or draft.labels
    known = {c.name for c in table.columns}
    if decided or draft.label.name not in known or table.rows < 100:
        return draft
    pool = _pool(table, draft, "regression" not in task)
    if pool is None:
        return draft
    found = first_value_tie(pool)
    return draft if found is None else _grouped(table, draft, found, pool)


def _grouped(table: Table, draft: Draft, found: Found, pool: Pool) -> Draft:
    columns = found.tie.columns
    names = ", ".join(plain(name) for name in columns)
    why = (
        f"{found.num_ties} values of {names} in {found.rows} rows:"
        f" {as_score(found.as_split, pool.is_class)} if rows are split at random,"
        f" {as_score(found.honest, pool.is_class, named=False)} if rows of one value stay together"
    )
    profile = next(c for c in table.columns if c.name == columns[0])
    names_things = len(columns) == 1 and not found.is_measured and profile.family in ("int", "text")
    if names_things and profile.null_share <= MOST_NULLS:
        return _of_known(table, draft, profile).with_column(columns[0], Guess("group", why))
    return draft._replace(tied=Tied(columns, found.num_ties, why))


def _of_known(table: Table, draft: Draft, group: Profile) -> Draft:
    """Group by a column, and leave out the rows that have no value in it."""
    if table.is_complete(group):
        return draft._replace(groups=group)
    without = counted(round(group.null_share * table.rows) or 1, "row", "has", "have")
    why = f"{without} no {plain(group.name)}, so that it is not known what they belong to"
    return draft._replace(groups=group, filter=(f"{table.sql(group)} is not null", why))


def _pool(table: Table, draft: Draft, is_class: bool) -> Pool | None:
    """Return rows of the sample as numbers and codes; of a large table some of them."""
    features = [
        c
        for c in table.columns
        if draft.columns[c.name].is_feature and c.family in ("int", "float", "text", "bool")
    ][:MOST_COLUMNS]
    if not features:
        return None
    part = 1 if table.rows <= ROWS else -(-min(table.rows, 200_000) // FEW)
    numeric = {c.name for c in features if c.is_number}
    listed = ", ".join(
        f"cast({ident(c.name)} as {'double' if c.name in numeric else 'varchar'})" for c in features
    )
    label = ident(draft.label.name)
    made = table.connection.sql(
        f"select cast({label} as {'varchar' if is_class else 'double'}), {listed} from {SAMPLE}"
        f" where {label} is not null and hash(rowid) % {part} = 0 order by rowid"
    ).fetchnumpy()
    target, *columns = made.values()
    if len(target) < 100:
        return None
    values = np.stack(
        [
            _numbers(column) if c.name in numeric else _codes(column)
            for c, column in zip(features, columns, strict=True)
        ],
        axis=1,
    )
    values[~np.isfinite(values)] = np.nan
    categories = frozenset(c.name for c in features if c.name not in numeric)
    names = tuple(c.name for c in features)
    wanted = _most_frequent(target) if is_class else ranks(_numbers(target))
    filled = np.nan_to_num(values, nan=np.inf)
    alone = any(guess.role == "id" for guess in draft.columns.values()) or draft.row_number
    # without an id a split keeps rows of equal features together
    unit = np.arange(len(filled)) if alone else np.unique(filled, axis=0, return_inverse=True)[1]
    return Pool(names, categories, values, wanted, is_class, unit.ravel())


def _numbers(column: Any) -> Floats:
    return np.asarray(np.ma.filled(np.ma.asarray(column, dtype=np.float64), np.nan))


def _codes(column: Any) -> Floats:
    """Return codes of texts [N], NaN for null."""
    null = np.ma.getmaskarray(column)
    texts = np.where(null, "", np.ma.getdata(column)).astype(str)
    codes = np.unique(texts, return_inverse=True)[1].astype(np.float64)
    codes[null] = np.nan
    return np.asarray(codes)


def _most_frequent(column: Any) -> Floats:
    codes = _codes(column).astype(np.int64)
    return np.asarray(codes == np.bincount(codes).argmax(), dtype=np.float64)
