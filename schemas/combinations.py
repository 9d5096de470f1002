"""Check that sections fit together (labels with columns and split, losses with labels) before a
run.
"""

from __future__ import annotations

from schemas.cv_config import CvConfig, fold_problem
from schemas.data_config import DataConfig, TaskConfig
from schemas.ensemble_config import EnsembleConfig, member_folds
from schemas.model_config import LossConfig, Model
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


def launch_problem(
    data: DataConfig,
    task: TaskConfig,
    cv: CvConfig,
    train: TrainConfig,
    ensemble: EnsembleConfig | None,
) -> str | None:
    """Return what the engine or several machines cannot do of a declaration; None if they can."""
    if cv.folds and train.nodes > 1:
        return "folds are trained on one machine: set train.nodes to 1, or cv.folds to 0"
    if data.engine != "spark":
        return None
    unable = {
        f"cv.folds: {cv.folds}": cv.folds > 0,
        "task.kind: causal_lm": task.kind == "causal_lm",
        "ensemble.over: folds": ensemble is not None and ensemble.over == "folds",
    }
    what = next((what for what, applies in unable.items() if applies), "")
    advice = "use data.engine: duckdb (see docs/data-sources.md)"
    return f"data.engine: spark cannot do {what}; {advice}" if what else None


def member_problem(
    model: Model,
    split: str,
    data: DataConfig,
    task: TaskConfig,
    cv: CvConfig,
    train: TrainConfig,
    ensemble: EnsembleConfig | None,
) -> str | None:
    """Return why a declaration cannot be trained as several members; None if it can, or has one."""
    if ensemble is None and model.kind != "auto":
        return None
    what = "ensemble" if ensemble is not None else "model.kind: auto"
    if ensemble is not None and model.kind == "auto":
        return "model.kind: auto makes its own ensemble; remove the section ensemble"
    if task.kind == "causal_lm":
        return f"{what} is for tables; a language model is one network: name its model.kind"
    if cv.folds:
        return f"{what} makes the final model; set cv.folds to 0, or cross-validate one network"
    if train.nodes > 1:
        return f"the members of {what} are trained on one machine: set train.nodes to 1"
    if ensemble is None or ensemble.over == "seeds":
        return None
    is_grouped = bool(data.named("group")) or data.group_by is not None
    folds = member_folds(ensemble, cv, split, is_grouped)
    found = fold_problem(folds, split, is_grouped, bool(data.named("time")), not task.has_several)
    return found and f"ensemble.over: folds: {found}"
