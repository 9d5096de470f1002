"""`result.json`: the outcome of a run, and its best weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from schemas import digest
from schemas.records import TrainReport
from training.checkpoint.checkpoint import Checkpoints, folder_name
from training.checkpoint.state import TrainerState, model_digest
from training.run.record import RESULT, read_part

Status = Literal["finished", "stopped_early", "interrupted"]


def finished_report(run_dir: Path, run_id: str) -> dict[str, Any] | None:
    """Return the report of a finished run whose best weights verify; None if it must continue."""
    try:
        report = read_part(run_dir, RESULT, TrainReport)
        digest.verify(report.best_checkpoint)
    except (OSError, ValueError):
        return None
    return (
        report.model_dump(mode="json")
        if report.run_id == run_id and report.status != "interrupted"
        else None
    )


def best_weights(
    checkpoints: Checkpoints, state: TrainerState, newest: dict[str, Tensor]
) -> dict[str, Any]:
    """Return `best_checkpoint` and `model_sha256` of a TrainReport, from the committed bytes.

    Args:
        checkpoints: checkpoints of the run; the current step is saved.
        state: names the best step.
        newest: use the whole current weights, for a run interrupted before its first evaluation.
    """
    if state.best_step:
        weights, folder = (
            checkpoints.load_best(state.best_step),
            checkpoints.root / folder_name("best", state.best_step),
        )
    else:
        weights, folder = newest, checkpoints.root / folder_name("step", state.step)
    files = [folder / "model.pt", folder / "manifest.json"]  # a sharded checkpoint has no model.pt
    return {
        "best_checkpoint": digest.file_ref(next(f for f in files if f.exists())),
        "model_sha256": model_digest(weights),
    }


def in_words(report: TrainReport, signal: str) -> str:
    """Describe the end of a run in one line; `signal` is what interrupted it."""
    best = "not evaluated as a refit" if report.best_step else "not evaluated yet"
    if report.best_metric is not None:
        best = f"best {report.metric} {report.best_metric:.6g} at step {report.best_step}"
    reason = f" by {signal}" if report.status == "interrupted" else ""
    return (
        f"{report.status.replace('_', ' ')}{reason} at step {report.steps}: {best},"
        f" {report.rows_per_second:.0f} rows/s"
    )
