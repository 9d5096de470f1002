"""Recipes: the settings that belong to a kind of model, where a declaration does not give its own.

A network is only as good as the settings it was published with: its scaling, optimizer, schedule,
batch size and length of training. `fill_recipe` sets them when a declaration is read; values that
the file gives stay. A candidate of `model.kind: auto` also has a bound in steps, and so a length by
the number of train rows; it is in the candidate's own record. A run's declaration never depends on
its rows: `verify` and `reproduce` compare it.

Source: RealMLP-TD, Holzmüller et al. 2024, arXiv:2407.04491, table A.2; TabM, Gorishniy et al.
2024, arXiv:2410.24210, and its batch sizes in TabArena. RealMLP's early stop is TabArena's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from schemas.data_config import TaskConfig
from schemas.model_config import AutoModel, BoostingModel, Candidate, Model
from schemas.optimizer_config import AdamWConfig, Optimizer
from schemas.schedule_config import (
    ConstantSchedule,
    CosLog4Schedule,
    Schedule,
    WarmupCosineSchedule,
)
from schemas.section import Section, with_defaults
from schemas.train_config import TrainConfig

CLASSES_RATE, NUMBERS_RATE = 0.04, 0.2  # of RealMLP
MAX_EPOCHS = 256
STEPS = {"quick": 4_000, "default": 25_000, "best": 50_000}  # most of one network, by effort
# of candidates that are boosting
FEWEST_TREES, ROWS_TIMES_TREES, ENOUGH_RATE = 100, 400_000_000, 20
LARGE_BATCH = 512  # where a recipe has batch sizes, above its last number of rows


class Declared(Protocol):
    """Sections of a `schemas.config.Declaration` that a recipe reads or sets."""

    @property
    def model_fields_set(self) -> set[str]:
        """Names of the sections that the file gives."""

    @property
    def task(self) -> TaskConfig:
        """Section `task`."""

    @property
    def normalize(self) -> Section:
        """Section `normalize`."""

    @property
    def model(self) -> Model:
        """Section `model`."""

    @property
    def optimizer(self) -> Optimizer:
        """Section `optimizer`."""

    @property
    def train(self) -> TrainConfig:
        """Section `train`."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy with other sections."""


Declaration = TypeVar("Declaration", bound=Declared)


@dataclass(frozen=True)
class Recipe:
    """Settings of one kind of model.

    Attributes:
        scale: `normalize.scale`.
        optimizer: Values of section `optimizer`, which is AdamW.
        schedule: Section `schedule`.
        train: Values of section `train`.
        evaluations: Most evaluations of a candidate; each scores validation rows and saves a
            checkpoint.
        batches: Of a candidate, number of train rows below which a batch size holds, rising.
        alone: It also holds for a model of this kind, not for a candidate only.
    """

    scale: str
    optimizer: Mapping[str, Any]
    schedule: Schedule
    train: Mapping[str, Any]
    evaluations: int
    batches: Mapping[int, int] = field(default_factory=dict)
    alone: bool = True


RECIPES: dict[str, Recipe] = {
    "realmlp": Recipe(
        scale="smooth",
        optimizer={
            "lr": CLASSES_RATE,
            "beta2": 0.95,
            "weight_decay": 0.02,
            "weight_decay_schedule": "flat_cos",
        },
        schedule=CosLog4Schedule(),
        train={
            "epochs": MAX_EPOCHS,
            "batch_size": 256,
            "patience": 40,
            "patience_factor": 3.0,  # the schedule's rates rise again: it waits for its next fall
            "clip": "none",
        },
        evaluations=64,
    ),
    "tabm": Recipe(
        scale="quantile",
        optimizer={"lr": 2e-3, "weight_decay": 3e-4},
        schedule=ConstantSchedule(),
        train={"epochs": MAX_EPOCHS, "batch_size": 256, "patience": 16, "clip": "norm"},
        evaluations=MAX_EPOCHS,
        batches={2_800: 32, 4_500: 64, 6_400: 128, 32_000: 256},
    ),
    "linear": Recipe(
        scale="smooth",
        optimizer={"lr": 1e-2, "weight_decay": 1e-2},
        schedule=WarmupCosineSchedule(),
        train={"epochs": 64, "batch_size": 256, "patience": 16, "clip": "norm"},
        evaluations=64,
        alone=False,
    ),
}


def fill_recipe(declaration: Declaration) -> None:
    """Set the values of the kind's recipe where none is given; they still count as defaults.

    The candidates of `model.kind: auto` share their inputs, which are scaled as RealMLP's are: the
    other kinds are hardly affected by it.
    """
    if isinstance(declaration.model, AutoModel):
        _set(declaration, "normalize", with_defaults(declaration.normalize, scale="smooth"))
        _set(declaration, "train", with_defaults(declaration.train, epochs=MAX_EPOCHS))
        return
    recipe = RECIPES.get(declaration.model.kind)
    if recipe is None or not recipe.alone:
        return
    train = {**recipe.train, "batch_size": _batch(recipe.train["batch_size"], declaration)}
    _set(declaration, "normalize", with_defaults(declaration.normalize, scale=recipe.scale))
    _set(declaration, "train", with_defaults(declaration.train, **train))
    if isinstance(declaration.optimizer, AdamWConfig):
        _set(declaration, "optimizer", with_defaults(declaration.optimizer, **_rates(declaration)))
    if "schedule" not in declaration.model_fields_set:
        _set(declaration, "schedule", recipe.schedule)


def candidate_declaration(declaration: Declaration, candidate: Candidate) -> Declaration:
    """Return the declaration that a candidate of `model.kind: auto` is trained by.

    A kind with a recipe has its optimizer, schedule and training; `train.epochs` bounds its length.
    Other kinds take the declared sections. Trees are fitted in one process.
    """
    train, changed = declaration.train, {"model": candidate}
    chosen = declaration.model_copy(update=changed)
    recipe = RECIPES.get(candidate.kind)
    if candidate.kind == "boosting":
        alone = train.model_copy(update={"ranks": 1, "parallel": "ddp"})
        return chosen.model_copy(update={"train": alone})
    if recipe is None:
        return chosen
    forced = {**recipe.train, "batch_size": _batch(train.batch_size, declaration)}
    forced["epochs"] = min(train.epochs, recipe.train["epochs"])
    return chosen.model_copy(
        update={
            "optimizer": AdamWConfig(**_rates(chosen)),
            "schedule": recipe.schedule,
            "train": train.model_copy(update=forced),
        }
    )


def candidate_for_rows(declaration: Declaration, rows: int, effort: str) -> Declaration:
    """Return a candidate's declaration with batch size and epochs for its train rows."""
    if isinstance(declaration.model, BoostingModel):
        return declaration.model_copy(update={"model": _trees_for(declaration.model, rows)})
    recipe = RECIPES.get(declaration.model.kind)
    if recipe is None:
        return declaration
    batch_size = _batch_for(recipe, declaration, rows)
    length = _length(recipe, declaration.train.epochs, rows, batch_size, STEPS[effort])
    update = {"batch_size": batch_size, **length}
    return declaration.model_copy(update={"train": declaration.train.model_copy(update=update)})


def has_recipe_rates(declaration: Declared) -> bool:
    """Return True if the optimizer is the one that the recipe of the model's kind sets."""
    recipe = RECIPES.get(declaration.model.kind)
    if recipe is None or not isinstance(declaration.optimizer, AdamWConfig):
        return False
    rates = _rates(declaration)
    return all(getattr(declaration.optimizer, name) == value for name, value in rates.items())


def _rates(declaration: Declared) -> dict[str, Any]:
    """Return the recipe's values of section `optimizer`; RealMLP has other rates for numbers."""
    values = dict(RECIPES[declaration.model.kind].optimizer)
    if declaration.model.kind == "realmlp" and declaration.task.kind == "regression":
        values["lr"] = NUMBERS_RATE
    return values


def _trees_for(model: BoostingModel, rows: int) -> BoostingModel:
    """Return boosting that takes minutes on two cores: with many rows, fewer and larger steps.

    >>> found = _trees_for(BoostingModel(learning_rate=0.03, max_iter=3000), 2_000_000)
    >>> found.max_iter, found.learning_rate
    (200, 0.1)
    """
    most = max(FEWEST_TREES, ROWS_TIMES_TREES // rows)
    if most >= model.max_iter:
        return model
    rate = max(model.learning_rate, min(0.1, ENOUGH_RATE / most))
    return model.model_copy(update={"max_iter": most, "learning_rate": rate})


def _batch_for(recipe: Recipe, declaration: Declared, rows: int) -> int:
    if not recipe.batches:
        return declaration.train.batch_size
    size = next((size for most, size in recipe.batches.items() if rows < most), LARGE_BATCH)
    return _batch(size, declaration)


def _batch(size: int, declaration: Declared) -> int:
    """Return a batch size that has a row for each rank."""
    return max(size, declaration.train.ranks)


def _length(recipe: Recipe, most: int, rows: int, batch_size: int, steps: int) -> dict[str, int]:
    """Return the epochs that fit a number of steps, at most so many, the steps between evaluations
    and the patience in evaluations.

    >>> _length(RECIPES["realmlp"], 256, 20_000, 256, 25_000)
    {'epochs': 256, 'eval_every': 316, 'patience': 10}
    >>> _length(RECIPES["realmlp"], 256, 1_000_000, 256, 25_000)
    {'epochs': 6, 'eval_every': 3907, 'patience': 40}
    """
    per_epoch = -(-rows // batch_size)
    epochs = max(1, min(most, steps // per_epoch))
    apart = -(-epochs // recipe.evaluations)
    patience = max(1, recipe.train["patience"] // apart)
    return {"epochs": epochs, "eval_every": per_epoch * apart, "patience": patience}


def _set(declaration: Declared, name: str, value: Section) -> None:
    object.__setattr__(declaration, name, value)
