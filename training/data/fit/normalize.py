"""Compute statistics of train, and of nothing else: the only fit in the repository.

`fit` takes a `TrainTable`, a type that the split alone makes, and reads nothing but that file. Sums
are exact (see moments.py), so the result is the same for any row order and thread count.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from schemas.config import Declaration, TokensConfig
from schemas.digest import verify
from schemas.errors import DataError, LeakageError, counted, first_few
from schemas.records import (
    CategoryStats,
    NumericStats,
    Statistics,
    TableSpec,
    TensorStats,
    TrainTable,
)
from training.data.engine.engine import chosen_engine, ident
from training.data.engine.in_memory import relation
from training.data.engine.threads import at_once
from training.data.fit.bag_vocabulary import fit_bags
from training.data.fit.held_columns import held_counts, held_moments, held_quantiles
from training.data.fit.labels import fit_labels
from training.data.fit.moments import Moments, column_moments, column_quantiles
from training.data.fit.tensors import channel_moments
from training.data.fit.train_rows import TrainRows, model_needs, rows_in_memory
from training.data.fit.vocabulary import fit_vocabulary
from training.data.fit.window_statistics import fit_windows

log = logging.getLogger(__name__)

LEVELS = tuple(i / 256 for i in range(257))  # knots of a quantile map; exact in binary
QUARTILES = (0.25, 0.5, 0.75)
MEDIAN = (0.5,)


def fit(
    train: TrainTable,
    spec: TableSpec,
    declaration: Declaration,
    connection: duckdb.DuckDBPyConnection | None = None,
) -> Statistics:
    """Fit statistics of train, independent of validation and test rows, row order and threads.

    Args:
        train: the reference that the split made; its Parquet metadata must say `bulkhead.side:
            train`.
        spec: what the columns are.
        declaration: uses the sections `normalize`, `checks.constant_features`,
            `loss.class_weights` and `task`, and of `model` what `model_needs` reads.
        connection: an open engine to use; by default one of `data.engine` is opened and closed.

    Raises:
        LeakageError: the table is not a train table.
        IntegrityError: the file changed after the split wrote it.
        DataError: no rows, one class only, constant or all-null features, non-finite values.
    """
    path = _train_path(train)
    rows = rows_in_memory(train, spec, declaration)
    with nullcontext(connection) if connection else chosen_engine(declaration.data) as engine:
        table = relation(engine, train)
        return _fit(
            TrainRows(engine, path, table, train.rows, spec, declaration, rows),
            train.file.sha256,
            fit_windows(train, spec, declaration),
        )


def _train_path(train: TrainTable) -> Path:
    """Return the file of a train table after checks of type, digest and split."""
    if not isinstance(train, TrainTable):
        raise LeakageError(
            "normalization is fitted on train only: expected a TrainTable made by the split, got"
            f" {type(train).__name__}; pass split.train"
        )
    path = verify(train.file)
    side = (pq.read_schema(path).metadata or {}).get(b"bulkhead.side", b"no side").decode()
    if side != "train":
        raise LeakageError(
            f"normalization is fitted on train only: {path} says it holds {side!r}; pass the train"
            " file that the split wrote"
        )
    return path


def _fit(
    train: TrainRows, sha256: str, windows: tuple[list[TensorStats], dict[str, str]]
) -> Statistics:
    if train.rows < 1:
        raise DataError(
            f"{train.path}: expected train rows, got none; change split.fractions or data.filter"
        )
    if train.spec.text is not None:
        tokens = fit_vocabulary(
            train.path, train.spec.text, train.declaration.tokens or TokensConfig()
        )
        return Statistics(
            train_sha256=sha256,
            rows=train.rows,
            numeric=(),
            categorical=(),
            tensor=(),
            tokens=tokens,
        )
    numeric, dropped = _fit_numeric(train)
    categorical = [_fit_category(train, c) for c in train.spec.categorical]
    dropped |= {c.name: reason for c in categorical if (reason := _constant_category(c))}
    tensor = [_fit_tensor(train, name, dropped) for name in train.spec.tensor]
    tensor += windows[0]
    bags, useless = fit_bags(train)
    dropped |= useless | windows[1]
    _judge_constants(train, dropped)
    return Statistics(
        train_sha256=sha256,
        rows=train.rows,
        numeric=tuple(s for s in numeric if s.name not in dropped),
        categorical=tuple(s for s in categorical if s.name not in dropped),
        tensor=tuple(s for s in tensor if s.name not in dropped),
        bags=tuple(s for s in bags if s.name not in dropped),
        dropped=dropped,
        clip=train.declaration.normalize.clip,
        **fit_labels(train),
    )


def _judge_constants(train: TrainRows, dropped: dict[str, str]) -> None:
    # a date goes on without the parts that do not vary, such as the hour of whole days
    kept_dates = {train.spec.dates[n] for n in train.spec.dates if n not in dropped}
    dropped = {n: why for n, why in dropped.items() if train.spec.dates.get(n) not in kept_dates}
    shown = first_few((f"{name} ({reason})" for name, reason in dropped.items()), limit=50)
    if dropped and train.declaration.checks.constant_features == "fail":
        raise DataError(
            f"{counted(len(dropped), 'feature')} {'says' if len(dropped) == 1 else 'say'} nothing,"
            f" constant or all null in the {counted(train.rows, 'train row')}: {shown}; declare"
            " role ignore for them, or set checks.constant_features: drop"
        )
    if len(dropped) == len(train.spec.features) + len(train.spec.windows):
        raise DataError(
            f"no feature is left: all {len(dropped)} are constant or all null in the"
            f" {counted(train.rows, 'train row')}: {shown}; declare other features"
        )


def _fit_numeric(train: TrainRows) -> tuple[list[NumericStats], dict[str, str]]:
    """Return statistics of each numeric column, and the reason for each useless column."""
    names, rows = train.spec.numeric, train.held
    moments = (
        column_moments(train.connection, train.table, names)
        if rows is None
        else held_moments(rows, names)
    )
    bins = _bin_levels(train.declaration)
    levels = {
        c: found for c, m in moments.items() if m.present and (found := _levels(c, m, train, bins))
    }
    if rows is None:
        quantiles = column_quantiles(
            train.connection, train.table, levels, {c: m.present for c, m in moments.items()}
        )
    else:
        quantiles = dict(
            zip(
                levels,
                at_once(lambda item: held_quantiles(rows, *item), levels.items()),
                strict=True,
            )
        )
    fitted, dropped = [], {}
    for name, column in moments.items():
        if not column.present:
            dropped[name] = "all null"
            continue
        stats = _numeric_stats(
            name,
            column,
            dict(zip(levels.get(name, ()), quantiles.get(name, ()), strict=True)),
            train,
            bins,
        )
        if column.low == column.high and not stats.indicator and stats.fill in (None, column.low):
            dropped[name] = f"always {column.low:g}"
        fitted.append(stats)
    return fitted, dropped


def _settings(column: str, train: TrainRows) -> tuple[str, str]:
    """Return scaling and imputation of a column; its own setting overrides the default.

    A point on a circle is not scaled by default, so that it stays on the circle.
    """
    rule = train.declaration.normalize
    own = rule.columns.get(column)
    default = "none" if train.spec.is_on_circle(column) else rule.scale
    return (own and own.scale) or default, (own and own.impute) or rule.impute


def _filled(column: str, found: Moments, train: TrainRows) -> bool:
    """Return True if nulls are filled: train has some, or the column is declared nullable.

    In other columns nulls are refused.
    """
    declared = train.declaration.data.column(train.spec.dates.get(column, column))
    nullable = declared.nullable if declared else None
    return nullable is True or (nullable is None and found.nulls > 0)


def _levels(
    column: str, found: Moments, train: TrainRows, bins: tuple[float, ...]
) -> tuple[float, ...]:
    """Return the quantile levels of a column's scaling, imputation and bins; most need none."""
    scale, impute = _settings(column, train)
    if scale == "quantile":
        levels = LEVELS
    elif scale in ("robust", "smooth"):
        levels = QUARTILES
    else:
        levels = MEDIAN if impute == "median" and _filled(column, found, train) else ()
    return (*levels, *(level for level in bins if level not in levels))


def _bin_levels(declaration: Declaration) -> tuple[float, ...]:
    """Return the levels of the edges of the bins that the model asks for, 0 and 1 included."""
    bins = model_needs(declaration).bins
    return tuple(i / bins for i in range(bins + 1)) if bins else ()


def _numeric_stats(
    name: str,
    found: Moments,
    quantile: dict[float, float],
    train: TrainRows,
    bins: tuple[float, ...],
) -> NumericStats:
    scale, impute = _settings(name, train)
    mean, std = found.mean or 0.0, found.std or 0.0
    filled, declaration = _filled(name, found, train), train.declaration
    if scale == "robust" and not quantile[0.75] - quantile[0.25]:
        log.warning(
            "%s: half of the train values are equal (IQR 0), so robust scaling is impossible;"
            " standard scaling is used and recorded",
            name,
        )
        scale = "standard"
    center, spread = _center_spread(scale, found, quantile)
    return NumericStats(
        name=name,
        method=scale,
        center=center,
        scale=spread or 1.0,
        knots=tuple(quantile[level] for level in LEVELS) if scale == "quantile" else (),
        # sorted: interpolation between equal neighbours may be off by the last bit
        bins=tuple(sorted({quantile[level] for level in bins})),
        bounded=name in train.spec.dates and not train.spec.is_on_circle(name),
        fill=(
            {"mean": mean, "median": quantile.get(0.5, 0.0), "zero": 0.0}[impute]
            if filled
            else None
        ),
        # one for all parts of a date
        indicator=filled
        and found.nulls > 0
        and declaration.normalize.indicators
        and not train.spec.is_on_circle(name),
        nulls=found.nulls,
        mean=mean,
        std=std,
        min=found.low,
        max=found.high,
    )


def _center_spread(scale: str, found: Moments, quantile: dict[float, float]) -> tuple[float, float]:
    """Return center and spread of a column; 0 is no spread.

    Smooth scaling takes the IQR, and half the range where half of the values are equal.

    Source: Holzmüller et al. (2024), arXiv 2407.04491, robust scaling of RealMLP.
    """
    if scale == "standard":
        return found.mean or 0.0, found.std or 0.0
    if scale not in ("robust", "smooth"):
        return 0.0, 1.0
    spread = quantile[0.75] - quantile[0.25]
    if scale == "smooth" and not spread:
        spread = ((found.high or 0.0) - (found.low or 0.0)) / 2
    return quantile[0.5], spread


def _fit_category(train: TrainRows, column: str) -> CategoryStats:
    """Return the vocabulary of a column, by count and then text.

    Values below `min_count` or beyond `max_categories` are rare.
    """
    rule = train.declaration.normalize
    found, nulls = _most_frequent(train, column, rule.min_count, rule.max_categories)
    rare = train.rows - nulls - sum(count for _, count in found)
    return CategoryStats(
        name=column,
        values=tuple(v for v, _ in found),
        counts=tuple(n for _, n in found),
        nulls=nulls,
        rare_rows=rare,
    )


def _most_frequent(
    train: TrainRows, column: str, least: int, most: int
) -> tuple[list[tuple[str, int]], int]:
    """Return the values that occur in this many rows, with their counts, and the count of nulls.

    Values are ordered by count and then text.
    """
    if train.held is not None and (held_ones := held_counts(train.held, column)) is not None:
        counts, nulls = held_ones
        in_order = sorted(counts.items(), key=lambda item: (-item[1], item[0].encode()))
        return [item for item in in_order if item[1] >= least][:most], nulls
    name = ident(column)
    found = train.query(
        f"select {name} as value, count(*) as n from {train.table} where {name} is not null group"
        f" by {name} having count(*) >= {least} order by n desc, value limit {most}"
    )
    return [(str(value), count) for value, count in found], train.query(
        f"select count(*) - count({name}) from {train.table}"
    )[0][0]


def _constant_category(column: CategoryStats) -> str | None:
    """Return why a column is useless: all its rows would get one code."""
    if len(column.values) + (column.rare_rows > 0) + (column.nulls > 0) > 1:
        return None
    if column.nulls:
        return "all null"
    return f"always {column.values[0]!r}" if column.values else "all values rare"


def _fit_tensor(train: TrainRows, name: str, dropped: dict[str, str]) -> TensorStats:
    shape, dtype = train.spec.tensor[name], train.spec.tensor_dtype[name]
    means, stds, constant = channel_moments(train.path, name, shape, dtype)
    if constant:
        dropped[name] = f"always {means[0]:g}"
    declared = train.declaration.data.column(name)
    return TensorStats(
        name=name,
        shape=shape,
        dtype=dtype,
        mean=tuple(means),
        std=tuple(stds),
        encoder=declared and declared.encoder,
    )
