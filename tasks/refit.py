"""Plan and export of a refit: the registered model, trained again on more rows (`train.refit`)."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.calibration_records import thresholds_of
from schemas.config import Declaration
from schemas.records import ExportedModel, Prepared, RunSpec, TrainReport
from schemas.refit import REFIT_SPLITS, Estimate, Refit, RefitPlan, RefitRows
from schemas.registry_records import Served
from schemas.seal import write_sealed
from tasks.context import RunContext
from tasks.say import say
from training.run.record import SPEC


@task(
    name="plan refit",
    description="train.refit: join the rows, and take the number of steps that validation chose.",
    tags=["train", "register"],
    cache_policy=NO_CACHE,
)
def plan_refit(spec: RunSpec, trained: TrainReport, folder: Path) -> RunSpec:
    """Return the refit's run, whose `resolved.json` is written; the same each time."""
    declared = Declaration.model_validate(spec.declaration).train.refit
    rows: RefitRows = "all" if declared == "all" else "train_val"
    return refit_spec(spec, rows, trained, folder)


def refit_spec(spec: RunSpec, rows: RefitRows, trained: TrainReport, folder: Path) -> RunSpec:
    """Join the rows and write the refit's `resolved.json`.

    Args:
        spec: the estimate's run.
        rows: the declared ones.
        trained: its result, with the step that validation chose.
        folder: run directory of the refit.
    """
    from training.data.arrays.union import join_splits
    from training.engine.sampling import Sampler

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


@task(
    name="export refit",
    description="The refitted model as a program, and whose score it has.",
    tags=["register"],
    cache_policy=NO_CACHE,
)
def export_refit(
    plan: RunSpec, refitted: TrainReport, estimate: Served, prepared: Prepared, run: RunContext
) -> Served:
    """Return the model to register in place of the estimate.

    Args:
        plan: the refit's run.
        refitted: its result.
        estimate: the model that was judged.
        prepared: for the rows on which program and network are compared.
        run: the run of both.
    """
    from training.serving.export import export_model

    folder = Path(plan.arrays.directory).parent / "model"
    model = export_model(
        plan,
        refitted.best_checkpoint.file,
        folder,
        prepared.split.val,
        thresholds_of(estimate.trained.threshold),  # no validation rows are left to choose one
        estimate.trained.margins,
    )
    refit = _recorded(plan, estimate.trained, estimate.exported)
    run.tracker.log_record("refit.json", refitted)
    say("refit", refit.sentence)
    return Served(trained=refitted, exported=model, refit=refit)


def _recorded(plan: RunSpec, trained: TrainReport, exported: ExportedModel) -> Refit:
    if plan.refit is None:
        raise ValueError("expected the run of a refit, got one without a plan")
    return Refit(
        rows=plan.refit.rows,
        steps=plan.refit.steps,
        splits=REFIT_SPLITS[plan.refit.rows],
        num_rows=plan.arrays.train.rows,
        arrays_sha256=plan.arrays.sha256,
        estimate=Estimate(
            checkpoint_sha256=trained.best_checkpoint.sha256,
            model_sha256=trained.model_sha256,
            program_sha256=exported.program.sha256,
        ),
    )
