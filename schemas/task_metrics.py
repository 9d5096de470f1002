"""Losses and metrics of each task, and those that a declaration adds."""

from __future__ import annotations

METRICS: dict[str, dict[str, bool]] = {  # task -> metric -> greater is better
    "binary": {
        "auroc": True,
        "pr_auc": True,
        "log_loss": False,
        "brier": False,
        "accuracy": True,
        "balanced_accuracy": True,
        "f1": True,
        "mcc": True,
    },
    "multiclass": {
        "macro_f1": True,
        "accuracy": True,
        "balanced_accuracy": True,
        "log_loss": False,
        "mcc": True,
    },
    "regression": {"rmse": False, "mae": False, "r2": True, "mape": False},
    "multilabel": {"macro_auroc": True, "macro_pr_auc": True, "log_loss": False},
    "multitask": {
        "unexplained": False
    },  # and <label>/<metric> of each label, see Declaration.metrics
    "causal_lm": {
        "loss": False,
        "perplexity": False,
        "bits_per_character": False,
        "accuracy": True,
    },
}
DEFAULT_METRIC = {
    "binary": "auroc",
    "multiclass": "macro_f1",
    "regression": "rmse",
    "multilabel": "macro_auroc",
    "multitask": "unexplained",
    "causal_lm": "loss",
}
TASK_LOSSES = {
    "binary": ("bce", "focal"),
    "multiclass": ("cross_entropy", "focal", "ordinal"),
    "regression": ("mse", "mae", "huber", "quantile", "poisson", "tweedie"),
    "multilabel": ("masked_bce",),
    "multitask": ("weighted_sum",),
    "causal_lm": ("cross_entropy",),
}
LOSS_METRICS = {  # loss -> the metric that it trains for, and that picks the best weights
    "quantile": "quantile_loss",
    "poisson": "poisson_deviance",
    "tweedie": "tweedie_deviance",
    "ordinal": "quadratic_kappa",
}
TRANSFORM_METRICS = {  # transform of the label -> the metric on its scale; it picks weights, too
    "log": "log_rmse",
    "log1p": "rmsle",
}
LOG_MEAN_LOSSES = ("poisson", "tweedie")  # the score is the log of the label's mean


def top_k_metric(k: int) -> str:
    """Return the name of the accuracy among the k most probable classes.

    >>> top_k_metric(3)
    'top_3_accuracy'
    """
    return f"top_{k}_accuracy"


def metrics_of(
    task: str,
    loss: str,
    top_k: int | None = None,
    costs: bool = False,
    transform: str = "none",
) -> dict[str, bool]:
    """Return the metrics of a single label → True if greater is better, declared ones last.

    Args:
        task: Kind of the task or label.
        loss: Its loss, with `auto` resolved.
        top_k: Of `evaluate.top_k`.
        costs: True if `evaluate.costs` is declared.
        transform: Of `task.transform`.
    """
    own = {LOSS_METRICS[loss]: loss == "ordinal"} if loss in LOSS_METRICS else {}
    own |= {TRANSFORM_METRICS[transform]: False} if transform in TRANSFORM_METRICS else {}
    most_probable = {top_k_metric(top_k): True} if top_k else {}
    return METRICS[task] | own | most_probable | ({"cost": False} if costs else {})


def default_metric(task: str, loss: str, transform: str = "none") -> str:
    """Return the metric that picks the best weights if none is declared."""
    return LOSS_METRICS.get(loss, TRANSFORM_METRICS.get(transform, DEFAULT_METRIC[task]))
