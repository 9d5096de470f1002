"""Recipes: the settings that belong to a kind of model, where a declaration does not give its own.

A network is only as good as the settings it was published with: its scaling, optimizer, schedule,
batch size and length of training. `fill_recipe` sets those that do not depend on the data when a
declaration is read; `for_rows` sets those that depend on the number of train rows, before training.
Values that the file gives stay.

Source: RealMLP-TD, Holzmüller et al. 2024, arXiv:2407.04491, table A.2; TabM, Gorishniy et al.
2024, arXiv:2410.24210, and its batch sizes in TabArena. Their lengths are bounded here in steps, so
that training takes minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from schemas.optimizer_config import AdamWConfig
from schemas.schedule_config import ConstantSchedule, CosLog4Schedule, Schedule
from schemas.section import Section

if TYPE_CHECKING:
    from schemas.config import Declaration

SectionType = TypeVar("SectionType", bound=Section)
CLASSES_RATE, NUMBERS_RATE = 0.04, 0.2  # of RealMLP


@dataclass(frozen=True)
class Recipe:
    """Settings of one kind of model.

    Attributes:
        scale: `normalize.scale`.
        optimizer: Values of section `optimizer`, which is AdamW.
        schedule: Section `schedule`.
        train: Values of section `train`.
        steps: Most optimizer steps; epochs follow from it and the number of train rows.
        batches: Largest number of train rows below which a batch size holds, in rising order.
    """

    scale: str
    optimizer: Mapping[str, Any]
    schedule: Schedule
    train: Mapping[str, Any]
    steps: int
    batches: Mapping[int, int] = field(default_factory=dict)


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
        # the last cosine ends at rate 0: only the whole schedule is the recipe
        train={"epochs": 256, "batch_size": 256, "patience": 256, "clip": "none"},
        steps=25_000,
    ),
    "tabm": Recipe(
        scale="quantile",
        optimizer={"lr": 2e-3, "weight_decay": 3e-4},
        schedule=ConstantSchedule(),
        train={"epochs": 256, "batch_size": 256, "patience": 16},
        steps=25_000,
        batches={2_800: 32, 4_500: 64, 6_400: 128, 32_000: 256},
    ),
}
LARGE_BATCH = 512  # where a recipe has batch sizes, above its last number of rows


def fill_recipe(declaration: Declaration) -> None:
    """Set the values of the kind's recipe where none is given; they still count as defaults."""
    recipe = RECIPES.get(declaration.model.kind)
    if recipe is None:
        return
    _set(declaration, "normalize", with_defaults(declaration.normalize, scale=recipe.scale))
    _set(declaration, "train", with_defaults(declaration.train, **_fitting(declaration, recipe)))
    if isinstance(declaration.optimizer, AdamWConfig):
        values = dict(recipe.optimizer)
        if declaration.model.kind == "realmlp" and declaration.task.kind == "regression":
            values["lr"] = NUMBERS_RATE
        _set(declaration, "optimizer", with_defaults(declaration.optimizer, **values))
    if "schedule" not in declaration.model_fields_set:
        _set(declaration, "schedule", recipe.schedule)


def _fitting(declaration: Declaration, recipe: Recipe) -> dict[str, Any]:
    """Return the train values; a batch has a row for each rank, and no epoch number is raised."""
    return dict(recipe.train) | {
        "batch_size": max(recipe.train["batch_size"], declaration.train.ranks)
    }


def for_rows(declaration: Declaration, rows: int) -> Declaration:
    """Return the declaration with batch size and epochs for a number of train rows.

    Args:
        declaration: As it was read.
        rows: Train rows.
    """
    recipe = RECIPES.get(declaration.model.kind)
    if recipe is None:
        return declaration
    train = declaration.train
    if recipe.batches:
        size = next((b for most, b in recipe.batches.items() if rows < most), LARGE_BATCH)
        train = with_defaults(train, batch_size=max(size, train.ranks))
    steps_per_epoch = -(-rows // train.batch_size)
    epochs = max(1, min(recipe.train["epochs"], recipe.steps // steps_per_epoch))
    train = with_defaults(train, epochs=epochs)
    return declaration.model_copy(update={"train": train})


def with_defaults(section: SectionType, **defaults: Any) -> SectionType:
    """Return the section with other defaults; given values stay, defaults still count as
    defaults.
    """
    given = section.model_fields_set
    values = section.__dict__ | {
        name: value for name, value in defaults.items() if name not in given
    }
    return cast(SectionType, type(section).model_construct(_fields_set=set(given), **values))


def _set(declaration: Declaration, name: str, value: Section) -> None:
    object.__setattr__(declaration, name, value)
