"""Section `schedule`. Every count is in optimizer updates, except the plateau's, in evaluations.

A length (`warmup`, `every`, `period`, `milestones`) below 1 is a fraction of all updates of the
run; from 1 on it is a number of updates. A level (`initial`, `final`) is a fraction of the peak,
`optimizer.lr`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from schemas.section import Section


def _whole_from_one_on(length: float) -> float:
    if length >= 1 and length != int(length):
        raise ValueError(f"expected a share below 1 or a whole number of updates, got {length}")
    return length


Length = Annotated[float, AfterValidator(_whole_from_one_on)]


class WarmedSection(Section):
    """A schedule that may begin with a linear warm-up from 1 / n of the peak over n updates, and
    only then counts from 0.
    """

    kind: str
    warmup: Length = Field(
        0.0,
        ge=0,
        description="Linear warm-up first: below 1 a share of all updates, else their number.",
    )


class ConstantSchedule(WarmedSection):
    """The learning rate stays as declared."""

    model_config = ConfigDict(title="Constant")
    kind: Literal["constant"] = "constant"


class StepSchedule(WarmedSection):
    """Multiply the rate by `factor` at every so many updates."""

    model_config = ConfigDict(title="Step")
    kind: Literal["step"] = "step"
    every: Length = Field(
        0.3, gt=0, description="Below 1 a share of all updates, else their number."
    )
    factor: float = Field(0.1, gt=0, lt=1)


class MultiStepSchedule(WarmedSection):
    """Multiply the rate by `factor` at each milestone."""

    model_config = ConfigDict(title="Multi-step")
    kind: Literal["multi_step"] = "multi_step"
    milestones: tuple[Annotated[Length, Field(gt=0)], ...] = Field(
        (0.5, 0.75), min_length=1, description="Shares of all updates below 1, or their numbers."
    )
    factor: float = Field(0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _rise(self) -> MultiStepSchedule:
        if any(a >= b for a, b in pairwise(self.milestones)):
            raise ValueError(f"milestones must rise, got {list(self.milestones)}")
        if self.milestones[0] < 1 <= self.milestones[-1]:
            raise ValueError(
                "milestones must be all shares below 1 or all numbers of updates, got"
                f" {list(self.milestones)}"
            )
        return self


class ExponentialSchedule(WarmedSection):
    """Fall smoothly, by `factor` over every so many updates; `every: 1` is torch's ExponentialLR
    with gamma = factor.
    """

    model_config = ConfigDict(title="Exponential")
    kind: Literal["exponential"] = "exponential"
    every: Length = Field(
        0.1, gt=0, description="Below 1 a share of all updates, else their number."
    )
    factor: float = Field(0.6, gt=0, lt=1)


class CosineSchedule(Section):
    """Half a cosine from the peak down to `final`; with a warm-up it is `warmup_cosine`."""

    model_config = ConfigDict(title="Cosine")
    kind: Literal["cosine"] = "cosine"
    final: float = Field(
        0.01, ge=0, le=1, description="Learning rate at the end as a share of the peak."
    )


class CosLog4Schedule(Section):
    """Four cosines from 0 to the peak and back, each twice as long as the one before:
    `(1 - cos(2 pi log2(1 + 15 t))) / 2` at share t of the run.
    """

    model_config = ConfigDict(title="Four growing cosines")
    kind: Literal["coslog4"] = "coslog4"


class CosineRestartsSchedule(WarmedSection):
    """Half a cosine from the peak to `final`, again and again, each period `growth` times as long
    as the one before.
    """

    model_config = ConfigDict(title="Cosine with warm restarts")
    kind: Literal["cosine_restarts"] = "cosine_restarts"
    period: Length = Field(
        0.25,
        gt=0,
        description=(
            "Length of the first period: below 1 a share of all updates, else their number."
        ),
    )
    growth: int = Field(1, ge=1)
    final: float = Field(
        0.0, ge=0, le=1, description="Learning rate at the end of a period as a share of the peak."
    )


class WarmupCosineSchedule(WarmedSection):
    """Linear warm-up, then a cosine down to `final` of the peak; counted in optimizer steps."""

    model_config = ConfigDict(title="Warm-up + cosine")
    kind: Literal["warmup_cosine"] = "warmup_cosine"
    warmup: Length = Field(
        0.05, ge=0, description="Below 1 a share of all updates, else their number."
    )
    final: float = Field(
        0.01, ge=0, le=1, description="Learning rate at the end as a share of the peak."
    )


class WarmupLinearSchedule(WarmedSection):
    """Linear warm-up, then a straight line down to `final` of the peak."""

    model_config = ConfigDict(title="Warm-up + linear")
    kind: Literal["warmup_linear"] = "warmup_linear"
    warmup: Length = Field(
        0.05, ge=0, description="Below 1 a share of all updates, else their number."
    )
    final: float = Field(
        0.0, ge=0, le=1, description="Learning rate at the end as a share of the peak."
    )


class OneCycleSchedule(Section):
    """Up from `initial` to the peak, then down to `final`; momentum (beta1 of Adam) goes the
    opposite way.
    """

    model_config = ConfigDict(title="One cycle")
    kind: Literal["one_cycle"] = "one_cycle"
    warmup: Length = Field(
        0.3, gt=0, description="The way up: below 1 a share of all updates, else their number."
    )
    anneal: Literal["cos", "linear"] = Field("cos", description="Shape of both ways.")
    initial: float = Field(
        0.04, gt=0, le=1, description="Learning rate of the first update as a share of the peak."
    )
    final: float = Field(
        4e-6, ge=0, le=1, description="Learning rate of the last update as a share of the peak."
    )
    cycle_momentum: bool = Field(
        True,
        description=(
            "Move momentum (SGD) or beta1 (Adam) too, in place of the optimizer's declared one."
        ),
    )
    low_momentum: float = Field(0.85, ge=0, lt=1, description="At the peak of the rate.")
    high_momentum: float = Field(0.95, ge=0, lt=1, description="At both ends.")

    @model_validator(mode="after")
    def _momentum_is_ordered(self) -> OneCycleSchedule:
        if self.cycle_momentum and self.low_momentum > self.high_momentum:
            raise ValueError(
                f"low_momentum {self.low_momentum} is above high_momentum {self.high_momentum};"
                " exchange them"
            )
        return self


class PlateauSchedule(WarmedSection):
    """Multiply the rate by `factor` when the watched metric has not improved for `patience`
    evaluations.
    """

    model_config = ConfigDict(title="Reduce on plateau")
    kind: Literal["plateau"] = "plateau"
    factor: float = Field(0.5, gt=0, lt=1)
    patience: int = Field(3, ge=0)
    threshold: float = Field(
        0.0, ge=0, description="Smallest change that counts as an improvement."
    )
    threshold_mode: Literal["rel", "abs"] = Field(
        "rel", description="rel: a share of the best value so far; abs: in the metric's unit."
    )
    cooldown: int = Field(
        0, ge=0, description="Evaluations after a reduction that are not counted."
    )
    min_lr: float = Field(1e-6, ge=0, description="No rate is reduced below this.")


Schedule = Annotated[
    ConstantSchedule
    | StepSchedule
    | MultiStepSchedule
    | ExponentialSchedule
    | CosineSchedule
    | CosineRestartsSchedule
    | CosLog4Schedule
    | WarmupCosineSchedule
    | WarmupLinearSchedule
    | OneCycleSchedule
    | PlateauSchedule,
    Field(discriminator="kind"),
]
