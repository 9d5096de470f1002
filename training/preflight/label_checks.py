"""Preflight's look at labels: valid, two values of each in train, and, of several, which of them
validation cannot judge.

N rows, L labels.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from schemas.config import Declaration
from schemas.errors import first_few
from schemas.records import ArraysRef, CheckResult, SplitArrays, Statistics
from training.data.arrays.shards import load_arrays
from training.objectives.targets import Targets, targets_of
from training.preflight.verdict import failed, passed


def check_labels(
    declaration: Declaration, statistics: Statistics, arrays: ArraysRef
) -> CheckResult:
    """Labels of train and val are class indices of the declared classes, or finite values; weights
    have a positive sum; train holds two labels.
    """
    for side, ref in (("train", arrays.train), ("val", arrays.val)):
        wrong = _wrong_labels(declaration, statistics, ref)
        if wrong:
            return failed("labels", f"{side}: {wrong[0]}", wrong[1])
    if statistics.labels:
        return judge_values(targets_of(declaration, statistics), arrays)
    label = load_arrays(arrays.train)["label"]
    if (label == label[0]).all():
        return failed(
            "labels",
            f"train: all {len(label)} labels are {label[0]}; there is nothing to learn.",
            "check data.filter, the split and the label's column",
        )
    return passed(
        "labels",
        f"Labels of {arrays.train.rows:,} train and {arrays.val.rows:,} val rows are valid.",
    )


def _wrong_labels(
    declaration: Declaration, statistics: Statistics, side: SplitArrays
) -> tuple[str, str] | None:
    """What is wrong with a side's labels or weights, and the remedy."""
    arrays = load_arrays(side)
    label, weight = arrays["label"], arrays.get("weight")
    if statistics.labels and label.shape[1:] != (len(statistics.labels),):
        return (
            (
                f"expected {len(statistics.labels)} labels a row, found an array of shape"
                f" {list(label.shape)}."
            ),
            "prepare the data again with this declaration",
        )
    if weight is not None and not (
        np.isfinite(weight).all() and weight.min() >= 0 and weight.sum() > 0
    ):
        return (
            "weights must be finite, at least 0, and not all 0.",
            "look at the column with role weight",
        )
    if statistics.labels:
        return wrong_values(statistics, label)
    if declaration.task.kind == "regression":
        bad = np.flatnonzero(~np.isfinite(label))
        return (
            (
                f"{len(bad)} labels are not finite (first rows: {first_few(bad[:5], len(bad))}).",
                "filter those rows, or set data.null_labels: drop",
            )
            if len(bad)
            else None
        )
    last = len(statistics.classes) - 1
    bad = np.flatnonzero((label < 0) | (label > last))
    if not len(bad):
        return None
    hint = (
        " They seem to count from 1: off by one."
        if label.min() == 1 and label.max() == last + 1
        else ""
    )
    summary = (
        f"expected class indices 0 to {last} ({first_few(statistics.classes)}), found"
        f" {first_few(np.unique(label[bad])[:5])} in {len(bad)} rows (first:"
        f" {first_few(bad[:5], len(bad))}).{hint}"
    )
    return summary, "prepare the data again with this declaration"


def wrong_values(statistics: Statistics, label: np.ndarray) -> tuple[str, str] | None:
    """What is wrong with the values of labels [N, L] (NaN: unknown), and the remedy; None where
    nothing is.
    """
    for i, fitted in enumerate(statistics.labels):
        values, last = label[:, i], len(fitted.classes) - 1
        valid = np.isnan(values) | (
            np.isfinite(values)
            if last < 0
            else (values >= 0) & (values <= last) & (values == np.floor(values))
        )
        bad = np.flatnonzero(~valid)
        if len(bad):
            wanted = (
                "finite values"
                if last < 0
                else f"class indices 0 to {last} ({first_few(fitted.classes)})"
            )
            summary = (
                f"label {fitted.name!r}: expected {wanted} or NaN, found"
                f" {first_few(np.unique(values[bad])[:5])} in {len(bad)} rows (first:"
                f" {first_few(bad[:5], len(bad))})."
            )
            return summary, "prepare the data again with this declaration"
    return None


def judge_values(labels: Targets, arrays: ArraysRef) -> CheckResult:
    """Fail where a label has one value only in train; warn of those with one only in validation,
    which no mean over labels counts.

    Fail, too, where two labels would be given out under one name.
    """
    label = {
        side: load_arrays(ref)["label"]
        for side, ref in (("train", arrays.train), ("val", arrays.val))
    }
    single = {side: _single(labels, values) for side, values in label.items()}
    known = int((~np.isnan(label["train"])).sum())
    figures = {
        "labels": len(labels),
        "known_train_labels": known,
        "unknown_train_labels": label["train"].size - known,
    }
    names = Counter(name for t in labels for name in (t.prediction_column, *t.probability_columns))
    if twice := [name for name, times in names.items() if times > 1]:
        summary = f"two labels would be given out as {first_few(map(repr, twice), len(twice))}."
        return CheckResult(
            name="labels",
            verdict="fail",
            summary=summary,
            remedy="rename one of the labels with data.derive",
            figures=figures,
        )
    if single["train"]:
        summary = (
            f"train: {first_few(map(repr, single['train']), len(single['train']))} has fewer than"
            " two different values; there is nothing to learn."
        )
        return CheckResult(
            name="labels",
            verdict="fail",
            summary=summary,
            remedy="leave such labels out, or check data.filter and the split",
            figures=figures,
        )
    if len(single["val"]) == len(labels):
        summary = "val: no label has two different values, so no best weights can be chosen."
        return CheckResult(
            name="labels",
            verdict="fail",
            summary=summary,
            remedy="give validation more rows with split.fractions",
            figures=figures,
        )
    if single["val"]:
        rest = len(labels) - len(single["val"])
        summary = (
            f"val: {first_few(map(repr, single['val']), len(single['val']))} has fewer than two"
            f" different values: means over labels count the other {rest}."
        )
        return CheckResult(
            name="labels",
            verdict="warn",
            summary=summary,
            remedy="give validation more rows, or leave such labels out",
            figures=figures,
        )
    summary = (
        f"{len(labels)} labels of {arrays.train.rows:,} train and {arrays.val.rows:,} val rows are"
        f" valid where known; in train {known:,} are, and {figures['unknown_train_labels']:,} are"
        " masked."
    )
    return CheckResult(name="labels", verdict="pass", summary=summary, figures=figures)


def _single(labels: Targets, label: np.ndarray) -> list[str]:
    """Names of the labels with fewer than two different known values."""
    columns = [label[~np.isnan(label[:, i]), i] for i in range(label.shape[1])]
    return [
        t.name
        for t, values in zip(labels, columns, strict=True)
        if not len(values) or (values == values[0]).all()
    ]
