"""Section `train`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from schemas.section import Section


class LossScaleConfig(Section):
    """Dynamic loss scaling of fp16: halved when a gradient overflows, doubled after
    `growth_interval` steps without.
    """

    initial: float = Field(65536.0, ge=1, description="Scale of the first step.")
    growth_interval: int = Field(
        2000, ge=1, description="Steps without overflow after which the scale is doubled."
    )


class AugmentConfig(Section):
    """Random changes of train inputs, drawn again in each step from the step's own key; never in
    evaluation.
    """

    noise: float = Field(
        0.0,
        ge=0,
        description=(
            "Standard deviation of Gaussian noise on scaled numeric columns (never on missing"
            " indicators)."
        ),
    )
    flip: bool = Field(False, description="Mirror each image left to right with probability 1/2.")
    shift: int = Field(
        0,
        ge=0,
        description=(
            "Move each image by up to so many pixels each way; what comes in repeats the edge."
        ),
    )


class ProfileConfig(Section):
    """A torch.profiler trace of some steps on rank 0."""

    start: int = Field(
        10,
        ge=0,
        description=(
            "Steps made before the first one that is traced; the first ones of a run are slower."
        ),
    )
    steps: int = Field(
        5, ge=1, le=1000, description="Steps traced; a trace takes about a megabyte for each."
    )


class EmaConfig(Section):
    """Exponential moving average of the weights: after each update, decay times the average plus
    1 - decay times the new weights.
    """

    decay: float = Field(
        0.999,
        gt=0,
        lt=1,
        description="Share of the average that an update keeps; about 1 / (1 - decay) updates.",
    )
    warmup: bool = Field(
        True,
        description=(
            "Keep less at the start: after n updates at most (1 + n) / (10 + n), so that a short"
            " run's average forgets the random start."
        ),
    )


def _or_auto(schema: dict[str, Any]) -> None:
    """Allow `auto` for a number in the JSON schema, as the default."""
    number = {name: schema.pop(name) for name in ("type", "minimum")}
    schema |= {"anyOf": [number, {"const": "auto", "type": "string"}], "default": "auto"}


def _decay_alone(value: Any) -> Any:
    """Return a plain number as the section that it abbreviates."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"decay": value} if number else value


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(30, ge=1)
    batch_size: int = Field(256, ge=1, description="Rows of one optimizer step over all ranks.")
    micro_batch_size: int | None = Field(
        None,
        ge=1,
        description=(
            "Rows of one forward pass on one rank; smaller ones accumulate. Default: batch_size /"
            " ranks."
        ),
    )
    drop_last: bool = Field(False, description="Leave out the last, smaller batch of an epoch.")
    ranks: int = Field(
        1,
        ge=1,
        json_schema_extra=_or_auto,
        description=(
            "Processes of the torchrun launch, over all machines. auto, the default: one for each"
            " GPU; without a GPU one, which uses all cores."
        ),
    )
    nodes: int = Field(
        1,
        ge=1,
        description=(
            "Machines that share the ranks evenly; the others take part with `bulkhead join"
            " RUN_DIR`."
        ),
    )
    rendezvous: str | None = Field(
        None,
        pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$",
        description="host:port of the first machine, where the machines find each other.",
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of each rank. Default: cores / ranks."
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description=(
            "ddp: each rank holds the whole model; fsdp: weights, gradients and optimizer state are"
            " sharded over ranks (FSDP2)."
        ),
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description=(
            "Of forward and backward; weights stay fp32. fp16 scales the loss (`loss_scale`)."
        ),
    )
    loss_scale: LossScaleConfig = LossScaleConfig()
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    mode: Literal["exact", "elastic", "fast"] = Field(
        "exact",
        description=(
            "exact: same machine type, software and ranks give bit-identical weights; elastic: for"
            " any number of ranks that divides `logical_shards`, at some cost; fast: autotuning"
            " allowed, no such promise."
        ),
    )
    logical_shards: int = Field(
        4,
        ge=1,
        description=(
            "elastic: parts that each batch is cut into, a power of two; each has its own noise and"
            " its own gradient."
        ),
    )
    augment: AugmentConfig = AugmentConfig()
    compile: bool = Field(
        False,
        description="Compile the training step's forward and backward pass with torch.compile.",
    )
    recompute_activations: bool = Field(
        False,
        description=(
            "Activation checkpointing: keep only the inputs of each block and compute the rest"
            " again in the backward pass."
        ),
    )
    seed: int = Field(0, ge=0)
    clip: Literal["norm", "value", "none"] = "norm"
    clip_at: float = Field(1.0, gt=0)
    eval_every: int | None = Field(
        None, ge=1, description="Validate every so many optimizer steps. Default: once an epoch."
    )
    metric: str | None = Field(
        None,
        description=(
            "Validation metric that picks the best weights. Default: auroc, macro_f1 or rmse by"
            " task."
        ),
    )
    patience: int = Field(
        8, ge=1, description="Evaluations without improvement before stopping early."
    )
    patience_factor: float = Field(
        1.0,
        ge=1,
        description=(
            "Stop after evaluation `patience_factor` x b + `patience`, where b is the number of the"
            " best one. More than 1: the longer the loss fell, the longer it is waited for; for"
            " schedules with rising rates."
        ),
    )
    min_delta: float = Field(
        0.0, ge=0, description="Smallest change that counts as an improvement."
    )
    checkpoint_every: int | None = Field(
        None,
        ge=1,
        description="Also save every so many optimizer steps. Default: at each evaluation only.",
    )
    keep: int = Field(3, ge=2, description="Checkpoints kept besides the best.")
    log_every: int = Field(
        20, ge=1, description="Optimizer steps between two lines of step metrics."
    )

    ema: Annotated[EmaConfig, BeforeValidator(_decay_alone)] | None = Field(
        None,
        description=(
            "Validate, keep and register an exponential moving average of the weights, e.g. 0.999"
            " or {decay: 0.999, warmup: false}; training continues from the raw weights. Default:"
            " none."
        ),
    )
    refit: Literal["none", "train_val", "all"] = Field(
        "none",
        description=(
            "After the gate has passed, train the model that is registered again, for the best"
            " step's number of steps: on train and validation rows, or on all rows, after which no"
            " test row is unseen by it. The test score stays that of the model trained on train."
        ),
    )
    profile: ProfileConfig | None = Field(
        None, description="Trace some steps, e.g. {start: 10, steps: 5}, into RUN_DIR/profile."
    )

    @model_validator(mode="before")
    @classmethod
    def _ranks_of_the_machine(cls, values: Any) -> Any:
        """Treat a missing number as `auto`: the machine that trains decides."""
        if isinstance(values, dict) and values.get("ranks", 1) in (None, "auto"):
            return {name: value for name, value in values.items() if name != "ranks"}
        return values

    @model_validator(mode="after")
    def _ranks_of_the_nodes(self) -> TrainConfig:
        """Count one process for each machine until the number per machine is known."""
        if "ranks" not in self.model_fields_set:
            object.__setattr__(self, "ranks", self.nodes)
        return self

    def with_ranks(self, ranks: int) -> TrainConfig:
        """Return a copy with the machine's number of processes, which still counts as not given."""
        return type(self).model_construct(
            _fields_set=set(self.model_fields_set), **(self.__dict__ | {"ranks": ranks})
        )

    def can_have(self, ranks: int) -> bool:
        """Check that a batch has rows, and an elastic run shards, for this many processes."""
        return ranks <= self.batch_size and (
            self.mode != "elastic" or self.logical_shards % ranks == 0
        )

    @model_validator(mode="after")
    def _ranks_fit(self) -> TrainConfig:
        if self.batch_size < self.ranks:
            raise ValueError(
                f"batch_size {self.batch_size} is smaller than ranks {self.ranks}: each rank needs"
                " a row; raise batch_size or lower ranks"
            )
        return self

    @model_validator(mode="after")
    def _nodes_fit(self) -> TrainConfig:
        if self.ranks % self.nodes:
            raise ValueError(
                f"ranks {self.ranks} cannot be shared evenly by nodes {self.nodes}: ranks counts"
                " the processes of all machines"
            )
        if (self.nodes > 1) != (self.rendezvous is not None):
            raise ValueError(
                f"nodes {self.nodes} with rendezvous {self.rendezvous!r}: several machines need an"
                " address where they meet, one needs none"
            )
        return self

    @model_validator(mode="after")
    def _elastic_fits(self) -> TrainConfig:
        if self.mode != "elastic":
            return self
        if self.logical_shards & (self.logical_shards - 1):
            raise ValueError(
                f"logical_shards {self.logical_shards} is not a power of two; use 1, 2, 4, 8 …"
            )
        if self.logical_shards % self.ranks:
            raise ValueError(
                f"mode elastic: ranks {self.ranks} does not divide logical_shards"
                f" {self.logical_shards}; use 1, 2, 4 … up to {self.logical_shards}"
            )
        if self.parallel == "fsdp":
            raise ValueError(
                "mode elastic sums gradients in its own order and needs parallel: ddp; for"
                " fsdp use mode: exact or fast"
            )
        return self
