"""Dump of a step whose loss or gradient was not finite: one file per rank, for `weights_only`.

RUN_DIR/dumps/step-00000041-rank-0/dump.pt
    step, epoch, rank, world_size, lr, cause
    window                          this rank's share whole: every field of `Window`, tensors on the CPU
    rows int64 [S], row_ids         of the share; wrong_row_ids: those that are not finite
    seed, loss_scale, threads, device
                                    with which `bulkhead replay` makes the step again; the scale is
                                    null without fp16
    spans, losses [M]               by micro-batch: its part of the share, and of the window's loss
    grad_norms                      parameter name -> norm, before clipping
    rng                             states of all random streams when the step failed
    tensors                         the scores, row losses and gradients that are not finite
"""  # noqa: E501

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from schemas.digest import fsync_folder
from schemas.errors import IntegrityError, first_few
from schemas.records import SplitArrays
from training.checkpoint import randomness as keys
from training.engine.batches import Window
from training.engine.step import Step, Trace

DUMPS = "dumps"
NAME = re.compile(r"step-(\d{8,})-rank-(\d+)")


def row_ids(side: SplitArrays, rows: Iterable[int]) -> list[str]:
    """Return the ids of rows of the arrays, in the given order."""
    column = pq.read_table(side.ids.path, columns=["__id"]).column(0)
    return [str(value) for value in column.take(list(rows)).to_pylist()]


def offending_tensors(trace: Trace) -> dict[str, Tensor]:
    """Return every tensor of this rank's step that is not finite, by name."""
    found = {f"micro_batch_{index}/scores": value for index, value in enumerate(trace.scores)}
    found |= {
        f"micro_batch_{index}/row_losses": value for index, value in enumerate(trace.row_losses)
    }
    found |= {f"gradient/{name}": value for name, value in trace.gradients.items()}
    return {
        name: _kept(value) for name, value in found.items() if not bool(torch.isfinite(value).all())
    }


def wrong_rows(trace: Trace) -> list[int]:
    """Return the rows of the share whose scores or loss are not finite."""
    found: set[int] = set()
    for (begin, _), values in (
        (span, tensor)
        for tensors in (trace.scores, trace.row_losses)
        for span, tensor in zip(trace.spans, tensors, strict=True)
    ):
        wrong = ~torch.isfinite(values).reshape(len(values), -1).all(dim=1)
        found |= {begin + row for row in wrong.nonzero().flatten().tolist()}
    return sorted(found)


def contents(step: Step, window: Window, rate: float, side: SplitArrays) -> dict[str, Any]:
    """Return the dump of this rank's window; `cause` is empty if all its values are finite.

    Args:
        step: right after computing its gradients.
        window: window of these gradients.
        rate: learning rate of the step.
        side: the train arrays, for ids.
    """
    tensors, rows = offending_tensors(step.trace), window.own_rows
    ids = row_ids(side, rows.tolist())
    losses = [float(loss) for loss in step.trace.losses]
    return {
        "step": window.step + 1,
        "epoch": window.epoch + 1,
        "rank": step.parallel.rank,
        "world_size": step.parallel.world_size,
        "lr": rate,
        "cause": _describe(tensors, losses),
        "window": {name: _kept(value) for name, value in vars(window).items()},
        "rows": rows.clone(),
        "row_ids": ids,
        "wrong_row_ids": [ids[row] for row in wrong_rows(step.trace) if row < len(ids)],
        "seed": step.train.seed,
        "loss_scale": step.scaler.get_scale() if step.scaler.is_enabled() else None,
        "threads": torch.get_num_threads(),
        "device": step.parallel.device.type,
        "spans": list(step.trace.spans),
        "losses": losses,
        "grad_norms": step.trace.grad_norms(),
        "rng": keys.capture(step.parallel.device),
        "tensors": tensors,
    }


def _kept(value: Any) -> Any:
    """Copy a tensor or a dictionary of tensors to the CPU; return other values unchanged."""
    if isinstance(value, dict):
        return {name: _kept(inner) for name, inner in value.items()}
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def _describe(tensors: dict[str, Tensor], losses: list[float]) -> str:
    wrong = [value for value in losses if not math.isfinite(value)]
    gradients = [name.removeprefix("gradient/") for name in tensors if name.startswith("gradient/")]
    words = [f"loss is {wrong[0]}"] if wrong else []
    words += (
        [f"gradient is not finite in {len(gradients)} parameters (first: {first_few(gradients)})"]
        if gradients
        else []
    )
    return " and ".join(words)


def write_dump(run_dir: Path, content: dict[str, Any]) -> Path:
    """Write one rank's dump durably; return its folder."""
    folder = run_dir / DUMPS / f"step-{content['step']:08d}-rank-{content['rank']}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "dump.pt", "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)
    return folder


def steps_dumped(run_dir: Path) -> list[int]:
    """List the steps of a run that have dumps, in order."""
    return sorted(
        {
            int(match[1])
            for path in (run_dir / DUMPS).glob("step-*")
            if (match := NAME.fullmatch(path.name))
        }
    )


def read_dumps(run_dir: Path, step: int) -> list[dict[str, Any]]:
    """Return the dumps of a step, by rank.

    Raises:
        IntegrityError: a dump cannot be read, or a rank's dump is missing.
    """
    found = {}
    for path in sorted((run_dir / DUMPS).glob(f"step-{step:08d}-rank-*/dump.pt")):
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # the unpickler can raise any error
            raise IntegrityError(
                f"{path}: cannot be read as a dump ({str(error).splitlines()[0]}); it was cut off"
                " or changed"
            ) from error
        found[content["rank"]] = content
    ranks = next(iter(found.values()))["world_size"] if found else 1
    missing = sorted(set(range(ranks)) - found.keys())
    if missing:
        raise IntegrityError(
            f"{run_dir / DUMPS}: expected a dump of step {step} from each of {ranks} ranks, but"
            f" none is there from {missing}"
        )
    return [found[rank] for rank in range(ranks)]
