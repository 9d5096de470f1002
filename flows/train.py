"""Train: prepare, check the model, run torchrun. Run it with `bulkhead train FILE`."""

from __future__ import annotations

from prefect import flow

from flows.prepare import prepare_data
from schemas.load import load_declaration
from schemas.members import has_members
from schemas.parameters import ConfigPath, Epochs, Model, Overrides, chosen
from schemas.records import GateReport, PreflightReport, Prepared, RunSpec, TrainReport
from schemas.registry_records import Served
from tasks.context import RunContext, await_servers, tracked
from tasks.early import early_ranks, ending_early_ranks, importing_later
from tasks.finish import finish_model
from tasks.launch import train_model
from tasks.members import checked_network, combine_trained, train_members
from tasks.names import run_name
from tasks.preflight import check_model
from tasks.ranks import with_ranks
from tasks.refit import export_refit, plan_refit
from tasks.track import log_checks, log_prepared


@flow(
    name="train",
    flow_run_name=run_name,
    description="Prepare and train; test rows and registry stay untouched.",
    persist_result=False,
)
def train(
    config_path: ConfigPath,
    epochs: Epochs = 0,
    model: Model = "as declared",
    overrides: Overrides = (),
) -> TrainReport:
    """Train the model of a declaration.

    Args:
        config_path: Path of the YAML declaration.
        epochs: At most so many; 0: as declared.
        model: Kind of model.
        overrides: Values that replace the file's, each as path=value, e.g. train.epochs=5.
    """
    declaration = with_ranks(load_declaration(config_path, (*chosen(epochs, model), *overrides)))
    with tracked(declaration, "train") as run, early_ranks(run) as begin:
        prepared = prepare_data(declaration, begin=begin)
        return train_on(prepared, run)[2]


def train_on(prepared: Prepared, run: RunContext) -> tuple[RunSpec, PreflightReport, TrainReport]:
    """Check the model on one batch, train it, or its members, then finish it on val."""
    spec, preflight = check_before(prepared, run)
    with importing_later(), ending_early_ranks():
        if has_members(run.declaration):
            spec, trained = combine_trained(spec, train_members(spec, prepared, run), run)
        else:
            trained = train_model(spec, run.run_dir, run.tracker)
    await_servers(run)
    return spec, preflight, finish_model(spec, trained, run.run_dir, run.tracker)


def check_before(prepared: Prepared, run: RunContext) -> tuple[RunSpec, PreflightReport]:
    """Check the model on one batch; return the inputs of its training program."""
    log_prepared(run, prepared)
    spec = run.spec(prepared)
    preflight = check_model(checked_network(spec))
    log_checks(run, "preflight", preflight.checks)
    return spec, preflight


def refit(
    spec: RunSpec, estimate: Served, gate: GateReport, prepared: Prepared, run: RunContext
) -> Served:
    """Train the model again on the declared rows; without a refit or a passed gate, keep it."""
    if run.declaration.train.refit == "none" or not gate.passed:
        return estimate
    plan = plan_refit(spec, estimate.trained, run.run_dir / "refit")
    refitted = train_model(plan, run.run_dir / "refit", run.tracker)
    return export_refit(plan, refitted, estimate, prepared, run)
