"""Section `train`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.section import Section


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
