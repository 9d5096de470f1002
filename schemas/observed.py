"""Observations of the training program during training, and the checklist made from them."""

from __future__ import annotations

from typing import Literal

from schemas.references import Record

Standing = Literal["shown", "warning", "contradicted", "not shown", "not applicable"]


class RankFacts(Record):
    """One process. `weights_sha256`: of its parameters at the end; null where it held slices of
    them.
    """

    rank: int
    local_rank: int
    device: str
    threads: int
    weights_sha256: str | None


class GroupFacts(Record):
    """One optimizer group. `peak`: its rate at the schedule's peak; `tensors`, `parameters`: how
    many it moves.
    """

    name: str
    peak: float
    weight_decay: float
    tensors: int
    parameters: int


class Passes(Record):
    """Forward passes of the network and updates of the optimizer on rank 0, counted by hooks of
    torch from the last start on.

    `train`: passes with gradients; `train_in_train_mode` and `train_half` (under autocast) of them;
    `exchanging`: of them those whose backward pass exchanges gradients over ranks (null where DDP
    does not do it). `scored`: passes without gradients; `scored_in_eval_mode` and
    `scored_in_inference_mode` of them. `updates`: calls of the optimizer; of them `begun_clean`
    with no gradient left from before, `with_all_gradients`, and `at_declared_rate` in every group.
    `measured`: updates (the 1st, 2nd, 4th, 8th, …) whose gradients were looked at as the optimizer
    got them; `largest_norm` and `largest_value` of these, null where each rank holds slices only.
    """

    train: int = 0
    train_in_train_mode: int = 0
    train_half: int = 0
    exchanging: int | None = None
    scored: int = 0
    scored_in_eval_mode: int = 0
    scored_in_inference_mode: int = 0
    updates: int = 0
    begun_clean: int = 0
    with_all_gradients: int = 0
    at_declared_rate: int = 0
    measured: int = 0
    largest_norm: float | None = None
    largest_value: float | None = None


class Observed(Record):
    """Facts of a training process on rank 0, read back from live objects when it ended.

    `begun_at`: step at which this process began, above 0 where it resumed. `rows`: train rows
    worked through since the first step. `layout`: whole, replicated, sharded or logical; `wrapper`:
    class of what a step calls; `backend`: of the process group. `trainable`: parameter tensors to
    train; `grouped_once`: of them those in exactly one optimizer group. `passes`: null where hooks
    would change what is run (torch.compile). `table_on_device`: all train rows lie there.
    """

    begun_at: int
    rows: int
    rows_per_epoch: int
    layout: str
    wrapper: str
    backend: str | None
    ranks: tuple[RankFacts, ...]
    optimizer: str
    fused: bool
    groups: tuple[GroupFacts, ...]
    trainable: int
    grouped_once: int
    weight_dtypes: tuple[str, ...]
    loss_scale: float | None
    passes: Passes | None
    deterministic_algorithms: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    cublas_workspace: str | None
    matmul_precision: str
    table_on_device: bool


class Statement(Record):
    """One fact about a requirement, with what it was read from or checked by."""

    standing: Standing
    text: str
    by: str


class ChecklistItem(Record):
    """A requirement in plain words and what this run says of it. `standing`: that of its worst
    statement.
    """

    id: str
    title: str
    standing: Standing
    statements: tuple[Statement, ...]


class Checklist(Record):
    """`checklist.json`: every requirement on model, training and checkpoints, held against
    one run.
    """

    run_id: str
    items: tuple[ChecklistItem, ...]

    def count(self, standing: Standing) -> int:
        """Count the items with this status."""
        return sum(item.standing == standing for item in self.items)
