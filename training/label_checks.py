"""Preflight's look at several labels: valid where known, two values of each in train, and which of them validation cannot judge.

N rows, L labels.
"""

from __future__ import annotations

import numpy as np

from schemas.errors import first_few
from schemas.records import ArraysRef, CheckResult, Statistics
from training.data.shards import load_arrays


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


def judge_values(statistics: Statistics, arrays: ArraysRef) -> CheckResult:
    """Fail where a label has one value only in train; warn of those with one only in validation, which no mean over labels counts."""
    single = {side: _single(statistics, load_arrays(ref)["label"]) for side, ref in (("train", arrays.train), ("val", arrays.val))}
    known = sum(label.known for label in statistics.labels)
    figures = {"labels": len(statistics.labels), "known_train_labels": known, "unknown_train_labels": statistics.rows * len(statistics.labels) - known}
    if single["train"]:
        summary = f"train: {first_few(map(repr, single['train']))} has fewer than two different values; there is nothing to learn."
        return CheckResult(name="labels", verdict="fail", summary=summary, remedy="leave such labels out, or check data.filter and the split", figures=figures)
    if len(single["val"]) == len(statistics.labels):
        summary = "val: no label has two different values, so no best weights can be chosen."
        return CheckResult(name="labels", verdict="fail", summary=summary, remedy="give validation more rows with split.fractions", figures=figures)
    if single["val"]:
        rest = len(statistics.labels) - len(single["val"])
        summary = (
            f"val: {first_few(map(repr, single['val']), len(single['val']))} has fewer than two different values: means over labels count the other {rest}."
        )
        return CheckResult(name="labels", verdict="warn", summary=summary, remedy="give validation more rows, or leave such labels out", figures=figures)
    summary = f"{len(statistics.labels)} labels of {arrays.train.rows:,} train and {arrays.val.rows:,} val rows are valid where known; in train {known:,} are, and {figures['unknown_train_labels']:,} are masked."
    return CheckResult(name="labels", verdict="pass", summary=summary, figures=figures)


def _single(statistics: Statistics, label: np.ndarray) -> list[str]:
    """Names of the labels with fewer than two different known values."""
    columns = [label[~np.isnan(label[:, i]), i] for i in range(label.shape[1])]
    return [fitted.name for fitted, values in zip(statistics.labels, columns, strict=True) if not len(values) or (values == values[0]).all()]
