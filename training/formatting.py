"""Format numbers, times and text from data for the report, in one way everywhere.

Text from data (categories, ids, file names, messages) passes through `plain`; the template escapes
it, so a hostile category name is shown and never run.
"""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime
from typing import Any

from schemas.records import Interval

MISSING = "–"
METRIC_NAMES = {
    "auroc": "AUROC",
    "pr_auc": "PR-AUC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "macro_f1": "macro F1",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "mape": "MAPE",
    "log_rmse": "RMSE of the logarithm",
    "rmsle": "RMSLE",
    "mcc": "MCC",
    "quantile_loss": "quantile loss",
    "poisson_deviance": "Poisson deviance",
    "tweedie_deviance": "Tweedie deviance",
    "quadratic_kappa": "quadratic kappa",
    "cost": "cost per row",
    "macro_auroc": "macro AUROC",
    "macro_pr_auc": "macro PR-AUC",
    "unexplained": "unexplained share",
    "loss": "loss",
    "perplexity": "perplexity",
    "bits_per_character": "bits per character",
}


def number(value: float | None) -> str:
    """Format a number with four significant digits; keep all integer digits and exact counts.

    >>> number(0.73124), number(12345.678), number(-0.00001234), number(None), number(12345)
    ('0.7312', '12,346', '−1.234e-05', '–', '12,345')
    """
    if value is None:
        return MISSING
    if isinstance(value, int):
        return count(value)
    value = float(value)
    if math.isnan(value):
        return "not a number"
    return ("−" if value < 0 else "") + _size(abs(value))


def _size(size: float) -> str:
    if math.isinf(size):
        return "infinite"
    if size and (size < 1e-4 or size >= 1e12):
        return f"{size:.3e}"
    if size >= 999.95:
        return f"{size:,.0f}"
    return f"{size:#.4g}" if size else "0"


def count(value: int) -> str:
    """Format a whole number with thousands separators."""
    return f"{int(value):,}"


def plural(value: int, noun: str) -> str:
    """Format a count with its noun.

    >>> plural(1, "check"), plural(1200, "row"), plural(3, "class")
    ('1 check', '1,200 rows', '3 classes')
    """
    return f"{count(value)} {noun}" + ("" if value == 1 else "es" if noun.endswith("s") else "s")


def capital(text: str) -> str:
    """Return the text with its first letter in upper case, the rest unchanged.

    >>> capital("macro F1"), capital("")
    ('Macro F1', '')
    """
    return text[:1].upper() + text[1:]


def share(value: float | None) -> str:
    """Format a fraction between 0 and 1 as per cent, with enough digits that a rare class is not 0.

    >>> share(0.1234), share(0.00012), share(1.0)
    ('12.3 %', '0.012 %', '100.0 %')
    """
    if value is None or math.isnan(value):
        return MISSING
    return f"{100 * value:.1f} %" if value == 0 or value >= 0.001 else f"{100 * value:.2g} %"


def percent(level: float) -> str:
    """Format a round fraction such as a confidence level as per cent.

    >>> percent(0.95), percent(0.995)
    ('95 %', '99.5 %')
    """
    return f"{100 * level:g} %"


def interval(value: Interval) -> str:
    """Format `0.7312 (0.7011 to 0.7598)`, or the value alone without an interval."""
    if value.value is None or value.low is None or value.high is None:
        return number(value.value)
    return f"{number(value.value)} ({number(value.low)} to {number(value.high)})"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(0.42), duration(75), duration(7322), duration(14 * 86400)
    ('0.42 s', '1 min 15 s', '2 h 2 min', '14 d')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    first = next(
        i
        for i, (_, size) in enumerate(units)
        if whole >= size and (size != 86400 or whole >= 2 * size)
    )
    (name, size), (small_name, small_size) = units[first], units[first + 1]
    rest = whole % size // small_size
    return f"{whole // size} {name}" + (f" {rest} {small_name}" if rest else "")


def instant(value: float | None, timestamp: bool) -> str:
    """Format epoch seconds as a UTC date, with the hour unless it is midnight; else the number
    itself.

    >>> instant(86400.0, True), instant(86400.0 + 3660, True), instant(12.0, False)
    ('1970-01-02', '1970-01-02 01:01', '12.00')
    """
    if value is None or math.isnan(value):
        return MISSING
    if not timestamp:
        return (
            count(int(value)) if float(value).is_integer() and abs(value) >= 1000 else number(value)
        )
    try:
        moment = datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        return number(value)
    return moment.strftime("%Y-%m-%d" if value % 86400 == 0 else "%Y-%m-%d %H:%M")


def plain(value: object, limit: int = 80) -> str:
    r"""Format text from data on one line: control characters as `·`, cut at `limit` with an
    ellipsis.

    >>> plain("a\x00b\u202ec", 80), plain("abcdef", 4)
    ('a·b·c', 'abc…')
    """
    text = "".join(
        (
            "·"
            if unicodedata.category(c) in ("Cc", "Cs", "Co")
            or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
            else c
        )
        for c in str(value)
    )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def show(value: Any, limit: int = 200) -> str:
    """Format a small value of a record or declaration as one line of text.

    >>> show(None), show(True), show((1, 2)), show({"a": 1.5}), show(0.1)
    ('none', 'yes', '1, 2', 'a: 1.5', '0.1')
    """
    if value is None or value in ((), [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, dict):
        return plain("; ".join(f"{k}: {show(v)}" for k, v in value.items()), limit)
    if isinstance(value, list | tuple | set | frozenset):
        return plain(", ".join(show(v) for v in value), limit)
    return plain(value, limit) if value != "" else '""'


def figure(value: Any) -> str:
    """Format a figure of a check or a group: numbers as in the tables, anything else as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return MISSING if value is None else show(value, 80)
    return number(value)


def metric_name(name: str) -> str:
    """Return the printed name of a metric."""
    return METRIC_NAMES.get(name, plain(name))
