"""Train the model that is registered again, on more rows than the one that was judged."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.config import Declaration
from schemas.records import ExportedModel, GateReport, Prepared, RunSpec, TrainReport
from schemas.refit import REFIT_SPLITS, Estimate, Refit, RefitPlan, RefitRows
from schemas.seal import write_sealed
from tasks.context import RunContext
from tasks.launch import launch
from tasks.say import say
from training.data.arrays.union import join_splits
from training.engine.sampling import Sampler
from training.run.record import SPEC
from training.serving.export import export_model

FOLDER = "refit"


class Served(NamedTuple):
    """Model to register: the estimate itself, or its refit."""

    trained: TrainReport
    exported: ExportedModel
    refit: Refit | None = None


@task(
    name="refit model",
    description=(
        "train.refit: the judged model trained again on more rows, for the steps that validation"
        " chose; it is not evaluated."
    ),
    tags=["train", "register"],
    cache_policy=NO_CACHE,
)
def refit_model(
    spec: RunSpec,
    prepared: Prepared,
    trained: TrainReport,
    exported: ExportedModel,
    gate: GateReport,
    run: RunContext,
) -> Served:
    """Return the model to register; without `train.refit` or a passed gate, the estimate.

    Raises:
        TrainingError: the training failed; `bulkhead resume` goes on with it.
    """
    if run.declaration.train.refit == "none" or not gate.passed:
        return Served(trained, exported)
    folder = run.run_dir / FOLDER
    rows: RefitRows = "all" if run.declaration.train.refit == "all" else "train_val"
    plan = refit_spec(spec, rows, trained, folder)
    # of its metrics nothing is sent: the server has these steps, of the estimate
    report = launch(folder, run.declaration, run.tracker)
    model = export_model(plan, report.best_checkpoint.file, folder / "model", prepared.split.val)
    refit = Refit(
        rows=rows,
        steps=report.steps,
        splits=REFIT_SPLITS[rows],
        num_rows=plan.arrays.train.rows,
        arrays_sha256=plan.arrays.sha256,
        estimate=Estimate(
            checkpoint_sha256=trained.best_checkpoint.sha256,
            model_sha256=trained.model_sha256,
            program_sha256=exported.program.sha256,
        ),
    )
    say("refit", refit.sentence)
    return Served(report, model, refit)


def refit_spec(spec: RunSpec, rows: RefitRows, trained: TrainReport, folder: Path) -> RunSpec:
    """Join the rows and write the refit's `resolved.json`; the same each time.

    Args:
        spec: the estimate's run.
        rows: the declared ones.
        trained: its result, with the step that validation chose.
        folder: run directory of the refit.
    """
    train = Declaration.model_validate(spec.declaration).train
    sampler = Sampler(spec.arrays.train.rows, train.batch_size, train.seed, train.drop_last)
    plan = RefitPlan(
        rows=rows,
        steps=trained.best_step,
        schedule_steps=train.epochs * sampler.steps_per_epoch,
    )
    arrays = join_splits(spec.arrays, REFIT_SPLITS[rows], folder / "arrays")
    found = spec.model_copy(update={"arrays": arrays, "refit": plan, "prepared_sha256": ""})
    write_sealed(folder / SPEC, found.model_dump_json(indent=1))
    return found
