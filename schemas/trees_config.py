"""Rules for `model.kind: boosting`, which is fitted in one process without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.model_config import BoostingModel
from schemas.token_config import with_defaults

if TYPE_CHECKING:
    from schemas.config import Declaration

BASELINES = ("constant", "linear")  # boosting is the model itself
LOSSES = ("auto", "bce", "cross_entropy", "mse", "mae", "masked_bce", "weighted_sum")


def fill_tree_defaults(declaration: Declaration) -> None:
    """Set the baselines that suit boosting where none is given; they still count as defaults."""
    if isinstance(declaration.model, BoostingModel):
        object.__setattr__(
            declaration, "evaluate", with_defaults(declaration.evaluate, baselines=BASELINES)
        )


def tree_conflicts(declaration: Declaration) -> Iterator[str]:
    """List the settings that trees cannot follow; others of a network have no effect on them."""
    if not isinstance(declaration.model, BoostingModel):
        return
    train, loss = declaration.train, declaration.loss
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
    own = [(f"task.labels.{name}.loss", label.loss) for name, label in declaration.task.labels.items()]
    for where, kind in [("loss.kind", declaration.loss_kind), *own]:
        if kind not in LOSSES:
            yield (
                f"{where} {kind!r}: model.kind boosting lowers log loss for classes, and mse or mae"
                " for numbers; use one of these"
            )
