"""Check that sections fit together (labels with columns and split, losses with labels) before a
run.
"""

from __future__ import annotations

from schemas.data_config import DataConfig, TaskConfig
from schemas.model_config import LossConfig
from schemas.train_config import TrainConfig


def check_labels(data: DataConfig, task: TaskConfig, split: str) -> None:
    """Check that the columns with role label are those that the task predicts.

    Raises:
        ValueError: what does not fit, and what to declare instead.
    """
    named = list(data.named("label"))
    if not task.has_several and len(named) != 1:
        advice = "; several labels need task.kind multilabel or multitask" if named else ""
        raise ValueError(
            f"data.columns must declare exactly one column with role label, got {named}{advice}"
        )
    if not named:
        raise ValueError(
            "data.columns declares no column with role label; declare each as `name: label`, or"
            " several by a pattern"
        )
    if task.has_several and split.startswith("stratified"):
        raise ValueError(
            f"split.kind {split!r} keeps the shares of one label, and the task has several; use"
            " random, group or time"
        )
    if strangers := [
        n for n in task.labels if (column := data.column(n)) is None or column.role != "label"
    ]:
        raise ValueError(
            f"task.labels names {strangers[0]!r}, which has no role label in data.columns; declare"
            f" `{strangers[0]}: label`, or correct the name"
        )
    if task.kind == "multitask" and (others := [n for n in named if n not in task.labels]):
        raise ValueError(
            f"data.columns gives {others[0]!r} role label, and task.labels does not name it; name"
            " each column there, with its kind"
        )


def check_loss(loss: LossConfig, task: TaskConfig, losses: tuple[str, ...]) -> None:
    """Check that each option of the loss has a label that it applies to.

    Args:
        loss: the declared section.
        task: the declared task.
        losses: kinds of loss that suit the task.

    Raises:
        ValueError: the option, and what it is for.
    """
    if loss.kind != "auto" and loss.kind not in losses:
        advice = (
            "remove it; a regression label has its own in task.labels"
            if task.has_several
            else f"use one of {list(losses)}"
        )
        raise ValueError(f"loss.kind {loss.kind!r} does not fit task {task.kind!r}; {advice}")
    kinds = (
        {label.kind for label in task.labels.values()}
        if task.kind == "multitask"
        else {"binary" if task.kind == "multilabel" else task.kind}
    )
    if loss.class_weights != "none" and not kinds & {"binary", "multiclass"}:
        raise ValueError("loss.class_weights needs a classification task")
    if isinstance(loss.class_weights, dict) and task.has_several:
        raise ValueError(
            "loss.class_weights by class is for a single label; of several labels, use balanced, or"
            " pos_weight in task.labels"
        )
    if loss.label_smoothing and "multiclass" not in kinds:
        raise ValueError("loss.label_smoothing needs a multiclass task")
    declared = [loss.pos_weight, *(label.pos_weight for label in task.labels.values())]
    if loss.pos_weight != "none" and "binary" not in kinds:
        raise ValueError("loss.pos_weight needs a binary label")
    if loss.class_weights != "none" and any(weight not in ("none", None) for weight in declared):
        raise ValueError(
            "loss.class_weights and pos_weight both weigh the positive class; keep one"
        )


def check_training(train: TrainConfig, task: TaskConfig, schedule: str, folds: int) -> None:
    """Check that folds are trained on one machine, and that a refit needs no evaluation.

    Args:
        train: the declared section.
        task: the declared task.
        schedule: kind of the schedule.
        folds: declared number of folds.

    Raises:
        ValueError: what does not fit, and what to declare instead.
    """
    if folds and train.nodes > 1:
        raise ValueError("folds are trained on one machine: set train.nodes to 1, or cv.folds to 0")
    if train.refit == "none":
        return
    if schedule == "plateau":
        raise ValueError(
            f"train.refit {train.refit!r} trains without evaluations, which schedule.kind plateau"
            " follows; choose another schedule, or refit: none"
        )
    if task.kind == "causal_lm":
        raise ValueError("train.refit is not for task causal_lm; use refit: none")
    if train.nodes > 1:
        raise ValueError("a refit is trained on one machine: set train.nodes to 1, or refit: none")
