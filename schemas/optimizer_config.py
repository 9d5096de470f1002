"""Sections `optimizer` and `schedule`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.section import Section


class AdamWConfig(Section):
    """AdamW with decoupled weight decay."""

    model_config = ConfigDict(title="AdamW")
    kind: Literal["adamw"] = "adamw"
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0, description="On matrices of linear, convolution layers only; never on norms, biases, embeddings.")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)


class SgdConfig(Section):
    """Stochastic gradient descent."""

    model_config = ConfigDict(title="SGD")
    kind: Literal["sgd"] = "sgd"
    lr: float = Field(0.1, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SgdConfig:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        return self


Optimizer = Annotated[AdamWConfig | SgdConfig, Field(discriminator="kind")]


class ConstantSchedule(Section):
    """The learning rate stays as declared."""

    model_config = ConfigDict(title="Constant")
    kind: Literal["constant"] = "constant"


class WarmupCosineSchedule(Section):
    """Linear warm-up, then a cosine down to `final` of the peak; counted in optimizer steps."""

    model_config = ConfigDict(title="Warm-up + cosine")
    kind: Literal["warmup_cosine"] = "warmup_cosine"
    warmup: float = Field(0.05, ge=0, lt=1, description="Share of all optimizer steps spent warming up.")
    final: float = Field(0.01, ge=0, le=1, description="Learning rate at the end as a share of the peak.")


class PlateauSchedule(Section):
    """Multiply the rate by `factor` when the watched metric has not improved for `patience` evaluations."""

    model_config = ConfigDict(title="Reduce on plateau")
    kind: Literal["plateau"] = "plateau"
    factor: float = Field(0.5, gt=0, lt=1)
    patience: int = Field(3, ge=0)
    min_lr: float = Field(1e-6, ge=0)


Schedule = Annotated[ConstantSchedule | WarmupCosineSchedule | PlateauSchedule, Field(discriminator="kind")]
