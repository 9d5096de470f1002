"""Rows that a model has never learned from, found by hashes of ids and groups.

The hashes are stored with the model. A hash is the first 64 bits of md5 over `id:` or `group:` and
the key. It is not salted, so that a later run can recognise the keys. Whoever can enumerate the
keys can recognise them too. Protect the file like a list of the ids. N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import numpy as np

from schemas.digest import verify
from schemas.records import TableRef
from training.data.engine.distinct import distinct
from training.data.engine.engine import connect, parquet

BATCH_ROWS = 262_144
HASH = "cast('0x' || substr(md5(concat('{kind}:', {column})), 1, 16) as ubigint)"


def trained_keys(tables: Iterable[TableRef]) -> np.ndarray:
    """Return sorted distinct hashes, uint64, of the keys of the tables that made a model.

    They cover every `__id` and non-null `__group`.

    Args:
        tables: train and validation: one gave the weights, the other chose among them.
    """
    found = [
        np.concatenate(
            list(
                _hashes(
                    table,
                    f"select distinct {HASH.format(kind=kind, column=column)} from {{table}} where"
                    f" {column} is not null",
                )
            )
        )
        for table in tables
        for kind, column in (("id", "__id"), ("group", "__group"))
    ]
    return distinct(np.concatenate(found)) if found else np.empty(0, np.uint64)


def evaluated_keys(table: TableRef) -> np.ndarray:
    """Return sorted distinct hashes, uint64, of every `__id` of the rows that tested a model."""
    return distinct(row_keys(table))


def row_keys(table: TableRef) -> np.ndarray:
    """Return the hash, uint64 [N], of the `__id` of each row of a table, in its order."""
    hashed = HASH.format(kind="id", column="__id")
    return np.concatenate(list(_hashes(table, f"select {hashed} from {{table}}")))


def rows_among(table: TableRef, keys: np.ndarray) -> np.ndarray:
    """Return a mask [N] of the rows of a table, in its order, whose `__id` is among the hashes."""
    return np.asarray(np.isin(row_keys(table), keys))


def unseen_rows(table: TableRef, seen: np.ndarray, by_group: bool) -> np.ndarray:
    """Return a mask [N] of the rows of a table, in its order, that a model has not learned from.

    Args:
        table: with `__id` and `__group`.
        seen: the model's `trained_keys`.
        by_group: also leave out rows whose group it has learned from. Right if the split keeps
            groups whole. In a split by time alone, the same groups occur in the test rows, which is
            intended.
    """
    known = [row_keys(table)]
    if by_group:
        known.append(
            np.concatenate(
                list(
                    _hashes(
                        table,
                        f"select coalesce({HASH.format(kind='group', column='__group')}, 0) from"
                        " {table}",
                    )
                )
            )
        )
    return np.asarray(~np.logical_or.reduce([np.isin(keys, seen) for keys in known]))


def _hashes(table: TableRef, sql: str) -> Iterator[np.ndarray]:
    """Return a query's only column as uint64, in batches."""
    yield np.empty(0, np.uint64)
    with closing(connect()) as connection:
        verify(table.file)
        for batch in connection.sql(sql.format(table=parquet(table))).to_arrow_reader(BATCH_ROWS):
            yield batch.column(0).to_numpy(zero_copy_only=False)
