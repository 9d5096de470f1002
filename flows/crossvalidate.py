"""Cross-validate: train and test the folds of a declaration. Run it with `bulkhead run FILE
cv.folds=5`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from prefect import flow

from flows.train import check_before
from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.fold_records import CrossValidation, FoldResult
from schemas.load import load_declaration
from schemas.parameters import ConfigPath, Epochs, Folds, Model, Overrides, chosen
from schemas.records import (
    PreflightReport,
    Prepared,
    RunSpec,
    SourceRef,
    SplitTables,
    TrainReport,
    ValidatedTable,
)
from tasks.child_runs import fold_runs
from tasks.context import RunContext, tracked
from tasks.crossvalidate import collect_fold, report_folds
from tasks.evaluate import evaluate_model
from tasks.finish import finish_model
from tasks.launch import train_folds
from tasks.names import run_name
from tasks.poison import poison_test
from tasks.prepared import bind
from tasks.ranks import with_ranks
from tasks.source import fingerprint_source, validate_table
from tasks.split import (
    assert_disjoint,
    check_all_folds,
    check_fold,
    leakage_checks,
    split_fold,
    split_rows,
)
from tasks.statistics import fit_statistics, materialise_arrays


@flow(
    name="crossvalidate",
    flow_run_name=run_name,
    description=(
        "Train and test each fold of the train and validation rows; mean, spread and a table."
        " Registers nothing."
    ),
    persist_result=False,
)
def crossvalidate(
    config_path: ConfigPath,
    folds: Folds = 0,
    epochs: Epochs = 0,
    model: Model = "as declared",
    overrides: Overrides = (),
) -> CrossValidation:
    """Cross-validate a declaration.

    Args:
        config_path: Path of the YAML declaration.
        folds: How many; 0: as declared.
        epochs: At most so many; 0: as declared.
        model: Kind of model.
        overrides: Values that replace the file's, each as path=value, e.g. cv.folds=5.
    """
    declaration = with_ranks(
        load_declaration(config_path, (*chosen(epochs, model, folds=folds), *overrides))
    )
    if not declaration.cv.folds:
        raise ConfigError(
            "cv.folds is 0, so there is nothing to cross-validate; set cv.folds, e.g. to 5, or use"
            " the flow pipeline"
        )
    with tracked(declaration, "crossvalidate") as run:
        source = fingerprint_source(declaration)
        validated = validate_table(source, declaration)
        pool = split_rows(validated, declaration)
        assert_disjoint(pool, validated, declaration)
        leakage_checks(pool, validated, declaration)
        prepared = [
            prepare_fold(source, validated, pool, declaration, number)
            for number in range(declaration.cv.folds)
        ]
        coverage = check_all_folds([fold.split for fold in prepared], declaration)
        with fold_runs(run) as runs:
            checked = [
                check_before(fold, of_fold) for fold, of_fold in zip(prepared, runs, strict=True)
            ]
            trained = train_folds(
                [spec for spec, _ in checked], [r.run_dir for r in runs], [r.tracker for r in runs]
            )
            results = [
                score_fold(of_fold, number, fold, spec, preflight, report)
                for number, (of_fold, fold, (spec, preflight), report) in enumerate(
                    zip(runs, prepared, checked, trained, strict=True), start=1
                )
            ]
        return report_folds(run, validated.spec.label, results, coverage)


def prepare_fold(
    source: SourceRef,
    validated: ValidatedTable,
    pool: SplitTables,
    declaration: Declaration,
    number: int,
) -> Prepared:
    """Prepare one fold from rows to arrays: checked, and fitted on its own train rows alone."""
    started = datetime.now(UTC)
    fold = split_fold(validated, pool, declaration, number)
    statistics = fit_statistics(fold.train, validated, declaration)
    checks = check_fold(fold, validated, declaration)
    arrays = materialise_arrays(fold, validated, statistics, declaration)
    poison = poison_test(fold, validated, declaration)
    return bind(source, validated, fold, (checks, poison), statistics, arrays, started)


def score_fold(
    run: RunContext,
    number: int,
    prepared: Prepared,
    spec: RunSpec,
    preflight: PreflightReport,
    trained: TrainReport,
) -> FoldResult:
    """Finish the fold's model on its validation rows, and score its test rows."""
    finished = finish_model(spec, trained, run.run_dir, run.tracker)
    evaluated = evaluate_model(spec, finished, run.run_dir, "test")
    return collect_fold(run, number, prepared, preflight, finished, evaluated)
