"""Section `loss`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.label_config import ClassWeights, PosWeight, Value
from schemas.section import Section


class LossConfig(Section):
    """The training loss; `auto` takes the one that suits the task."""

    kind: Literal[
        "auto",
        "cross_entropy",
        "bce",
        "focal",
        "ordinal",
        "mse",
        "mae",
        "huber",
        "quantile",
        "poisson",
        "tweedie",
    ] = "auto"
    class_weights: Literal["none", "balanced"] | ClassWeights = Field(
        "none",
        description=(
            "Weight of each class in the mean. balanced: n / (classes * count), fitted on train; or"
            " class to weight, others 1: {rare: 5}."
        ),
    )
    pos_weight: PosWeight = Field(
        "none",
        description=(
            "Factor on the loss of positives (binary labels), the divisor unchanged. balanced:"
            " negatives / positives, fitted on train by label."
        ),
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of each label that is spread over all classes (multiclass labels).",
    )
    delta: float = Field(
        1.0, gt=0, description="Where Huber turns linear, in units of the scaled label."
    )
    quantile: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Which quantile of the label loss quantile predicts, e.g. 0.9; it has to say.",
    )
    power: float = Field(
        1.5,
        gt=1,
        lt=2,
        description=(
            "Power of loss tweedie: the variance grows as mean ** power. Near 1 as counts, near 2"
            " as amounts."
        ),
    )
    gamma: float = Field(
        2.0, ge=0, description="How much loss focal neglects rows that are right; 0: not at all."
    )
    order: tuple[Value, ...] = Field(
        (),
        description=(
            "The classes of loss ordinal from lowest to highest, e.g. [low, medium, high]. Default:"
            " numbers ascending; text has no order of its own."
        ),
    )
