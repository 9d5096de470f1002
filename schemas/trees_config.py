"""Rules for `model.kind: boosting`, which is fitted in one process without gradients."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.data_config import TaskConfig
from schemas.loss_config import LossConfig
from schemas.section import Section, SectionType, with_defaults
from schemas.train_config import TrainConfig

BASELINES = ("constant", "linear")  # boosting is the model itself
LOSSES = ("auto", "bce", "cross_entropy", "mse", "mae", "masked_bce", "weighted_sum")


def tree_baselines(model: Section, evaluate: SectionType) -> SectionType:
    """Return the section `evaluate` with the baselines that suit boosting, unless some are given.

    They still count as defaults.
    """
    if getattr(model, "kind", "") != "boosting":
        return evaluate
    return with_defaults(evaluate, baselines=BASELINES)


def tree_conflicts(
    model: Section, train: TrainConfig, loss: LossConfig, task: TaskConfig, loss_kind: str
) -> Iterator[str]:
    """List the settings that trees cannot follow; others of a network have no effect on them.

    Args:
        model: the declared section, of any kind.
        train: the declared section.
        loss: the declared section.
        task: the declared section.
        loss_kind: of the loss, with `auto` resolved.
    """
    if getattr(model, "kind", "") != "boosting":
        return
    if train.ranks > 1 or train.nodes > 1:
        yield (
            f"model.kind boosting is fitted in one process, got train.ranks {train.ranks} and"
            f" train.nodes {train.nodes}; leave both out (train.threads sets its cores)"
        )
    if train.parallel == "fsdp":
        yield (
            "train.parallel fsdp shards a network over processes, and model.kind boosting is fitted"
            " in one; leave it out"
        )
    if loss.label_smoothing:
        yield (
            f"model.kind boosting has no loss.label_smoothing, got {loss.label_smoothing:g}; leave"
            " it out"
        )
    labels = task.labels.items()
    kinds = {"loss.kind": loss_kind} | {
        f"task.labels.{name}.loss": label.loss for name, label in labels
    }
    for where, kind in kinds.items():
        if kind not in LOSSES:
            yield (
                f"{where} {kind!r}: model.kind boosting lowers log loss for classes, and mse or mae"
                " for numbers; use one of these"
            )
