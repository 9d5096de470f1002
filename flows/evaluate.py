"""Evaluate: score a finished run again. Run it with `bulkhead evaluate RUN_DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from prefect import flow

from schemas.parameters import shown
from schemas.records import EvaluationReport
from tasks.evaluate import evaluate_model
from tasks.names import run_name
from tasks.prepared import FinishedRunDir, read_run

Side = Annotated[Literal["test", "val"], shown("Rows", "Which rows to score.")]


@flow(
    name="evaluate",
    flow_run_name=run_name,
    description=(
        "Score the best weights of a finished run, with confidence intervals and baselines."
    ),
    persist_result=False,
)
def evaluate(run_dir: FinishedRunDir, side: Side = "test") -> EvaluationReport:
    """Score a finished run.

    Args:
        run_dir: Run directory of a finished training.
        side: Which rows to score.
    """
    spec, trained = read_run(Path(run_dir))
    return evaluate_model(spec, trained, Path(run_dir), side)
