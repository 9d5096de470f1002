"""Preflight checks of labels and tokens: valid values, and enough of them in train and val.

N rows, L labels.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.config import Declaration
from schemas.errors import PreflightError, first_few
from schemas.records import ArraysRef, CheckResult, RunSpec, SplitArrays, Statistics, TokenStats
from training.data.arrays.shards import load_arrays
from training.data.serving_text.tokenizers import SPECIAL
from training.objectives.targets import Targets, targets_of
from training.preflight.verdict import Check, Figure

LABELS = Check("labels")
TOKENS = Check("tokens")
PREPARE = "prepare the data again with this declaration"
WRONG_WEIGHTS = (
    "weights must be finite, at least 0, and not all 0.",
    "look at the column with role weight",
)
UNKNOWN_WARN = 0.01  # share of val tokens that are unknown in train


def check_labels(
    declaration: Declaration, statistics: Statistics, arrays: ArraysRef
) -> CheckResult:
    """Check that labels are valid classes or finite values, weights have a positive sum and train
    has two distinct labels.
    """
    for side, ref in (("train", arrays.train), ("val", arrays.val)):
        wrong = _wrong_labels(declaration, statistics, ref)
        if wrong:
            return LABELS.failed(f"{side}: {wrong[0]}", wrong[1])
    if statistics.labels:
        return judge_values(targets_of(declaration, statistics), arrays)
    label = load_arrays(arrays.train)["label"]
    if (label == label[0]).all():
        return LABELS.failed(
            f"train: all {len(label)} labels are {label[0]}; there is nothing to learn.",
            "check data.filter, the split and the label's column",
        )
    return LABELS.passed(
        f"Labels of {arrays.train.rows:,} train and {arrays.val.rows:,} val rows are valid."
    )


def _wrong_labels(
    declaration: Declaration, statistics: Statistics, side: SplitArrays
) -> tuple[str, str] | None:
    """Return the fault in a split's labels or weights, and the remedy."""
    arrays = load_arrays(side)
    label, weight = arrays["label"], arrays.get("weight")
    if statistics.labels and label.shape[1:] != (len(statistics.labels),):
        found = f"expected {len(statistics.labels)} labels a row, found an array of shape"
        return f"{found} {list(label.shape)}.", PREPARE
    if _are_wrong(weight):
        return WRONG_WEIGHTS
    if statistics.labels:
        return wrong_values(statistics, label)
    if declaration.task.kind == "regression":
        bad = np.flatnonzero(~np.isfinite(label))
        found = f"{len(bad)} labels are not finite (first rows: {first_few(bad[:5], len(bad))})."
        return (found, "filter those rows, or set data.null_labels: drop") if len(bad) else None
    last = len(statistics.classes) - 1
    bad = np.flatnonzero((label < 0) | (label > last))
    if not len(bad):
        return None
    from_one = label.min() == 1 and label.max() == last + 1
    hint = " They seem to count from 1: off by one." if from_one else ""
    wanted = f"class indices 0 to {last} ({first_few(statistics.classes)})"
    return f"expected {wanted}, {_found(label, bad)}{hint}", PREPARE


def _found(values: np.ndarray, bad: np.ndarray) -> str:
    """Describe the values in the rows `bad`, and the first of these rows."""
    return (
        f"found {first_few(np.unique(values[bad])[:5])} in {len(bad)} rows (first:"
        f" {first_few(bad[:5], len(bad))})."
    )


def _are_wrong(weight: np.ndarray | None) -> bool:
    """Check for weights that are not finite, below 0, or all 0."""
    if weight is None:
        return False
    return not (np.isfinite(weight).all() and weight.min() >= 0 and weight.sum() > 0)


def wrong_values(statistics: Statistics, label: np.ndarray) -> tuple[str, str] | None:
    """Return the fault in the values of labels [N, L] (NaN: unknown) and the remedy, or None."""
    for i, fitted in enumerate(statistics.labels):
        values, last = label[:, i], len(fitted.classes) - 1
        valid, wanted = np.isfinite(values), "finite values"
        if last >= 0:
            valid = (values >= 0) & (values <= last) & (values == np.floor(values))
            wanted = f"class indices 0 to {last} ({first_few(fitted.classes)})"
        bad = np.flatnonzero(~(np.isnan(values) | valid))
        if len(bad):
            found = _found(values, bad)
            return f"label {fitted.name!r}: expected {wanted} or NaN, {found}", PREPARE
    return None


def judge_values(labels: Targets, arrays: ArraysRef) -> CheckResult:
    """Fail if a label has one value only in train; warn if it has one only in val. No mean over
    labels counts the latter.

    Also fail if two labels would have the same output name.
    """
    train, val = (load_arrays(side)["label"] for side in (arrays.train, arrays.val))
    single, single_in_val = _single(labels, train), _single(labels, val)
    known = int((~np.isnan(train)).sum())
    unknown = train.size - known
    figures: dict[str, Figure] = {"labels": len(labels), "known_train_labels": known}
    figures["unknown_train_labels"] = unknown
    names = Counter(name for t in labels for name in (t.prediction_column, *t.probability_columns))
    if twice := [name for name, times in names.items() if times > 1]:
        return LABELS.failed(
            f"two labels would be given out as {first_few(map(repr, twice), len(twice))}.",
            "rename one of the labels with data.derive",
            **figures,
        )
    if single:
        return LABELS.failed(
            f"train: {first_few(map(repr, single), len(single))} has fewer than two different"
            " values; there is nothing to learn.",
            "leave such labels out, or check data.filter and the split",
            **figures,
        )
    if len(single_in_val) == len(labels):
        return LABELS.failed(
            "val: no label has two different values, so no best weights can be chosen.",
            "give validation more rows with split.fractions",
            **figures,
        )
    if single_in_val:
        told, rest = first_few(map(repr, single_in_val), len(single_in_val)), len(labels)
        return LABELS.warned(
            f"val: {told} has fewer than two different values: means over labels count the other"
            f" {rest - len(single_in_val)}.",
            "give validation more rows, or leave such labels out",
            **figures,
        )
    return LABELS.passed(
        f"{len(labels)} labels of {arrays.train.rows:,} train and {arrays.val.rows:,} val rows are"
        f" valid where known; in train {known:,} are, and {unknown:,} are masked.",
        **figures,
    )


def _single(labels: Targets, label: np.ndarray) -> list[str]:
    """Return the names of labels with fewer than two distinct known values."""
    columns = [label[~np.isnan(label[:, i]), i] for i in range(label.shape[1])]
    return [
        t.name
        for t, values in zip(labels, columns, strict=True)
        if not len(values) or (values == values[0]).all()
    ]


def check_vocabulary(run: RunSpec) -> CheckResult:
    """Check that the vocabulary of train and the targets can be trained on.

    Raises:
        PreflightError: the statistics contain no vocabulary.
    """
    if run.statistics.tokens is None:
        raise PreflightError(f"expected statistics of a text column; {PREPARE}")
    return check_tokens(run.statistics.tokens, run.arrays)


def check_tokens(tokens: TokenStats, arrays: ArraysRef) -> CheckResult:
    """Check that train has two distinct tokens, val has few unknown ones, and weights have a
    positive sum.
    """
    if sum(count > 0 for count in tokens.counts) < 2:
        return TOKENS.failed(
            "train holds one token only; there is nothing to learn.",
            "check the text column and tokens.tokenizer",
        )
    for side, ref in (("train", arrays.train), ("val", arrays.val)):
        if _are_wrong(load_arrays(ref).get("weight")):
            return TOKENS.failed(f"{side}: {WRONG_WEIGHTS[0]}", WRONG_WEIGHTS[1])
    unknown, total = unknown_tokens(arrays.val)
    share = unknown / max(total, 1)
    known = (
        f"{tokens.size - SPECIAL:,} tokens; {unknown:,} of {total:,} validation tokens"
        f" ({share:.2%}) are unknown to train"
    )
    if share <= UNKNOWN_WARN:
        return TOKENS.passed(f"{known}.", vocabulary=tokens.size, unknown=unknown)
    return TOKENS.warned(
        f"{known}.",
        "lower tokens.min_count, give more rows, or use tokens.tokenizer: bytes, to which nothing"
        " is unknown",
        vocabulary=tokens.size,
        unknown=unknown,
    )


def unknown_tokens(side: SplitArrays) -> tuple[int, int]:
    """Return the number of unknown tokens in a split, and the number of all its targets."""
    if side.documents is None:
        return 0, 0
    table = pq.read_table(side.documents.path, columns=["unknown", "tokens"])
    return pc.sum(table.column("unknown")).as_py() or 0, pc.sum(table.column("tokens")).as_py() or 0
