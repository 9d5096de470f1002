"""Sections `model`, `loss`, `optimizer`, `schedule` and `train`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.section import Section


class LinearModel(Section):
    """One linear layer over numeric features and category embeddings of size 1 per output."""

    model_config = ConfigDict(title="Linear")
    kind: Literal["linear"] = "linear"


class MlpModel(Section):
    """Multi-layer perceptron with category embeddings."""

    model_config = ConfigDict(title="MLP")
    kind: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field((256, 128), min_length=1, description="Widths of the hidden layers.")
    dropout: float = Field(0.1, ge=0, lt=1)
    numeric_embedding: Literal["none", "periodic"] = Field(
        "periodic",
        description="periodic: each numeric column also enters as a learned mixture of cosines, so that steps and bumps can be fitted; none: as it is.",
    )


class ResMlpModel(Section):
    """Residual MLP: pre-norm blocks `x + W2(dropout(gelu(W1(norm(x)))))` on a common width."""

    model_config = ConfigDict(title="Residual MLP")
    kind: Literal["resmlp"] = "resmlp"
    width: int = Field(192, ge=1)
    depth: int = Field(3, ge=1)
    expansion: float = Field(2.0, gt=0, description="Hidden width of a block as a multiple of `width`.")
    dropout: float = Field(0.1, ge=0, lt=1)
    numeric_embedding: Literal["none", "periodic"] = Field(
        "periodic",
        description="periodic: each numeric column also enters as a learned mixture of cosines, so that steps and bumps can be fitted; none: as it is.",
    )


class CnnModel(Section):
    """Small convolutional network with group normalisation for image-shaped tensors."""

    model_config = ConfigDict(title="CNN")
    kind: Literal["cnn"] = "cnn"
    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field((32, 64), min_length=1, description="Channels of the stages; each halves the picture.")
    hidden: int = Field(128, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)


class CustomModel(Section):
    """Your own `nn.Module`, from a package that BULKHEAD_ALLOW_IMPORTS names."""

    model_config = ConfigDict(title="Your own module")
    kind: Literal["custom"] = "custom"
    path: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="package.module:ClassName")
    options: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the class.")


Model = Annotated[LinearModel | MlpModel | ResMlpModel | CnnModel | CustomModel, Field(discriminator="kind")]


class LossConfig(Section):
    """The training loss; `auto` takes the one that suits the task."""

    kind: Literal["auto", "cross_entropy", "bce", "mse", "mae", "huber"] = "auto"
    class_weights: Literal["none", "balanced"] = Field("none", description="balanced: weights n / (classes * count), fitted on train.")
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    delta: float = Field(1.0, gt=0, description="Where Huber turns linear, in units of the scaled label.")


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


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(30, ge=1)
    batch_size: int = Field(256, ge=1, description="Rows of one optimizer step over all ranks.")
    micro_batch_size: int | None = Field(None, ge=1, description="Rows of one forward pass on one rank; smaller ones accumulate. Default: batch_size / ranks.")
    drop_last: bool = Field(False, description="Leave out the last, smaller batch of an epoch.")
    ranks: int = Field(1, ge=1, description="Processes of the torchrun launch.")
    threads: int | None = Field(None, ge=1, description="CPU threads of each rank. Default: cores / ranks.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    mode: Literal["exact", "fast"] = Field(
        "exact", description="exact: same machine type, software and ranks give bit-identical weights; fast: autotuning allowed, no such promise."
    )
    seed: int = Field(0, ge=0)
    clip: Literal["norm", "value", "none"] = "norm"
    clip_at: float = Field(1.0, gt=0)
    eval_every: int | None = Field(None, ge=1, description="Validate every so many optimizer steps. Default: once an epoch.")
    metric: str | None = Field(None, description="Validation metric that picks the best weights. Default: auroc, macro_f1 or rmse by task.")
    patience: int = Field(8, ge=1, description="Evaluations without improvement before stopping early.")
    min_delta: float = Field(0.0, ge=0, description="Smallest change that counts as an improvement.")
    checkpoint_every: int | None = Field(None, ge=1, description="Also save every so many optimizer steps. Default: at each evaluation only.")
    keep: int = Field(3, ge=2, description="Checkpoints kept besides the best.")
    log_every: int = Field(20, ge=1, description="Optimizer steps between two lines of step metrics.")

    @model_validator(mode="after")
    def _ranks_fit(self) -> TrainConfig:
        if self.batch_size < self.ranks:
            raise ValueError(f"batch_size {self.batch_size} is smaller than ranks {self.ranks}: each rank needs a row; raise batch_size or lower ranks")
        return self
