"""Plan and record of a refit: the registered model, trained again on more rows (`train.refit`)."""

from __future__ import annotations

from typing import Literal

from schemas.references import Record
from schemas.split_config import SplitName

RefitRows = Literal["train_val", "all"]
REFIT_SPLITS: dict[RefitRows, tuple[SplitName, ...]] = {
    "train_val": ("train", "val"),
    "all": ("train", "val", "test"),
}


class RefitPlan(Record):
    """What a refit takes from the estimate, as part of its `resolved.json`.

    `steps`: the estimate's best step. `schedule_steps`: steps of the estimate's whole schedule, so
    that a step has the same learning rate in both.
    """

    rows: RefitRows
    steps: int
    schedule_steps: int


class Estimate(Record):
    """Digests of the model that was evaluated and judged, which is not the registered one."""

    checkpoint_sha256: str
    model_sha256: str
    program_sha256: str


class Refit(Record):
    """A refit that was made, as part of the evidence; digests next to it are of the refitted model.

    `splits`: whose rows the registered weights learned from, in the order in which they were
    joined; `num_rows`: all of them. `arrays_sha256`: of the joined arrays. `estimate`: the model
    that the metrics and the gate belong to.
    """

    rows: RefitRows
    steps: int
    splits: tuple[SplitName, ...]
    num_rows: int
    arrays_sha256: str
    estimate: Estimate

    @property
    def sentence(self) -> str:
        """Rows of the registered weights, and whose score the test score is."""
        return (
            f"Its weights were trained again on {self.num_rows:,} rows ({', '.join(self.splits)})"
            f" for {self.steps:,} steps; the test score belongs to the estimate"
            f" {self.estimate.model_sha256[:12]}, trained on train rows alone."
        )
