"""Apply fitted statistics: table columns in, model arrays out; nothing is fitted here.

All functions are pure. The arithmetic is subtract, divide, square root, clip and piecewise-linear
interpolation in float64, so that the exported program repeats it to 1e-12. N rows, D numeric
columns, C categorical columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import DataError, first_few
from schemas.records import LabelStats, NumericStats, Statistics
from training.data.target_transform import transform_labels

SMOOTH_BOUND = 3.0  # which smoothly clipped values approach
LARGEST_SQUARED = 1e100  # a scaled value beyond is taken for it, as its square may overflow
UNKNOWN, NULL, FIRST = 0, 1, 2  # category codes: unknown or rare, null, then the vocabulary


def transform_numeric(values: np.ndarray, statistics: Statistics) -> np.ndarray:
    """Return the numeric block of the model input; each row is independent of all others.

    Round where float32 is enough, fill nulls, scale, clip, cast to float32, then append the null
    indicators. A null of a column without `fill` stays NaN: callers refuse it where they can name
    the row.

    Args:
        values: float64 [N, D] in the order of `statistics.numeric`; NaN is null.
        statistics: fitted on train.

    Returns:
        float32 [N, num_numeric].

    >>> column = NumericStats(name="x", method="standard", center=2.0, scale=4.0, fill=4.0,
    ...     indicator=True)
    >>> fitted = Statistics(train_sha256="", rows=2, numeric=(column,), categorical=(), tensor=())
    >>> transform_numeric(np.array([[6.0], [np.nan]]), fitted).tolist()
    [[1.0, 0.0], [0.5, 1.0]]
    """
    stats = statistics.numeric
    if values.ndim != 2 or values.shape[1] != len(stats):
        raise DataError(
            f"expected numeric values of shape [N, {len(stats)}], got {list(values.shape)}"
        )
    return transform_columns([values[:, index] for index in range(len(stats))], statistics)


def transform_columns(columns: Sequence[np.ndarray], statistics: Statistics) -> np.ndarray:
    """Apply `transform_numeric` to a table with separate columns, one column after the other.

    The data in work stay in the processor's cache.

    Args:
        columns: float64 [N] for each of `statistics.numeric`; NaN is null.
        statistics: fitted on train.

    Returns:
        float32 [N, num_numeric].
    """
    found = np.empty((len(columns[0]), statistics.num_numeric), dtype=np.float32)
    bounds, rounded, indicator = clip_bounds(statistics), rounded_columns(statistics), len(columns)
    with np.errstate(over="ignore"):  # an overflow becomes inf, which `materialise` refuses by name
        for index, (given, stats) in enumerate(zip(columns, statistics.numeric, strict=True)):
            nulls = np.isnan(given)
            values = given.astype(np.float32).astype(np.float64) if rounded[index] else given
            if stats.bounded:
                values = np.clip(values, stats.min, stats.max)
            scaled = (
                np.where(nulls, np.nan if stats.fill is None else stats.fill, values) - stats.center
            ) / stats.scale
            if stats.method == "quantile":
                scaled = np.interp(scaled, *quantile_points(stats))
            elif stats.method == "smooth":
                scaled = smoothly_clipped(scaled)
            found[:, index] = (
                np.clip(scaled, -bounds[index], bounds[index])
                if np.isfinite(bounds[index])
                else scaled
            )
            if stats.indicator:
                found[:, indicator] = nulls
                indicator += 1
    return found


def smoothly_clipped(values: np.ndarray) -> np.ndarray:
    """Return v / sqrt(1 + (v / 3)^2): near 0 it is v, far out it approaches ±3; NaN stays NaN.

    Source: Holzmüller et al. (2024), arXiv 2407.04491, smooth clipping of RealMLP.

    >>> smoothly_clipped(np.array([0.0, 0.1, -4.0, np.inf])).round(3).tolist()
    [0.0, 0.1, -2.4, 3.0]
    """
    bounded = np.clip(values, -LARGEST_SQUARED, LARGEST_SQUARED)
    part = bounded / SMOOTH_BOUND
    return np.asarray(bounded / np.sqrt(1 + part * part))


def rounded_columns(statistics: Statistics) -> np.ndarray:
    """Return the mask [D] of columns that are rounded to float32 first.

    A consumer's float32 rows then give exactly the numbers of float64 rows. Only columns that lose
    nothing important are rounded: half the spacing of float32 at the largest train value is at most
    1e-5 standard deviations. A time stamp or an account number keeps its float64.
    """
    largest = np.array(
        [max(abs(s.min or 0.0), abs(s.max or 0.0)) for s in statistics.numeric], dtype=np.float64
    )
    return largest * 2.0**-24 <= 1e-5 * np.array(
        [s.std or 0.0 for s in statistics.numeric], dtype=np.float64
    )


def clip_bounds(statistics: Statistics) -> np.ndarray:
    """Return the bound of each scaled column, float64 [D].

    It is infinite without `clip` and for columns that are not scaled, and at most 3 for those that
    are clipped smoothly.
    """
    clip = np.inf if statistics.clip is None else statistics.clip
    bounds = {"none": np.inf, "smooth": min(clip, SMOOTH_BOUND)}
    return np.array([bounds.get(s.method, clip) for s in statistics.numeric], dtype=np.float64)


def fitted_ranges(statistics: Statistics) -> list[tuple[float | None, float | None]]:
    """Return for each numeric column the values beyond which its scaled value is clipped.

    The result is None for a column without clipping, such as a smooth one whose bound 3 no value
    reaches.
    """
    ranges: list[tuple[float | None, float | None]] = []
    for column, limit in zip(statistics.numeric, clip_bounds(statistics).tolist(), strict=True):
        if column.method == "quantile" or column.bounded:
            ranges.append((column.min, column.max))
            continue
        bound = _before_smoothing(limit) if column.method == "smooth" else limit
        if np.isfinite(bound):
            ranges.append(
                (column.center - bound * column.scale, column.center + bound * column.scale)
            )
        else:
            ranges.append((None, None))
    return ranges


def _before_smoothing(bound: float) -> float:
    """Return the value that smooth clipping maps to a bound; infinity for a bound it approaches."""
    part = bound / SMOOTH_BOUND
    return bound / math.sqrt(1 - part * part) if part < 1 else math.inf


def quantile_points(column: NumericStats) -> tuple[np.ndarray, np.ndarray]:
    """Return strictly increasing knots and their normal scores, both float64 [K].

    The map is linear between knots and flat outside.

    The outer levels are moved in by half a step, where the normal score is finite; knots that
    coincide (a value that many rows share) become one knot with the mean of their scores.

    Source: normal scores, van der Waerden (1952).

    >>> knots, scores = quantile_points(NumericStats(name="x", method="quantile",
    ...     knots=(0, 0, 5, 7, 9)))
    >>> knots.tolist(), scores.round(2).tolist()
    ([0.0, 5.0, 7.0, 9.0], [-0.91, 0.0, 0.67, 1.15])
    """
    knots = np.asarray(column.knots, dtype=np.float64)
    step = 1 / (len(knots) - 1)
    normal = NormalDist()
    scores = np.array(
        [normal.inv_cdf(min(max(i * step, step / 2), 1 - step / 2)) for i in range(len(knots))]
    )
    unique, inverse, counts = np.unique(knots, return_inverse=True, return_counts=True)
    return unique, np.bincount(inverse, weights=scores) / counts


def encode_categories(table: pa.Table | pa.RecordBatch, statistics: Statistics) -> np.ndarray:
    """Return category codes, int64 [N, C]: 0 unknown or rare, 1 null, then the vocabulary index.

    Args:
        table: holds the columns of `statistics.categorical` as text, null where missing.
        statistics: fitted on train.

    >>> from schemas.records import CategoryStats
    >>> column = CategoryStats(name="k", values=("b", "a"), counts=(5, 2))
    >>> fitted = Statistics(train_sha256="", rows=7, numeric=(), categorical=(column,), tensor=())
    >>> encode_categories(pa.table({"k": ["a", "b", "new", None]}), fitted).tolist()
    [[3], [2], [0], [1]]
    """
    return CategoryCodes(statistics)(table)


class CategoryCodes:
    """Apply `encode_categories` to batch after batch.

    The vocabularies, and dictionaries that batches share, are looked up once.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._names = [column.name for column in statistics.categorical]
        self._texts = [
            pa.array(column.values, type=pa.large_string()) for column in statistics.categorical
        ]
        # the last dictionary, and the codes of its texts
        self._seen: list[tuple[pa.Array, np.ndarray] | None] = [None] * len(self._names)

    def __call__(self, table: pa.Table | pa.RecordBatch) -> np.ndarray:
        """Return codes, int64 [N, C]."""
        codes = np.empty((table.num_rows, len(self._names)), dtype=np.int64)
        for index, name in enumerate(self._names):
            column = table.column(name)
            codes[:, index] = (
                self._of_places(column, index)
                if isinstance(column, pa.DictionaryArray)
                else self._of_texts(column, index)
            )
        return codes

    def _of_places(self, values: pa.DictionaryArray, index: int) -> np.ndarray:
        seen, texts = self._seen[index], values.dictionary
        if seen is None or (len(seen[0]), seen[0].buffers()) != (len(texts), texts.buffers()):
            # the last one for indices that are null
            seen = self._seen[index] = (texts, np.append(self._of_texts(texts, index), NULL))
        return np.asarray(seen[1][np.asarray(pc.fill_null(values.indices, len(texts)))])

    def _of_texts(self, values: pa.Array | pa.ChunkedArray, index: int) -> np.ndarray:
        text = values.cast(pa.large_string())
        found = pc.index_in(text, value_set=self._texts[index])
        codes = pc.if_else(pc.is_null(text), NULL, pc.fill_null(pc.add(found, FIRST), UNKNOWN))
        return np.asarray(
            (
                codes.to_numpy()
                if isinstance(codes, pa.ChunkedArray)
                else codes.to_numpy(zero_copy_only=False)
            ),
            dtype=np.int64,
        )


def encode_labels(table: pa.Table | pa.RecordBatch, statistics: Statistics) -> np.ndarray:
    """Return several labels next to each other, float32 [N, L].

    They are class indices and scaled values, NaN where a label is unknown (null).

    NaN cannot be mistaken for a value: a computation that forgets the mask is not finite, and
    stops.

    Args:
        table: holds the columns of `statistics.labels`.
        statistics: fitted on train.

    Raises:
        DataError: a class that train does not have, naming the label.

    >>> label = LabelStats(name="toxic", kind="binary", known=2, share=1.0, classes=(0, 1))
    >>> fitted = Statistics(train_sha256="", rows=3, numeric=(), categorical=(), tensor=(),
    ...     labels=(label,))
    >>> encode_labels(pa.table({"toxic": [1, None, 0]}), fitted).tolist()
    [[1.0], [nan], [0.0]]
    """
    found = np.full((table.num_rows, len(statistics.labels)), np.nan, dtype=np.float32)
    for index, label in enumerate(statistics.labels):
        column = table.column(label.name)
        known = np.asarray(
            pc.is_valid(column).to_numpy(zero_copy_only=False)
            if isinstance(column, pa.Array)
            else pc.is_valid(column).to_numpy()
        )
        try:
            found[known, index] = encode_label(column.drop_null(), label)
        except DataError as error:
            raise DataError(f"label {label.name!r}: {error}") from error
    return found


def encode_label(
    values: pa.Array | pa.ChunkedArray, statistics: Statistics | LabelStats
) -> np.ndarray:
    """Return the label for the loss: class index int64 [N], or scaled value float32 [N].

    Args:
        values: the label column, without nulls.
        statistics: fitted on train, of the only label or of one of several; a regression has no
            classes.

    Raises:
        DataError: a null, or a class that train does not have.
    """
    if values.null_count:
        raise DataError(
            f"expected a label in every row, got {values.null_count} nulls; set data.null_labels:"
            " drop"
        )
    if not statistics.classes:
        scale = transform_labels(statistics.target_transform, values.cast(pa.float64(), safe=False))
        number = np.asarray(scale.to_numpy(), dtype=np.float64)
        return ((number - statistics.target_center) / statistics.target_scale).astype(np.float32)
    classes = pa.array(statistics.classes)
    if pa.types.is_string(classes.type):
        classes = classes.cast(pa.large_string())
    known = values.cast(classes.type)
    found = pc.index_in(known, value_set=classes)
    if found.null_count:
        unseen = pc.unique(known.filter(pc.is_null(found))).to_pylist()
        raise DataError(
            f"{found.null_count} rows have a class that train lacks:"
            f" {first_few(map(repr, unseen))}; train has"
            f" {first_few(map(repr, statistics.classes), limit=20)}; split with kind stratified or"
            " stratified_group, or filter the rare classes"
        )
    return np.asarray(found.to_numpy(), dtype=np.int64)
