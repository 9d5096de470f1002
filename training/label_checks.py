"""Preflight's look at several labels: valid where known, two values of each in train, and which of them validation cannot judge.

N rows, L labels.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from schemas.errors import first_few
from schemas.records import ArraysRef, CheckResult, Statistics
from training.data.shards import load_arrays
from training.targets import Targets


def wrong_values(statistics: Statistics, label: np.ndarray) -> tuple[str, str] | None:
    """What is wrong with the values of labels [N, L] (NaN: unknown), and the remedy; None where nothing is."""
    for i, fitted in enumerate(statistics.labels):
        values, last = label[:, i], len(fitted.classes) - 1
        valid = np.isnan(values) | (np.isfinite(values) if last < 0 else (values >= 0) & (values <= last) & (values == np.floor(values)))
        bad = np.flatnonzero(~valid)
        if len(bad):
            wanted = "finite values" if last < 0 else f"class indices 0 to {last} ({first_few(fitted.classes)})"
            summary = f"label {fitted.name!r}: expected {wanted} or NaN, found {first_few(np.unique(values[bad])[:5])} in {len(bad)} rows (first: {first_few(bad[:5], len(bad))})."
            return summary, "prepare the data again with this declaration"
    return None


def judge_values(labels: Targets, arrays: ArraysRef) -> CheckResult:
    """Fail where a label has one value only in train; warn of those with one only in validation, which no mean over labels counts.

    Fail, too, where two labels would be given out under one name.
    """
    label = {side: load_arrays(ref)["label"] for side, ref in (("train", arrays.train), ("val", arrays.val))}
    single = {side: _single(labels, values) for side, values in label.items()}
    known = int((~np.isnan(label["train"])).sum())
    figures = {"labels": len(labels), "known_train_labels": known, "unknown_train_labels": label["train"].size - known}
    names = Counter(name for t in labels for name in (t.prediction_column, *t.probability_columns))
    if twice := [name for name, times in names.items() if times > 1]:
        summary = f"two labels would be given out as {first_few(map(repr, twice), len(twice))}."
        return CheckResult(name="labels", verdict="fail", summary=summary, remedy="rename one of the labels with data.derive", figures=figures)
    if single["train"]:
        summary = f"train: {first_few(map(repr, single['train']), len(single['train']))} has fewer than two different values; there is nothing to learn."
        return CheckResult(name="labels", verdict="fail", summary=summary, remedy="leave such labels out, or check data.filter and the split", figures=figures)
    if len(single["val"]) == len(labels):
        summary = "val: no label has two different values, so no best weights can be chosen."
        return CheckResult(name="labels", verdict="fail", summary=summary, remedy="give validation more rows with split.fractions", figures=figures)
    if single["val"]:
        rest = len(labels) - len(single["val"])
        summary = (
            f"val: {first_few(map(repr, single['val']), len(single['val']))} has fewer than two different values: means over labels count the other {rest}."
        )
        return CheckResult(name="labels", verdict="warn", summary=summary, remedy="give validation more rows, or leave such labels out", figures=figures)
    summary = f"{len(labels)} labels of {arrays.train.rows:,} train and {arrays.val.rows:,} val rows are valid where known; in train {known:,} are, and {figures['unknown_train_labels']:,} are masked."
    return CheckResult(name="labels", verdict="pass", summary=summary, figures=figures)


def _single(labels: Targets, label: np.ndarray) -> list[str]:
    """Names of the labels with fewer than two different known values."""
    columns = [label[~np.isnan(label[:, i]), i] for i in range(label.shape[1])]
    return [t.name for t, values in zip(labels, columns, strict=True) if not len(values) or (values == values[0]).all()]
