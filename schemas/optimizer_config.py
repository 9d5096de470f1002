"""Section `optimizer`."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from schemas.section import Section

LrScaling = Literal["none", "linear", "sqrt"]


class Factor(NamedTuple):
    """Factors of one parameter on the declared rate and weight decay.

    A network declares them with a method `parameter_factors() -> dict[nn.Parameter, Factor]`.
    """

    lr: float = 1.0
    weight_decay: float = 0.0


class ModuleRule(Section):
    """Another rate or weight decay for one module and all that is inside of it."""

    match: str = Field(
        pattern=r"^\w+(\.\w+)*$",
        description=(
            "Path of a module or parameter, e.g. body.inputs; whole names, never parts of one. Of"
            " two rules that fit, the longer path holds."
        ),
    )
    lr: float | None = Field(
        None,
        description=(
            "Peak learning rate there, in place of optimizer.lr; layer_decay does not change it."
        ),
    )
    weight_decay: float | None = Field(
        None, ge=0, description="Weight decay of its matrices, in place of optimizer.weight_decay."
    )

    @field_validator("lr")
    @classmethod
    def _trains(cls, lr: float | None) -> float | None:
        if lr is not None and lr <= 0:
            raise ValueError(
                f"expected a learning rate above 0, got {lr}; to freeze a module list it under"
                " model.freeze"
            )
        return lr

    @model_validator(mode="after")
    def _changes_something(self) -> ModuleRule:
        if self.lr is None and self.weight_decay is None:
            raise ValueError(
                f"the rule for {self.match!r} changes nothing; give lr, weight_decay or both"
            )
        return self


class OptimizerSection(Section):
    """What every optimizer has."""

    kind: str
    lr: float = Field(1e-3, gt=0, description="Peak learning rate: schedules give shares of it.")
    weight_decay: float = Field(
        0.0,
        ge=0,
        description=(
            "On matrices of linear and convolution layers only; never on norms, biases, embeddings."
        ),
    )
    weight_decay_schedule: Literal["constant", "flat_cos"] = Field(
        "constant",
        description=(
            "flat_cos: weight decay as declared for half of all updates, then down to 0 by a"
            " cosine."
        ),
    )
    layer_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=(
            "Each layer further from the output trains at this multiple of the next one's rate; the"
            " head at `lr`."
        ),
    )
    modules: tuple[ModuleRule, ...] = Field(
        (), description="Modules with a rate or weight decay of their own."
    )
    lr_scaling: LrScaling = Field(
        "none",
        description=(
            "Multiply every rate by batch_size / reference_batch_size (linear) or its square root"
            " (sqrt). Batches count over all ranks."
        ),
    )
    reference_batch_size: int | None = Field(
        None,
        ge=1,
        description="train.batch_size that the rates were chosen for; needed by lr_scaling.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> OptimizerSection:
        if (self.lr_scaling == "none") != (self.reference_batch_size is None):
            raise ValueError(
                f"lr_scaling {self.lr_scaling!r} with reference_batch_size"
                f" {self.reference_batch_size}: give both, e.g. lr_scaling: linear and"
                " reference_batch_size: 256, or neither"
            )
        paths = [rule.match for rule in self.modules]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ValueError(f"modules has more than one rule for {twice}; keep one each")
        return self

    def scaled(self, batch_size: int) -> Self:
        """Return the same optimizer with its rates resolved for a global batch size.

        Source: linear, Goyal et al. 2017, arXiv:1706.02677, sec. 2.1; sqrt, Malladi et al. 2022,
        arXiv:2205.10287, for Adam.

        >>> AdamWConfig(lr=0.001, lr_scaling="sqrt", reference_batch_size=100).scaled(400).lr
        0.002
        """
        if self.reference_batch_size is None:
            return self
        ratio = batch_size / self.reference_batch_size
        factor = ratio if self.lr_scaling == "linear" else math.sqrt(ratio)
        rules = tuple(
            rule if rule.lr is None else rule.model_copy(update={"lr": rule.lr * factor})
            for rule in self.modules
        )
        return self.model_copy(
            update={
                "lr": self.lr * factor,
                "modules": rules,
                "lr_scaling": "none",
                "reference_batch_size": None,
            }
        )


class AdamSection(OptimizerSection):
    """What Adam and AdamW share."""

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    amsgrad: bool = Field(
        False, description="Divide by the largest second moment so far, not by the present one."
    )


class AdamWConfig(AdamSection):
    """AdamW with decoupled weight decay."""

    model_config = ConfigDict(title="AdamW")
    kind: Literal["adamw"] = "adamw"
    weight_decay: float = Field(
        0.01,
        ge=0,
        description=(
            "On matrices of linear, convolution layers only; never on norms, biases, embeddings."
        ),
    )


class AdamConfig(AdamSection):
    """Adam; weight decay is added to the gradient (L2), so its strength varies with each weight's
    gradient history. AdamW decouples it.
    """

    model_config = ConfigDict(title="Adam")
    kind: Literal["adam"] = "adam"


class SgdConfig(OptimizerSection):
    """Stochastic gradient descent."""

    model_config = ConfigDict(title="SGD")
    kind: Literal["sgd"] = "sgd"
    lr: float = Field(0.1, gt=0, description="Peak learning rate: schedules give shares of it.")
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    dampening: float = Field(
        0.0, ge=0, lt=1, description="Share of each gradient that the momentum does not take up."
    )

    @model_validator(mode="after")
    def _momentum_fits(self) -> SgdConfig:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        if self.dampening and (self.momentum == 0 or self.nesterov):
            raise ValueError("dampening needs momentum above 0 and nesterov off")
        return self


Optimizer = Annotated[AdamWConfig | AdamConfig | SgdConfig, Field(discriminator="kind")]
