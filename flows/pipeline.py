"""Run every step for one declaration. Run it with `bulkhead run FILE`."""

from __future__ import annotations

from prefect import flow

from flows.prepare import prepare_data
from flows.summary import RunSummary, summarise
from flows.train import refit, train_on
from schemas.errors import ConfigError
from schemas.load import load_declaration
from schemas.parameters import ConfigPath, Epochs, Model, Overrides, Registration, chosen
from schemas.records import Prepared
from schemas.registry_records import Served
from tasks.context import RunContext, tracked
from tasks.early import early_ranks
from tasks.evaluate import evaluate_model
from tasks.names import run_name
from tasks.new_rows import count_new_rows
from tasks.outcome import ended, report_outcome
from tasks.promote import promote_registered
from tasks.ranks import with_ranks
from tasks.register import collect_evidence, export, judge_challenger, register_model
from tasks.report import report_run


@flow(
    name="pipeline",
    flow_run_name=run_name,
    description=(
        "From a table and a declaration to a registered model with its evidence and report."
    ),
    persist_result=False,
)
def pipeline(
    config_path: ConfigPath,
    epochs: Epochs = 0,
    model: Model = "as declared",
    registration: Registration = "as declared",
    overrides: Overrides = (),
) -> RunSummary:
    """Run a declaration end to end.

    Args:
        config_path: Path of the YAML declaration.
        epochs: At most so many; 0: as declared.
        model: Kind of model.
        registration: Whether a model that passes the gate is registered.
        overrides: Values that replace the file's, each as path=value, e.g. train.epochs=5.
    """
    declaration = with_ranks(
        load_declaration(config_path, (*chosen(epochs, model, registration), *overrides))
    )
    if declaration.cv.folds:
        raise ConfigError(
            f"cv.folds is {declaration.cv.folds}: use the flow crossvalidate, or set cv.folds=0 for"
            " the final model"
        )
    if declaration.search and not declaration.search.found:
        raise ConfigError(
            "section search asks for trials first: use the flow search (bulkhead search FILE), or"
            " remove the section"
        )
    with tracked(declaration, "pipeline") as run, early_ranks(run) as begin:
        prepared = prepare_data(declaration, begin=begin)
        summary = complete(prepared, run)
    return ended(summary.outcome, summary.message, summary)


def complete(prepared: Prepared, run: RunContext) -> RunSummary:
    """Run every step from prepared data to the report."""
    new_rows = count_new_rows(prepared, run)
    spec, preflight, trained = train_on(prepared, run)
    evaluated = evaluate_model(spec, trained, run.run_dir, "test")
    exported = export(spec, trained, prepared, run)
    gate = judge_challenger(spec, prepared, preflight, evaluated, exported, run)
    served = refit(spec, Served(trained=trained, exported=exported), gate, prepared, run)
    evidence = collect_evidence(run, prepared, preflight, served, evaluated, gate)
    registered = promote_registered(
        register_model(spec, prepared, served, evidence, gate, run), gate, run
    )
    outcome = report_outcome(registered, gate, run)
    report = report_run(run, prepared, preflight, trained, evaluated, gate, registered, new_rows)
    return summarise(run, prepared, trained, evaluated, registered, outcome, new_rows, report)
