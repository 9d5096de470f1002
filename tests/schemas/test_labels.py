"""Declarations of several labels: which are valid, and which are refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.load import declare

LABELS = {"a": "label", "b": "label", "c": "label", "*": "feature"}
KINDS = {"a": "binary", "b": {"kind": "multiclass", "weight": 0.5}, "c": "regression"}


def declared(task: Any, columns: dict[str, Any] | None = None, **sections: Any) -> Declaration:
    return declare(
        {
            "name": "t",
            "data": {"uri": "x.csv", "columns": columns or LABELS},
            "task": task,
            "split": {"kind": "random"},
            **sections,
        }
    )


@pytest.mark.req("M3")
def test_multilabel_takes_labels_by_pattern_and_multitask_names_each_with_its_kind() -> None:
    several = declared({"kind": "multilabel"}, {"y*": "label", "*": "feature"})
    assert (several.metric, several.greater_is_better, several.task.label("y3").kind) == (
        "macro_auroc",
        True,
        "binary",
    )
    tasks = declared({"kind": "multitask", "labels": KINDS})
    assert (tasks.metric, tasks.greater_is_better) == ("unexplained", False)
    assert (
        {"a/auroc", "b/macro_f1", "c/rmse"} <= tasks.metrics.keys()
        and tasks.metrics["a/auroc"]
        and not tasks.metrics["c/rmse"]
    )
    assert (tasks.task.labels["b"].weight, tasks.task.labels["c"].kind) == (0.5, "regression")
    assert (
        declared(
            {"kind": "multitask", "labels": KINDS}, train={"metric": "c/rmse"}
        ).greater_is_better
        is False
    )
    assert declare(tasks.model_dump(mode="json", by_alias=True)) == tasks


@pytest.mark.req("M3")
def test_class_weights_by_class_are_read_as_text_whatever_their_type() -> None:
    found = declare(
        {
            "name": "t",
            "data": {"uri": "x.csv", "columns": {"y": "label", "*": "feature"}},
            "task": {"kind": "multiclass"},
            "split": {"kind": "random"},
            "loss": {"class_weights": {2.0: 2, True: 3, "x": 4}},
        }
    )
    assert found.loss.class_weights == {"2": 2.0, "true": 3.0, "x": 4.0}
    assert declare(found.model_dump(mode="json", by_alias=True)) == found


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"task": {"kind": "binary"}},
        (
            r"exactly one column with role label, got \['a', 'b', 'c'\]; several labels need"
            r" task.kind multilabel"
        ),
    ),
    (
        {"task": {"kind": "multilabel"}, "split": {"kind": "stratified"}},
        "keeps the shares of one label, and the task has several; use random, group or time",
    ),
    (
        {"task": {"kind": "multilabel", "labels": {"a": "regression"}}},
        "'a' is regression; use kind: multitask",
    ),
    (
        {"task": {"kind": "multilabel", "labels": {"d": {"weight": 2}}}},
        "task.labels names 'd', which has no role label",
    ),
    ({"task": {"kind": "multitask"}}, "names at least two labels"),
    (
        {"task": {"kind": "multitask", "labels": {"a": "binary", "b": "binary"}}},
        "'c' role label, and task.labels does not name it",
    ),
    (
        {"task": {"kind": "multitask", "labels": KINDS | {"no/slash": "binary"}}},
        "'no/slash' names metrics",
    ),
    (
        {"task": {"kind": "binary", "labels": {"a": "binary"}}},
        "labels is for tasks of several labels, not binary",
    ),
    (
        {"task": {"kind": "multilabel", "positive": 1}},
        "positive is for binary tasks only; of several labels, name it in task.labels",
    ),
    (
        {
            "task": {
                "kind": "multitask",
                "labels": KINDS | {"c": {"kind": "regression", "positive": 1}},
            }
        },
        "positive is for binary labels, this one is regression",
    ),
    (
        {"task": {"kind": "multitask", "labels": KINDS | {"a": {"loss": "huber"}}}},
        "loss is for regression labels, this one is binary",
    ),
    (
        {
            "task": {
                "kind": "multitask",
                "labels": KINDS | {"c": {"kind": "regression", "pos_weight": 2}},
            }
        },
        "pos_weight is for binary labels",
    ),
    ({"task": {"kind": "multitask", "labels": KINDS | {"a": {"weight": 0}}}}, "weight"),
    (
        {"task": {"kind": "multilabel"}, "loss": {"kind": "bce"}},
        "loss.kind 'bce' does not fit task 'multilabel'",
    ),
    (
        {"task": {"kind": "multilabel"}, "loss": {"label_smoothing": 0.1}},
        "label_smoothing needs a multiclass task",
    ),
    (
        {"task": {"kind": "multilabel"}, "loss": {"class_weights": {"1": 2}}},
        "by class is for a single label",
    ),
    (
        {"task": {"kind": "multilabel"}, "loss": {"class_weights": "balanced", "pos_weight": 2}},
        "both weigh the positive class; keep one",
    ),
    (
        {
            "task": {"kind": "multilabel", "labels": {"a": {"pos_weight": 2}}},
            "loss": {"class_weights": "balanced"},
        },
        "both weigh the positive class",
    ),
    ({"task": {"kind": "multilabel"}, "loss": {"pos_weight": 0}}, "pos_weight"),
    (
        {"task": {"kind": "multilabel"}, "loss": {"class_weights": {"1": 2, 1: 3}}},
        "two keys that read alike",
    ),
    (
        {"task": {"kind": "causal_lm", "ignore": ["x"]}},
        "ignore is for labels, and a language model has none",
    ),
    (
        {"task": {"kind": "multilabel"}, "train": {"metric": "auroc"}},
        "unknown metric 'auroc' for task 'multilabel'",
    ),
    (
        {
            "task": {"kind": "multitask", "labels": KINDS},
            "register": {"thresholds": {"a/rmse": {"max": 1}}},
        },
        "unknown metric 'a/rmse'",
    ),
    (
        {"task": {"kind": "multilabel"}, "data": {"uri": "x.csv", "columns": {"*": "feature"}}},
        "declares no column with role label",
    ),
    (
        {
            "task": {"kind": "regression"},
            "data": {"uri": "x.csv", "columns": {"a": "label", "*": "feature"}},
            "loss": {"pos_weight": 2},
        },
        "pos_weight needs a binary",
    ),
]


@pytest.mark.req("P1")
@pytest.mark.parametrize(("tree", "message"), REFUSED, ids=[m[:40] for _, m in REFUSED])
def test_what_cannot_work_is_refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(
            {
                "name": "t",
                "data": {"uri": "x.csv", "columns": LABELS},
                "split": {"kind": "random"},
                **tree,
            }
        )
