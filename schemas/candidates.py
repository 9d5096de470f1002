"""The model of a declaration without one, and rules for the candidates of `model.kind: auto`."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.data_config import DataConfig, TaskConfig
from schemas.loss_config import LossConfig
from schemas.model_config import AutoModel, Candidate, MlpModel, Model, RealMlpModel
from schemas.optimizer_config import AdamWConfig, Optimizer
from schemas.recipes import RECIPES
from schemas.schedule_config import Schedule, WarmupCosineSchedule
from schemas.section import with_defaults
from schemas.train_config import TrainConfig
from schemas.trees_config import tree_conflicts

# of section `train`, in each recipe
TRAINED_BY = ("patience", "patience_factor", "clip", "clip_at", "eval_every")


def default_model(data: DataConfig, train: TrainConfig, needs_one: bool, given: set[str]) -> Model:
    """Return the model of a declaration without one; docs/decisions/0052 says why.

    Args:
        data: the declared section. Candidates of `auto` would flatten tensors.
        train: the declared section.
        needs_one: Folds, an ensemble or a search need one network.
        given: Names of the sections that the file gives. One that tunes a network keeps it.
    """
    has_tensors = any(column.kind == "tensor" for column in data.columns.values())
    if has_tensors or {"optimizer", "schedule"} & given or set(TRAINED_BY) & train.model_fields_set:
        return MlpModel()
    on_several = train.nodes > 1 or train.ranks > 1
    return RealMlpModel() if needs_one or on_several or train.refit != "none" else AutoModel()


def fitting_candidates(
    model: Model, train: TrainConfig, loss: LossConfig, task: TaskConfig, loss_kind: str
) -> Model:
    """Return the model without default candidates that cannot follow the loss; others stay."""
    if not isinstance(model, AutoModel) or "candidates" in model.model_fields_set:
        return model
    kept = tuple(
        one for one in model.candidates if not any(_of_trees(one, train, loss, task, loss_kind))
    )
    return with_defaults(model, candidates=kept)


def candidate_conflicts(
    model: Model,
    optimizer: Optimizer,
    schedule: Schedule,
    train: TrainConfig,
    loss: LossConfig,
    task: TaskConfig,
    loss_kind: str,
) -> Iterator[str]:
    """List what the candidates of `model.kind: auto` cannot follow, or would ignore."""
    if not isinstance(model, AutoModel):
        return
    for candidate in model.candidates:
        yield from _of_trees(candidate, train, loss, task, loss_kind)
    if any(one.kind != "boosting" and one.kind not in RECIPES for one in model.candidates):
        return  # such a candidate takes the declared sections
    default = TrainConfig()
    changed = {
        "optimizer": optimizer != AdamWConfig(),
        "schedule": schedule != WarmupCosineSchedule(),
        **{f"train.{key}": getattr(train, key) != getattr(default, key) for key in TRAINED_BY},
    }
    if found := [path for path, differs in changed.items() if differs]:
        yield (
            f"{', '.join(found)}: without effect, since each candidate of model.kind auto brings"
            " its own; remove it, or name one network, e.g. model.kind: realmlp"
        )


def _of_trees(
    candidate: Candidate, train: TrainConfig, loss: LossConfig, task: TaskConfig, loss_kind: str
) -> Iterator[str]:
    """List the conflicts of a candidate that is boosting; it is fitted in one process anyway."""
    alone = train.model_copy(update={"ranks": 1, "nodes": 1, "parallel": "ddp"})
    return tree_conflicts(candidate, alone, loss, task, loss_kind)
