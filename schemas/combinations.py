"""Check that sections fit together (labels with columns and split, losses with labels, optimizers
with schedules) before a run.
"""

from __future__ import annotations

from schemas.cv_config import CvConfig, fold_problem
from schemas.data_config import DataConfig, TaskConfig
from schemas.ensemble_config import EnsembleConfig, member_folds
from schemas.label_config import CostMatrix, ErrorCosts, value_text
from schemas.loss_config import LossConfig
from schemas.model_config import Model
from schemas.optimizer_config import Optimizer, SgdConfig
from schemas.register_config import RegisterConfig
from schemas.schedule_config import OneCycleSchedule, Schedule
from schemas.split_config import GROUPED, Split, TimeSplit
from schemas.task_metrics import LOG_MEAN_LOSSES
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
    check_series(data, task, split)
    if task.transform != "none" and data.engine == "spark":
        raise ValueError(
            "data.engine: spark cannot do task.transform; use data.engine: duckdb, or derive the"
            " logarithm as a label of its own with data.derive"
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


def check_series(data: DataConfig, task: TaskConfig, split: str) -> None:
    """Check that windows, and a label ahead, have a time, whole series and a label that is known.

    Raises:
        ValueError: what does not fit, and what to declare instead.
    """
    ahead = data.ahead
    what = f"data.windows.{next(iter(data.windows))}" if data.windows else "ahead"
    if not data.windows and ahead is None:
        if data.series is not None:
            raise ValueError("data.series is for data.windows or a label with ahead; remove it")
        return
    if data.engine == "spark":
        raise ValueError(f"data.engine: spark cannot do {what}; use data.engine: duckdb")
    if not data.named("time"):
        raise ValueError(f"{what} needs the order of rows: declare a column of role time")
    if ahead is not None and (task.has_several or data.named("label_time")):
        raise ValueError(
            "ahead is for one label, and says itself when it is known; declare neither several"
            " labels nor a column of role label_time"
        )
    if split in ("random", "stratified"):
        raise ValueError(
            f"split.kind {split!r} puts rows of one series on several sides, so that {what} of a"
            " train row would hold test rows; use time, group, group_time, or a predefined split"
        )
    for name, window in data.windows.items():
        where = f"data.windows.{name}"
        if name in data.columns:
            raise ValueError(f"{where}: data.columns has that name already; name the window anew")
        labels = [c for c in window.columns if (d := data.column(c)) and d.role == "label"]
        if window.season is not None and not labels:
            raise ValueError(f"{where}: season is for a window that holds the label; remove it")
        window.seasonal_step(ahead)
        if labels and ahead is None and (data.named("label_time") or window.lag < 1):
            raise ValueError(
                f"{where}: it holds the label {labels[0]!r}, which is not known at the moment of"
                " the row; set lag: 1 or more, or where it is known later (role label_time) leave"
                " it out"
            )


def check_rolling(split: Split, cv: CvConfig, register: RegisterConfig) -> None:
    """Check that what depends on `split.roll` fits it.

    Raises:
        ValueError: folds are frozen while the split rolls on, or a setting has no meaning.
    """
    rolls = isinstance(split, TimeSplit) and split.rolls
    if rolls and cv.folds:
        raise ValueError(
            "cv.folds: the folds of a table are frozen in the ledger, while split.roll moves their"
            " rows on; cross-validate with split.cuts, or set cv.folds to 0"
        )
    if register.fresh_rows is not None and not rolls:
        raise ValueError(
            "register.fresh_rows counts rows that came since the last comparison, which only"
            " split.roll keeps apart; declare split.roll, or remove it"
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
    if loss.label_smoothing and loss.kind in ("focal", "ordinal"):
        raise ValueError(
            f"loss.label_smoothing is for cross_entropy, not {loss.kind}; remove one of them"
        )
    _check_own_options(loss, task)
    if task.transform != "none" and loss.kind in LOG_MEAN_LOSSES:
        raise ValueError(
            f"loss {loss.kind} predicts the logarithm of the label's mean already; remove"
            f" task.transform (and keep loss {loss.kind}), or use loss.kind: mse with it"
        )
    declared = [loss.pos_weight, *(label.pos_weight for label in task.labels.values())]
    if loss.pos_weight != "none" and "binary" not in kinds:
        raise ValueError("loss.pos_weight needs a binary label")
    if loss.class_weights != "none" and any(weight not in ("none", None) for weight in declared):
        raise ValueError(
            "loss.class_weights and pos_weight both weigh the positive class; keep one"
        )


def _check_own_options(loss: LossConfig, task: TaskConfig) -> None:
    """Check that options of one kind of loss are given with that kind, of the task or a label."""
    kinds = {loss.kind, *(label.loss for label in task.labels.values())}
    for kind, option, given in (
        ("quantile", "quantile", loss.quantile is not None),
        ("tweedie", "power", loss.power != LossConfig().power),
        ("focal", "gamma", loss.gamma != LossConfig().gamma),
        ("ordinal", "order", bool(loss.order)),
    ):
        if given and kind not in kinds:
            raise ValueError(
                f"loss.{option} belongs to loss {kind}, and no label has it; set loss.kind: {kind},"
                f" or remove loss.{option}"
            )
    if "quantile" in kinds and loss.quantile is None:
        raise ValueError(
            "loss quantile has to say which one: set loss.quantile, e.g. 0.9 for a value that 9 of"
            " 10 rows stay below"
        )
    texts = [value_text(value) for value in loss.order]
    if twice := next((text for text in texts if texts.count(text) > 1), None):
        raise ValueError(f"loss.order names class {twice!r} twice; name each class once")


def check_declared_metrics(
    top_k: int | None, costs: ErrorCosts | CostMatrix | None, task: TaskConfig
) -> None:
    """Check that evaluate.top_k and evaluate.costs suit the task.

    Raises:
        ValueError: the option, and what it is for.
    """
    if top_k is not None and task.kind != "multiclass":
        raise ValueError(f"evaluate.top_k needs a multiclass task, this one is {task.kind}")
    if costs is None:
        return
    if task.kind not in ("binary", "multiclass"):
        raise ValueError(
            f"evaluate.costs needs one label with classes, and the task is {task.kind}; remove it"
        )
    if isinstance(costs, ErrorCosts):
        if task.kind != "binary":
            raise ValueError(
                "evaluate.costs: false_negative and false_positive are for a binary task; of more"
                " classes give a matrix: one list of costs for each true class"
            )
        return
    if any(len(row) != len(costs) for row in costs) or len(costs) < 2:
        raise ValueError(
            "evaluate.costs: expected a square matrix, one list for each true class with a cost for"
            f" each predicted class; got rows of {[len(row) for row in costs]} costs"
        )
    if wrong := [i for i, row in enumerate(costs) if row[i]]:
        raise ValueError(
            f"evaluate.costs: a right prediction costs nothing, but row {wrong[0]} has"
            f" {costs[wrong[0]][wrong[0]]:g} on the diagonal; set it to 0"
        )
    if task.kind == "binary" and len(costs) != 2:
        raise ValueError(
            f"evaluate.costs: a binary task has 2 classes, the matrix has {len(costs)}; use"
            " {false_negative: 5, false_positive: 1}"
        )


def check_momentum(optimizer: Optimizer, schedule: Schedule) -> None:
    """Check that a schedule that cycles momentum has an optimizer with momentum.

    Raises:
        ValueError: SGD has none.
    """
    if (
        isinstance(schedule, OneCycleSchedule)
        and schedule.cycle_momentum
        and isinstance(optimizer, SgdConfig)
        and not optimizer.momentum
    ):
        raise ValueError(
            "schedule one_cycle cycles momentum, but optimizer.momentum is 0; set"
            " schedule.cycle_momentum: false, or give the optimizer momentum"
        )


def check_refit(
    train: TrainConfig,
    task: TaskConfig,
    schedule: str,
    model: Model,
    ensemble: EnsembleConfig | None,
    calibrate: str,
) -> None:
    """Check that a refit needs no validation rows.

    Args:
        train: the declared section.
        task: the declared task.
        schedule: kind of the schedule.
        model: the declared section.
        ensemble: the declared section.
        calibrate: `evaluate.calibrate`.

    Raises:
        ValueError: what does not fit, and what to declare instead.
    """
    if train.refit == "none":
        return
    if schedule == "plateau":
        raise ValueError(
            f"train.refit {train.refit!r} trains without evaluations, which schedule.kind plateau"
            " follows; choose another schedule, or refit: none"
        )
    if task.kind == "causal_lm":
        raise ValueError("train.refit is not for task causal_lm; use refit: none")
    if model.kind in ("auto", "boosting"):
        raise ValueError(
            f"train.refit {train.refit!r} trains without validation rows, by which model.kind"
            f" {model.kind} is stopped or combined; use refit: none"
        )
    if ensemble is not None:
        raise ValueError(
            f"train.refit {train.refit!r} trains one network again, and section ensemble declares"
            f" {ensemble.members}; remove the section, or use refit: none"
        )
    if calibrate != "none":
        raise ValueError(
            f"train.refit {train.refit!r} leaves no validation rows to fit evaluate.calibrate:"
            f" {calibrate} on; remove evaluate.calibrate, or use refit: none"
        )
    if train.nodes > 1:
        raise ValueError("a refit is trained on one machine: set train.nodes to 1, or refit: none")


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
    if data.windows and not (is_grouped and split in GROUPED):
        return (
            "ensemble.over: folds deals train and validation rows out again, so that windows of a"
            " member would hold rows that it stops early on; use over: seeds"
        )
    folds = member_folds(ensemble, cv, split, is_grouped)
    found = fold_problem(folds, split, is_grouped, bool(data.named("time")), not task.has_several)
    return found and f"ensemble.over: folds: {found}"
