"""Metrics over several labels: scikit-learn's on the known rows of each, means over those that are
defined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from tests.training.test_label_losses import CLASSES, LABELS, MIXED, THREE, labels_of, problem
from training.objectives.bootstrap import intervals, paired_difference, resample_counts
from training.objectives.label_metrics import resampled_labels, undefined_note
from training.objectives.metrics import compute, compute_predictions, predict
from training.objectives.targets import Targets, targets_of


def rows_of(
    several: bool, rows: int = 90, seed: int = 0
) -> tuple[Any, Any, np.ndarray, np.ndarray, np.ndarray, Targets]:
    """Declaration, statistics, predictions [N, K], labels [N, L], sample weights [N] and the
    targets.
    """
    kinds = MIXED if several else THREE
    label = labels_of(kinds, rows, seed)
    declaration, statistics = problem(
        {"kind": "multitask", "labels": LABELS} if several else {"kind": "multilabel"}, kinds, label
    )
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, 5 if several else 3)) * 2
    return (
        declaration,
        statistics,
        predict(declaration, statistics, scores),
        label.numpy(),
        rng.uniform(0.1, 2, rows),
        targets_of(declaration, statistics),
    )


@pytest.mark.req("T9")
@pytest.mark.parametrize("weighted", [False, True])
def test_multilabel_metrics_are_scikit_learns_on_the_known_labels(weighted: bool) -> None:
    declaration, _, predictions, label, weight, labels = rows_of(several=False)
    weights = weight if weighted else None
    found = compute_predictions("multilabel", predictions, label, weights, labels)
    known = ~np.isnan(label)
    each = [
        (label[k, i].astype(int), predictions[k, i], weight[k] if weighted else None)
        for i, k in enumerate(known.T)
    ]
    assert found["macro_auroc"] == pytest.approx(
        np.mean([sk.roc_auc_score(y, p, sample_weight=w) for y, p, w in each]), abs=1e-12
    )
    assert found["macro_pr_auc"] == pytest.approx(
        np.mean([sk.average_precision_score(y, p, sample_weight=w) for y, p, w in each]), abs=1e-12
    )
    every = (
        np.concatenate([np.broadcast_to(weight[:, None], label.shape)[known]]) if weighted else None
    )
    assert found["log_loss"] == pytest.approx(
        sk.log_loss(label[known].astype(int), predictions[known], sample_weight=every), abs=1e-12
    )
    assert set(found) == set(declaration.metrics)


@pytest.mark.req("T9")
@pytest.mark.parametrize("weighted", [False, True])
def test_multitask_metrics_are_those_of_each_label_alone_and_unexplained_is_their_weighted_mean(
    weighted: bool,
) -> None:
    declaration, _, predictions, label, weight, labels = rows_of(several=True)
    found = compute_predictions(
        "multitask", predictions, label, weight if weighted else None, labels
    )
    assert set(found) == set(declaration.metrics)
    (a, b, c), w = (~np.isnan(label)).T, weight if weighted else np.ones(len(label))
    assert found["a/auroc"] == pytest.approx(
        sk.roc_auc_score(label[a, 0], predictions[a, 0], sample_weight=w[a]), abs=1e-12
    )
    assert found["b/log_loss"] == pytest.approx(
        sk.log_loss(label[b, 1], predictions[b, 1:4], sample_weight=w[b], labels=[0, 1, 2]),
        abs=1e-12,
    )
    assert found["c/rmse"] == pytest.approx(
        sk.root_mean_squared_error(label[c, 2], predictions[c, 4], sample_weight=w[c]), abs=1e-12
    )

    def left(loss: float, target: np.ndarray, weights: np.ndarray, classes: int) -> float:
        shares = np.bincount(target.astype(int), weights=weights, minlength=classes) / weights.sum()
        constant = np.tile(shares, (len(target), 1))
        return loss / sk.log_loss(
            target, constant, sample_weight=weights, labels=np.arange(classes)
        )

    parts = [
        left(found["a/log_loss"], label[a, 0], w[a], 2),
        left(found["b/log_loss"], label[b, 1], w[b], 3),
        1 - found["c/r2"],
    ]
    assert found["unexplained"] == pytest.approx(np.average(parts, weights=[2, 0.5, 1]), abs=1e-12)


def test_a_perfect_prediction_leaves_nothing_unexplained_and_the_best_constant_all() -> None:
    _, _, predictions, label, _, labels = rows_of(several=True)
    perfect, constant = np.zeros_like(predictions), np.zeros_like(predictions)
    for i, target in enumerate(labels):
        known = ~np.isnan(label[:, i])
        values = label[known, i]
        coded = values[:, None] if target.kind != "multiclass" else np.eye(3)[values.astype(int)]
        perfect[known, target.columns] = coded
        constant[:, target.columns] = coded.mean(axis=0)
    assert compute_predictions("multitask", perfect, label, None, labels)[
        "unexplained"
    ] == pytest.approx(0, abs=1e-12)
    assert compute_predictions("multitask", constant, label, None, labels)[
        "unexplained"
    ] == pytest.approx(1, abs=1e-12)


@pytest.mark.req("T9")
def test_a_label_with_one_class_is_left_out_of_the_mean_and_named() -> None:
    _, _, predictions, label, _, labels = rows_of(several=False)
    label[:, 1] = np.where(np.isnan(label[:, 1]), np.nan, 0.0)
    found = compute_predictions("multilabel", predictions, label, None, labels)
    each = [
        sk.roc_auc_score(label[~np.isnan(label[:, i]), i], predictions[~np.isnan(label[:, i]), i])
        for i in (0, 2)
    ]
    assert found["macro_auroc"] == pytest.approx(np.mean(each), abs=1e-12)
    assert (
        undefined_note("multilabel", predictions, label, None, labels)
        == "macro AUROC is a mean over 2 of 3 labels: b has fewer than two values on these rows."
    )
    label[:, 2] = np.nan
    assert "1 of 3 labels: b, c have fewer" in undefined_note(
        "multilabel", predictions, label, None, labels
    )
    label[:, 0] = np.nan
    assert (
        compute_predictions("multilabel", predictions, label, None, labels)["macro_auroc"] is None
    )
    _, _, predictions, label, _, labels = rows_of(several=True)
    label[:, 2] = np.nan
    partly = compute_predictions("multitask", predictions, label, None, labels)
    assert partly["c/rmse"] is None and partly["unexplained"] is not None


@pytest.mark.req("P8")
@pytest.mark.parametrize("several", [False, True])
def test_a_resample_is_scikit_learn_on_the_rows_repeated_so_often(several: bool) -> None:
    from training.objectives.bootstrap import _MAKERS

    declaration, _, predictions, label, _, labels = rows_of(several, rows=40, seed=4)
    task = declaration.task.kind
    counts = np.stack(list(resample_counts(40, 12, seed=1)))
    found = resampled_labels(task, predictions, label, labels, _MAKERS)(counts.astype(float))
    for i, count in enumerate(counts):
        repeated = np.repeat(np.arange(40), count)
        for name, value in compute_predictions(
            task, predictions[repeated], label[repeated], None, labels
        ).items():
            assert found[name][i] == pytest.approx(
                value if value is not None else np.nan, abs=1e-9, nan_ok=True
            ), name


@pytest.mark.parametrize("several", [False, True])
def test_intervals_hold_the_value_and_a_model_does_not_differ_from_itself(several: bool) -> None:
    declaration, _, predictions, label, weight, labels = rows_of(several)
    found = intervals(declaration, predictions, label, weight=weight, resamples=60, labels=labels)
    assert set(found) == set(declaration.metrics)
    main = found[declaration.metric]
    assert main.low is not None and main.low <= main.value <= main.high
    same = paired_difference(
        declaration,
        declaration.metric,
        predictions,
        predictions,
        label,
        resamples=30,
        labels=labels,
    )
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_the_metric_of_training_is_that_of_the_scores(several: bool = True) -> None:
    declaration, statistics, _, label, weight, labels = rows_of(several)
    scores = np.random.default_rng(9).normal(size=(len(label), 5))
    found = compute(declaration, statistics, scores, label.astype(np.float32), weight)
    expected = compute_predictions(
        "multitask", predict(declaration, statistics, scores), label, weight, labels
    )
    assert [n for n, v in found.items() if v is None] == [
        n for n, v in expected.items() if v is None
    ]
    defined = {name: value for name, value in expected.items() if value is not None}
    assert {name: found[name] for name in defined} == pytest.approx(defined, rel=1e-6)
    assert CLASSES[labels[1].kind] == labels[1].statistics.classes
