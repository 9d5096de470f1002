"""Rows of train and validation for the check `dependence`. Test rows are never read.

Shapes: N rows, in the order of the hash of their id.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from schemas.config import SplitName
from training.data.dependence.pool import Pool, compact, ranks
from training.data.dependence.strength import Flags, Floats
from training.data.dependence.ties import between_share, coarse
from training.data.engine.engine import ident, row
from training.data.leakage.chosen_places import chosen_places
from training.data.leakage.sampled import coded_texts, numbers
from training.data.leakage.sides import Sides

ROWS = 20_000  # that are looked at; fits are on fewer
MOST_COLUMNS = 50  # that say most of the label
RUNS, RUN_ROWS = 20, 200  # of neighbours, in a table of more rows
VALUE_ROWS = 5_000  # of whole values, where a sample would tear them apart
# rows of a value: in a sample, below which it is torn, and in all rows, below which it repeats
# nothing
MATES, LEAST_REPEATS = 4, 1.5
MOST_THIN = 2
KEPT_WHOLE = ("group", "stratified_group")
ID_NUMBER = r"try_cast(regexp_extract(__id, '(\d{1,15})\D*$', 1) as bigint)"
UNIQUE = 0.99  # share of ids with a number of their own, from which it is the row's place


class Looked(NamedTuple):
    """Rows: the pool, which of them are validation rows, their time and place (NaN: none).

    `label` names the label, and the class that is told from the others.
    """

    pool: Pool
    held_out: Flags
    time: Floats
    place: Floats
    label: str


def learnt(sides: Sides) -> tuple[SplitName, ...]:
    """Return the sides that may be looked at: train, and validation if there is one."""
    return tuple(side for side in ("train", "val") if side in sides.relations)


def read_rows(sides: Sides) -> Looked | None:
    """Return a sample by the hash of ids; None without a label or a feature of one number."""
    total = sum(sides.num_rows[side] for side in learnt(sides))
    limits = {
        side: ROWS if total <= ROWS else ROWS * sides.num_rows[side] // total
        for side in learnt(sides)
    }
    parts = {side: sides.sample(side, _columns(sides), limits[side]) for side in learnt(sides)}
    return _looked(sides, parts)


def read_runs(sides: Sides, by: str, positions: Floats) -> Looked | None:
    """Return runs of neighbouring rows in the order of a column, as far as a run reaches.

    Args:
        sides: the sides.
        by: the column.
        positions: its values in a sample of rows.
    """
    total = sum(sides.num_rows[side] for side in learnt(sides))
    step = max(total // RUNS, RUN_ROWS)
    place = partial(chosen_places, sides.connection, _together(sides), by, step, RUN_ROWS)
    if sides.declaration.data.memory_bytes is None:
        return _read(sides, f"__id in ({place()})")
    return _read(sides, f"__id in ({place(positions[np.isfinite(positions)])})")


def read_values(sides: Sides, column: str) -> Looked | None:
    """Return all rows of some values of a column, as many as are fitted."""
    total = sum(sides.num_rows[side] for side in learnt(sides))
    share = min(int(VALUE_ROWS / total * 2**32), 2**32 - 1)
    hashed = f"substr(md5(cast({ident(column)} as varchar)), 1, 8)"
    return _read(sides, f"{hashed} < '{share:08x}'")


def thin_columns(sides: Sides) -> tuple[str, ...]:
    """Return columns whose values repeat in all rows but hardly in a sample, categories first."""
    total = sum(sides.num_rows[side] for side in learnt(sides))
    names = (*sides.spec.categorical, *sides.spec.numeric)
    if total <= ROWS or not names:
        return ()
    counts = ", ".join(f"approx_count_distinct({ident(name)})" for name in names)
    distinct = row(sides.connection, f"select {counts} from {_together(sides)}")
    thin = [
        name
        for name, number in zip(names, distinct, strict=True)
        if MATES * number > ROWS and LEAST_REPEATS * number < total
    ]
    return tuple(thin[:MOST_THIN])


def _together(sides: Sides) -> str:
    return (
        "("
        + " union all ".join(
            f"select '{side}' as side, * from {sides.relations[side]}" for side in learnt(sides)
        )
        + ")"
    )


def _read(sides: Sides, condition: str) -> Looked | None:
    """Return the rows of a condition, train first, in the order of the hash of their id."""
    columns = ", ".join(map(ident, _columns(sides)))
    table = sides.connection.sql(
        f"select side, {columns} from {_together(sides)} where {condition} order by md5(__id), __id"
    ).to_arrow_table()
    side = np.asarray(table["side"].to_pylist())
    rows = table.drop_columns(["side"])
    return _looked(sides, {name: rows.filter(pa.array(side == name)) for name in learnt(sides)})


def _columns(sides: Sides) -> tuple[str, ...]:
    spec = sides.spec
    label = next(iter(spec.label_columns))
    return tuple(
        dict.fromkeys(
            ("__id", "__group", "__time", "__source_row", label, *spec.numeric, *spec.categorical)
        )
    )


def _looked(sides: Sides, parts: dict[SplitName, pa.Table]) -> Looked | None:
    table = pa.concat_tables(list(parts.values()))
    held_out = np.repeat([side == "val" for side in parts], [len(part) for part in parts.values()])
    target, known, label, is_class = _target(sides, table)
    names = (*sides.spec.numeric, *sides.spec.categorical)
    if not names or known.sum() < 2:
        return None
    features = np.stack(
        [
            numbers(table[name])
            if name in sides.spec.numeric
            else np.where((codes := coded_texts(table[name])[0]) < 0, np.nan, codes)
            for name in names
        ],
        axis=1,
    )
    features[~np.isfinite(features)] = np.nan
    place = numbers(table["__source_row"])
    pool = Pool(
        names,
        frozenset(sides.spec.categorical),
        features,
        target,
        is_class,
        _units(sides, table, features),
    )
    pool = pool.of(np.flatnonzero(known))
    return Looked(
        _telling(pool), held_out[known], numbers(table["__time"])[known], place[known], label
    )


def _target(sides: Sides, table: pa.Table) -> tuple[Floats, Flags, str, bool]:
    """Return the target [N], rows where it is known, its name, and True for a class.

    Of several classes it is the most frequent one against the others.
    """
    name = next(iter(sides.spec.label_columns))
    if sides.declaration.task.label(name).kind == "regression":
        values = numbers(table[name])
        known = np.isfinite(values)
        found = np.full(len(values), np.nan)
        found[known] = ranks(values[known])
        return found, known, name, False
    codes, classes = coded_texts(table[name])
    counts = np.bincount(codes[codes >= 0], minlength=max(len(classes), 1))
    most = int(counts.argmax())
    named = f"{name} = {classes[most]}" if len(classes) > 2 else name
    return (codes == most).astype(np.float64), codes >= 0, named, True


def _units(sides: Sides, table: pa.Table, features: Floats) -> np.ndarray:
    """Return codes of rows that the declared split keeps together.

    They are groups, or without an id rows of equal features.
    """
    codes, texts = coded_texts(table["__group"])
    if sides.declaration.split.kind in KEPT_WHOLE or not sides.spec.id:
        alone = codes < 0
        if not sides.spec.id and sides.declaration.split.kind not in KEPT_WHOLE:
            filled = np.nan_to_num(features, nan=np.inf)
            return compact(np.unique(filled, axis=0, return_inverse=True)[1].ravel())
        codes[alone] = len(texts) + np.arange(int(alone.sum()))
        return compact(codes)
    return np.arange(len(codes), dtype=np.int64)


def _telling(pool: Pool) -> Pool:
    """Return the pool with the columns that share most with the label, in their own order."""
    if len(pool.names) <= MOST_COLUMNS:
        return pool
    codes = coarse(pool)
    order = sorted(pool.names, key=lambda name: -between_share(codes[name], pool.target)[0])
    kept = [i for i, name in enumerate(pool.names) if name in set(order[:MOST_COLUMNS])]
    names = tuple(pool.names[i] for i in kept)
    return pool._replace(names=names, features=pool.features[:, kept])


def placed(sides: Sides) -> Sides:
    """Return the sides with a column `__source_row`: a row's place in its source, or null.

    It is the place that validation kept, else the number in the id, if ids have one of their own.
    """
    if sides.places is not None:
        made = (
            "(select t.*, p.__source_row from {0} t left join " + sides.places + " p using (__id))"
        )
    elif _has_numbered_ids(sides):
        made = f"(select *, cast({ID_NUMBER} as double) as __source_row from {{0}})"
    else:
        made = "(select *, cast(null as double) as __source_row from {0})"
    return sides._replace(
        relations={side: made.replace("{0}", sides.relations[side]) for side in learnt(sides)}
    )


def _has_numbered_ids(sides: Sides) -> bool:
    if not sides.spec.id:
        return False
    listed = " union all ".join(f"select __id from {sides.relations[s]}" for s in learnt(sides))
    different, total = row(
        sides.connection, f"select count(distinct {ID_NUMBER}), count(*) from ({listed})"
    )
    return bool(different >= UNIQUE * total)
