"""What a split by each candidate would leave in test, before any row is split."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.split_config import Fractions
from schemas.table_look import SplitPreview
from training.data.look.coded_columns import CodedColumn

DRAWS = 40
FEW = 10  # groups or positives in test: fewer carry no claim
LEAST_GROUPS = 10  # in the table: fewer make no test side of new ones
Booleans = NDArray[np.bool_]


def preview_rows(rows: int, sampled: int, positive: Booleans | None) -> SplitPreview:
    """Return what is left by a split of single rows at random."""
    share = Fractions().test
    positives = None if positive is None else round(float(positive.mean()) * rows)
    mean, spread = rows * share, 1.645 * (rows * share * (1 - share)) ** 0.5
    return SplitPreview(
        kind="random",
        column=None,
        test_rows=round(mean),
        test_rows_low=max(0, round(mean - spread)),
        test_rows_high=min(rows, round(mean + spread)),
        **_positive_figures(positives, share),
        note=_note(None, None if positives is None else round(positives * share)),
    )


def _positive_figures(positives: int | None, share: float) -> dict[str, int]:
    if positives is None:
        return {}
    mean = positives * share
    spread = 1.645 * (mean * (1 - share)) ** 0.5
    return {
        "test_positives": round(mean),
        "test_positives_low": max(0, round(mean - spread)),
        "test_positives_high": min(positives, round(mean + spread)),
    }


def preview_groups(
    column: CodedColumn, rows: int, groups: int, positive: Booleans | None
) -> SplitPreview:
    """Return what is left by a split of whole groups, each drawn with the share of test.

    Args:
        column: the group of each row of the sample.
        rows: of the whole table.
        groups: different values in the whole table.
        positive: rows of the sample that are positive; none without classes.
    """
    share = Fractions().test
    chosen = np.random.default_rng(0).random((DRAWS, column.distinct)) < share
    chosen = chosen[:, _by_value(column)]  # the same draw in any order of the rows
    scale = rows / len(column.codes)
    tested = chosen @ column.counts * scale
    figures: dict[str, int] = {}
    if positive is not None:
        held = np.bincount(column.codes[positive & (column.codes >= 0)], minlength=column.distinct)
        middle, low, high = _quantiles(chosen @ held * scale)
        figures = {
            "test_positives": middle,
            "test_positives_low": low,
            "test_positives_high": high,
        }
    middle, low, high = _quantiles(tested)
    return SplitPreview(
        kind="group",
        column=column.name,
        groups=groups,
        test_groups=round(groups * share),
        test_rows=middle,
        test_rows_low=low,
        test_rows_high=high,
        **figures,
        note=_note(groups, figures.get("test_positives")),
    )


def _by_value(column: CodedColumn) -> NDArray[np.int64]:
    """Return the rank of each code among the values, which the order of rows does not change."""
    keys = column.by_code if column.by_code is not None else np.array(column.texts, dtype=object)
    ranks = np.empty(column.distinct, dtype=np.int64)
    ranks[np.argsort(keys, kind="stable")] = np.arange(column.distinct)
    return ranks


def _quantiles(figures: NDArray[np.floating[Any]]) -> tuple[int, int, int]:
    low, middle, high = np.quantile(figures, (0.05, 0.5, 0.95))
    return round(float(middle)), round(float(low)), round(float(high))


def preview_time(column: CodedColumn, rows: int, positive: Booleans | None) -> SplitPreview | None:
    """Return what is left by a split at a moment: the latest rows are test.

    Rows of one moment stay together. None if the column has no moments, or one.
    """
    numbers = column.numbers
    if numbers is None or column.distinct < 2:
        return None
    known = np.flatnonzero(np.isfinite(numbers))
    share, scale = Fractions().test, rows / len(numbers)
    if not len(known):
        return None
    cut = float(np.sort(numbers[known])[int((1 - share) * len(known))])
    late = np.zeros(len(numbers), dtype=bool)
    late[known] = numbers[known] >= cut
    tested = round(int(late.sum()) * scale)
    found = None if positive is None else round(int((positive & late).sum()) * scale)
    note = _note(None, found)
    if positive is not None and not late.all():
        before, after = float(positive[~late].mean()), float(positive[late].mean())
        note = "; ".join(
            filter(None, (f"positive share {before:.3g} before, {after:.3g} in test", note))
        )
    return SplitPreview(
        kind="time",
        column=column.name,
        test_rows=tested,
        test_rows_low=tested,
        test_rows_high=tested,
        test_positives=found,
        test_positives_low=found,
        test_positives_high=found,
        note=note,
    )


def _note(groups: int | None, positives: int | None) -> str:
    parts = []
    if groups is not None and groups < LEAST_GROUPS:
        parts.append(f"{groups} groups are too few for a test of new ones")
    if positives is not None and positives < FEW:
        parts.append(f"about {positives} positives in test carry no claim")
    return "; ".join(parts)
