"""Task, transform and loss that fit a label, with the figures that say so: `bulkhead init`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import duckdb
import numpy as np

from training.data.draft.profile import SAMPLE, Profile
from training.data.engine.engine import ident

MOST_CLASSES = 20  # whole numbers with more values are no classes
FEWEST_ROWS = 50  # fewer rows say nothing about a distribution
FEWEST_COUNTS = 4  # different values of counts; three are classes as well
FEW_COUNTS = 7  # up to so many values, classes by chance look like a falling tail
GRADES = (3, 10)  # least and most values of ordered grades, without a gap
DECADES = 3  # powers of ten from the 1st to the 99th percentile of a label for logarithms
SKEWED = 2.0  # a label with more skewness, whose logarithm has less than half of it, too
LEAST_DECADES = 1.0  # of a label that is only skewed
GRADE_WORDS = ("grade", "rating", "stars", "score", "level", "severity", "quality", "stage", "rank")
CLASS_WORDS = ("class", "type", "category", "kind", "species", "code", "cluster", "group")


class TargetGuess(NamedTuple):
    """What is predicted, as the sections `task` and `loss` of a declaration, and the reason.

    `loss` is empty where the task's own is right.
    """

    kind: str
    transform: str
    loss: str
    why: str

    @property
    def task(self) -> str:
        """Section `task` as YAML in one line."""
        extra = "" if self.transform == "none" else f", transform: {self.transform}"
        return f"{{kind: {self.kind}{extra}}}"


def label_guess(connection: duckdb.DuckDBPyConnection, label: Profile) -> TargetGuess:
    """Return what fits a numeric label of the sample."""
    column = ident(label.name)
    found = connection.sql(
        f"select cast({column} as double) as v from {SAMPLE} where {column} is not null"
    ).fetchnumpy()["v"]
    return guess_target(found.tolist(), label.name, label.is_whole)


def task_line(connection: duckdb.DuckDBPyConnection, label: Profile) -> tuple[str, str]:
    """Return section `task` for a label of more than two values as YAML, and the reason."""
    if not label.is_number:
        return "{kind: multiclass}", f"{label.distinct} values"
    found = label_guess(connection, label)
    return found.task, found.why


def loss_lines(connection: duckdb.DuckDBPyConnection, label: Profile) -> list[tuple[str, str]]:
    """Return the line of section `loss` with its reason, if the label asks for one."""
    if not label.is_number or label.distinct <= 2:
        return []
    found = label_guess(connection, label)
    return [(f"loss: {{kind: {found.loss}}}", "see the task")] if found.loss else []


def guess_target(values: Iterable[float], name: str = "", whole: bool = False) -> TargetGuess:
    """Return the task that fits a numeric label of more than two values.

    Args:
        values: of the label, without nulls; a sample is enough.
        name: of the column; a hint for grades, and against counts.
        whole: True if the column holds whole numbers only.

    >>> guess_target([0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 0] * 9, "claims", whole=True)[:3]
    ('regression', 'none', 'poisson')
    >>> guess_target([10.0 ** (i % 9) for i in range(90)], "dose").task
    '{kind: regression, transform: log}'
    >>> guess_target([1, 2, 3, 4, 5] * 20, "rating", whole=True)[:3]
    ('multiclass', 'none', 'ordinal')
    >>> guess_target([1.0, 2.5, 3.5, 2.2] * 20).why
    'numbers with 4 values'
    """
    label = np.asarray(list(values), dtype=np.float64)
    distinct, counts = np.unique(label, return_counts=True)
    few, enough = len(distinct) <= MOST_CLASSES, len(label) >= FEWEST_ROWS
    if whole and few and enough and _are_grades(distinct, name):
        low, high = int(distinct[0]), int(distinct[-1])
        why = f"grades {low} to {high}, in order: a near miss counts less than a far one"
        return TargetGuess("multiclass", "none", "ordinal", why)
    numbered = enough and few and bool((label == np.floor(label)).all())
    named_class = any(word in name.lower() for word in CLASS_WORDS)
    if numbered and not named_class and are_counts(distinct, counts):
        return _counts(label, distinct, counts)
    if whole and few:
        return TargetGuess("multiclass", "none", "", f"{len(distinct)} values")
    if enough and (found := _logarithm(label)):
        return found
    return TargetGuess("regression", "none", "", f"numbers with {len(distinct)} values")


def _are_grades(distinct: np.ndarray, name: str) -> bool:
    """Return True for whole numbers without a gap, in a column named like grades."""
    low, high = GRADES
    unbroken = bool((np.diff(distinct) == 1).all()) and distinct[0] >= 0
    words = name.lower()
    return unbroken and low <= len(distinct) <= high and any(w in words for w in GRADE_WORDS)


def are_counts(distinct: np.ndarray, counts: np.ndarray) -> bool:
    """Return True for whole numbers from 0 whose large values become rare, as counts do.

    Codes of classes are even, or rare anywhere. A count's tail falls from its most frequent value
    on, and the largest is rarer by 5 times; of few values the upper half has fewer rows, too.
    """
    if distinct[0] != 0 or len(distinct) < FEWEST_COUNTS:
        return False
    unbroken = bool((np.diff(distinct[:FEWEST_COUNTS]) == 1).all())
    half = len(counts) // 2
    mode = int(np.argmax(counts))
    falls = bool((np.diff(counts[mode:]) <= 2 * np.sqrt(counts[mode:-1]) + 2).all())
    is_low = len(distinct) > FEW_COUNTS or counts[-half:].sum() < counts[:half].sum()
    rare_tail = 5 * counts[-1] <= counts.max() and is_low
    return unbroken and falls and rare_tail


def _counts(label: np.ndarray, distinct: np.ndarray, counts: np.ndarray) -> TargetGuess:
    zero = counts[0] / len(label)
    why = (
        f"counts from 0 to {int(distinct[-1])} ({zero:.0%} are 0, mean {label.mean():.3g}, larger"
        " ones ever rarer): numbers to add up, not classes; poisson predicts their mean"
    )
    return TargetGuess("regression", "none", "poisson", why)


def _logarithm(label: np.ndarray) -> TargetGuess | None:
    """Return a regression on the logarithm where labels are spread over powers of ten."""
    if label.min() < 0 or not label.any():
        return None
    has_zero, positive = bool((label == 0).any()), label[label > 0]
    low, high = np.quantile(positive, [0.01, 0.99])
    decades = float(np.log10(high / low))
    scale = np.log1p(label) if has_zero else np.log(label)
    skew, of_log = _skewness(label), _skewness(scale)
    is_skewed = skew > SKEWED and abs(of_log) < skew / 2 and decades >= LEAST_DECADES
    if decades < DECADES and not is_skewed:
        return None
    if decades >= DECADES and abs(of_log) > max(1.0, abs(skew)):
        return None  # the logarithm is the more lopsided one
    spread = f"positive numbers over {decades:.1f} powers of ten ({low:.3g} to {high:.3g})"
    zeros = f", {np.mean(label == 0):.0%} are 0" if has_zero else ""
    transform = "log1p" if has_zero else "log"
    why = (
        f"{spread}{zeros}, skewness {skew:.1f}, of the logarithm {of_log:.1f}: learned on the"
        " logarithm, predicted and scored in the label's own unit"
    )
    return TargetGuess("regression", transform, "", why)


def _skewness(values: np.ndarray) -> float:
    """Return the third standardised moment; 0 for a constant."""
    deviation = values - values.mean()
    spread = float(np.sqrt(np.mean(deviation**2)))
    return float(np.mean((deviation / spread) ** 3)) if spread > 0 else 0.0
