"""Prepare: turn a URI into arrays for training. Run it with `bulkhead prepare FILE`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from prefect import flow

from schemas.config import Declaration
from schemas.load import load_declaration
from schemas.parameters import ConfigPath, Overrides
from schemas.records import Prepared, SplitTables, ValidatedTable
from tasks.held_out import without_held_out_rows
from tasks.names import run_name
from tasks.poison import poison_test
from tasks.prepared import bind, holding, require_same, require_same_source
from tasks.source import fingerprint_source, validate_table
from tasks.split import assert_disjoint, leakage_checks, split_rows
from tasks.statistics import fit_statistics, materialise_arrays
from tasks.weights import find_weights, without_seen_rows


@flow(
    name="prepare",
    flow_run_name=run_name,
    description=(
        "Validate, split, assert disjoint, fit on train, check leaks, write arrays, poison test."
        " Unchanged steps are reused."
    ),
    persist_result=False,
)
def prepare(config_path: ConfigPath, overrides: Overrides = ()) -> Prepared:
    """Prepare the data of a declaration.

    Args:
        config_path: Path of the YAML declaration.
        overrides: Values that replace the file's, each as path=value, e.g. split.seed=1.
    """
    return prepare_data(load_declaration(config_path, overrides))


def prepare_data(
    declaration: Declaration,
    recorded: Prepared | None = None,
    begin: Callable[[ValidatedTable], None] | None = None,
) -> Prepared:
    """Prepare the data, in the order in which a row passes through.

    With `recorded` data, refuse any difference from them. `begin` starts ranks early.
    """
    started = datetime.now(UTC)
    source = fingerprint_source(declaration)
    require_same_source(source, recorded)
    weights = find_weights(declaration, recorded)
    with holding():
        validated = validate_table(source, declaration)
        if begin:
            begin(validated)
        split = split_rows(validated, declaration)
        split, held_out = without_held_out_rows(split, validated, declaration, recorded)
        split, weights, seen = without_seen_rows(split, validated, declaration, weights)
        disjoint = assert_disjoint(split, validated, declaration)
        # refuses constant features and labels: cheaper than the leak checks
        statistics = fit_statistics(split.train, validated, declaration)
        leakage = leakage_checks(split, validated, declaration)
        arrays = materialise_arrays(split, validated, statistics, declaration)
    poison = poison_test(split, validated, declaration)
    prepared = bind(
        source,
        validated,
        split,
        (disjoint, leakage, held_out, seen, poison),
        statistics,
        arrays,
        started,
    )
    prepared = prepared.model_copy(update={"init": weights})
    return require_same(prepared, recorded) if recorded else prepared


def todays_rows(declaration: Declaration) -> tuple[ValidatedTable, SplitTables]:
    """Return the current rows of the declared source, validated and split; nothing is fitted."""
    validated = validate_table(fingerprint_source(declaration), declaration)
    split = split_rows(validated, declaration)
    assert_disjoint(split, validated, declaration)
    return validated, split
