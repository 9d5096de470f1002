"""Figures of one column for a first look: extremes, and bars of a small picture."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from schemas.table_look import Bar, ColumnLook
from training.data.look.coded_columns import CodedColumn, most_frequent

BINS = 16  # intervals of a histogram
TOP = 5  # values that are listed
FEW = 12  # different numbers that are listed with their rows


def look_at(column: CodedColumn) -> ColumnLook:
    """Return the figures of a column.

    Numbers and times get a histogram, or a bar for each value if they are few; others their most
    frequent values. Id-like columns, free text and lists get none.
    """
    low, high = _extremes(column)
    bars = _bars(column)
    shown = sum(bar.rows for bar in bars)
    return ColumnLook(
        name=column.name,
        type=column.type,
        kind=column.kind,
        nulls=column.nulls,
        distinct=column.distinct,
        low=low,
        high=high,
        bars=bars,
        others=column.present - shown if bars else 0,
    )


def number_text(value: float) -> str:
    """Return a number as short as it can be read.

    >>> number_text(3.0), number_text(0.12345678), number_text(1e20), number_text(-2.5)
    ('3', '0.123457', '1e+20', '-2.5')
    """
    return f"{value:.0f}" if value == round_or_nan(value) and abs(value) < 1e15 else f"{value:g}"


def round_or_nan(value: float) -> float:
    """Return the nearest whole number; NaN for infinity."""
    return float(round(value)) if math.isfinite(value) else math.nan


def moment_text(seconds: float) -> str:
    """Return a moment in UTC as text: the day alone at midnight.

    >>> moment_text(86400.0), moment_text(90000.0)
    ('1970-01-02', '1970-01-02 01:00:00')
    """
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return number_text(seconds)
    return moment.strftime("%Y-%m-%d" if seconds % 86400 == 0 else "%Y-%m-%d %H:%M:%S")


def _extremes(column: CodedColumn) -> tuple[str, str]:
    if column.by_code is None or not column.distinct:
        return "", ""
    show = moment_text if column.kind == "time" else number_text
    return show(float(np.min(column.by_code))), show(float(np.max(column.by_code)))


def _bars(column: CodedColumn) -> tuple[Bar, ...]:
    if column.kind in ("id-like", "text", "list", "other") or not column.distinct:
        return ()
    if column.by_code is not None and column.distinct > FEW:
        return _histogram(column, column.by_code)
    if column.by_code is not None:
        show = moment_text if column.kind == "time" else number_text
        order = np.argsort(column.by_code, kind="stable")
        return tuple(
            Bar(text=show(float(column.by_code[c])), rows=int(column.counts[c])) for c in order
        )
    return tuple(
        Bar(text=str(column.values[c].as_py()), rows=int(column.counts[c]))
        for c in most_frequent(column, TOP)
    )


def _histogram(column: CodedColumn, by_code: NDArray[np.float64]) -> tuple[Bar, ...]:
    """Count rows in intervals of equal width between the smallest and the largest finite number."""
    finite = np.isfinite(by_code)
    if not finite.any():
        return ()
    low, high = float(by_code[finite].min()), float(by_code[finite].max())
    if not math.isfinite(high - low) or low == high:
        return ()
    edges = np.linspace(low, high, BINS + 1)
    rows, _ = np.histogram(by_code[finite], edges, weights=column.counts[finite])
    show = moment_text if column.kind == "time" else number_text
    return tuple(
        Bar(text=f"{show(float(a))} to {show(float(b))}", rows=int(n))
        for a, b, n in zip(edges[:-1], edges[1:], rows, strict=True)
    )
