"""What is left of a step whose loss or gradient was not finite: one folder a rank, readable with `weights_only`.

RUN_DIR/dumps/step-00000041-rank-0/dump.pt
    step, epoch, rank, lr, cause
    rows int64 [S], row_ids         this rank's share of the window
    losses [M]                      this rank's part of the window's loss by micro-batch
    grad_norms                      parameter name -> norm, before clipping
    rng                             states of all random streams when the step failed
    seed                            what the window's own stream was derived from
    tensors                         the tensors that are not finite, and the inputs of the micro-batches they came from
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from schemas.digest import fsync_folder
from schemas.errors import first_few
from schemas.records import SplitArrays
from training.batches import Window
from training.step import Trace


def row_ids(side: SplitArrays, rows: Iterable[int]) -> list[str]:
    """The ids of rows of the arrays, in the order asked for."""
    column = pq.read_table(side.ids.path, columns=["__id"]).column(0)
    return [str(value) for value in column.take(list(rows)).to_pylist()]


def offending_tensors(window: Window, trace: Trace) -> dict[str, Tensor]:
    """Everything of this rank's step that is not finite, by name, with the inputs of the micro-batches concerned."""
    found: dict[str, Tensor] = {}
    for index, (begin, end) in enumerate(trace.spans):
        values = {"scores": trace.scores[index], "row_losses": trace.row_losses[index]}
        wrong = {f"micro_batch_{index}/{name}": value for name, value in values.items() if not bool(torch.isfinite(value).all())}
        if wrong:
            inputs = {**window.batch, "label": window.label, "coefficient": window.coefficient}
            found.update(wrong)
            found.update({f"micro_batch_{index}/{name}": value[begin:end] for name, value in inputs.items()})
    found.update({f"gradient/{name}": value for name, value in trace.gradients.items() if not bool(torch.isfinite(value).all())})
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def examine(window: Window, trace: Trace, side: SplitArrays) -> dict[str, Any]:
    """What a dump says of this rank's window; `cause` is empty where everything of its own is finite."""
    tensors = offending_tensors(window, trace)
    losses = [float(loss) for loss in trace.losses]
    rows = window.own_rows
    return {
        "cause": _describe(tensors, losses),
        "rows": rows.clone(),
        "row_ids": row_ids(side, rows.tolist()),
        "losses": losses,
        "grad_norms": trace.grad_norms(),
        "tensors": tensors,
    }


def _describe(tensors: dict[str, Tensor], losses: list[float]) -> str:
    wrong = [value for value in losses if not math.isfinite(value)]
    gradients = [name.removeprefix("gradient/") for name in tensors if name.startswith("gradient/")]
    words = [f"loss is {wrong[0]}"] if wrong else []
    words += [f"gradient is not finite in {len(gradients)} parameters (first: {first_few(gradients)})"] if gradients else []
    return " and ".join(words)


def write_dump(run_dir: Path, content: dict[str, Any]) -> Path:
    """Write one rank's dump durably; its folder."""
    folder = run_dir / "dumps" / f"step-{content['step']:08d}-rank-{content['rank']}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "dump.pt", "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)
    return folder
