"""Trials of a search: their values, their training programs, and how each of them ends."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.config import Declaration
from schemas.errors import (
    BulkheadError,
    IntegrityError,
    LaunchError,
    LeaseError,
    TrainingError,
    shortened,
)
from schemas.load import explain
from schemas.records import ArraysRef, FileRef, Prepared, RunSpec, SplitArrays
from schemas.seal import write_sealed
from schemas.search_records import SearchPlan, TrialRecord
from schemas.search_space import plain, values_by_path, with_values
from tasks.context import RunContext
from tasks.programs import Program, Show, written
from training.launch.torchrun import stop
from training.run.record import SPEC
from training.search.search_log import evaluations
from training.search.study import best_score, propose, stopped_after

LOOK_SECONDS = 1.0  # between two looks for new evaluations
NO_TEST = SplitArrays(rows=0, arrays={}, ids=FileRef(path="", sha256="", num_bytes=0))


class Proposal:
    """A trial before its training; `declaration` is None where its values do not fit together."""

    def __init__(self, plan: SearchPlan, number: int, declared: Declaration, earlier: Any) -> None:
        self.plan, self.number, self.earlier = plan, number, tuple(earlier)
        values = propose(plan, number, self.earlier)
        self.declaration: Declaration | None = None
        self.cause = ""
        known = values_by_path(declared)
        self.params = values or {path: plain(known[path]) for path in plan.space}
        threads = {} if plan.threads is None else {"train.threads": plan.threads}
        try:
            self.declaration = with_values(declared, {**values, **threads})
        except ValidationError as error:
            self.cause = f"ConfigError: {explain(error).splitlines()[0]}"

    def record(self, **fields: Any) -> TrialRecord:
        """Return the record of this trial with the fields of its end."""
        return TrialRecord(number=self.number, params=self.params, **fields)


def without_test(arrays: ArraysRef) -> ArraysRef:
    """Return the arrays without the test rows, so that a trial cannot even name their files."""
    return arrays.model_copy(update={"test": NO_TEST})


def write_spec(run: RunContext, prepared: Prepared) -> None:
    """Write the inputs of a trial's training program: train and validation rows alone."""
    spec = RunSpec(
        run_id=run.run_id,
        name=run.declaration.name,
        declaration=run.declaration.model_dump(mode="json", by_alias=True),
        spec=prepared.validated.spec,
        statistics=prepared.statistics,
        arrays=without_test(prepared.arrays),
        init=prepared.init,
    )
    write_sealed(run.run_dir / SPEC, spec.model_dump_json(indent=1))


class Trial:
    """A trial's program, which is stopped once the pruner says so."""

    def __init__(self, proposal: Proposal, run: RunContext) -> None:
        self.proposal, self.run = proposal, run
        self.stopped_at: int | None = None
        self.looked_at, self.last = 0, 0.0
        self.program = Program(run.run_dir, run.declaration, run.declaration.train, run.tracker)

    def look(self, show: Show) -> None:
        """Stop the program at its next step boundary where its trial is behind."""
        self.program.look(show)
        if self.stopped_at is None and time.monotonic() - self.last > LOOK_SECONDS:
            self.last = time.monotonic()
            if self._is_behind():
                stop(self.program.process)

    def _is_behind(self) -> bool:
        plan, number = self.proposal.plan, self.proposal.number
        values = evaluations(self.run.run_dir / "metrics.jsonl", plan.metric)
        found = stopped_after(plan, number, values, self.proposal.earlier, self.looked_at)
        self.looked_at, self.stopped_at = len(values), found
        return found is not None

    def end(self) -> TrialRecord:
        """Return the record of the trial; what it did after the stop was due does not count.

        Raises:
            LaunchError: torchrun could not start, or left no cause.
            TrainingError: the program was interrupted from outside.
        """
        self.program.close()
        plan, run_dir = self.proposal.plan, self.run.run_dir
        values = evaluations(run_dir / "metrics.jsonl", plan.metric)
        at = stopped_after(plan, self.proposal.number, values, self.proposal.earlier)
        if at is not None:
            score = best_score(values[:at], plan.greater_is_better)
            return self.proposal.record(state="pruned", values=values[:at], score=score)
        try:
            self.program.end()
        except (LaunchError, LeaseError, IntegrityError):
            raise
        except BulkheadError as error:
            if isinstance(error, TrainingError) and written(run_dir) != self.program.before:
                raise  # it left a result, so it was interrupted and did not fail
            cause = _first_line(error, run_dir)
            return self.proposal.record(state="failed", values=values, cause=cause)
        score = best_score(values, plan.greater_is_better)
        if score is None:
            cause = f"val {plan.metric} is not defined in any evaluation"
            return self.proposal.record(state="failed", values=values, cause=cause)
        return self.proposal.record(state="complete", values=values, score=score)


def _first_line(error: Exception, run_dir: Path) -> str:
    """Return an error as its class and first line; paths are relative to the trial's directory."""
    text = (str(error).splitlines() or [""])[0].replace(f"{run_dir}/", "")
    return shortened(f"{type(error).__name__}: {text}", 500, plain=True)


def drop_checkpoints(run_dir: Path) -> None:
    """Remove the checkpoints of a trial that is in the log."""
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
