"""`evidence.json`: links each number of a run to the bytes it came from."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.config import SPLITS, Declaration
from schemas.init_records import InitialWeights
from schemas.records import (
    EvaluationReport,
    Evidence,
    GateReport,
    PreflightReport,
    Prepared,
    digest_of,
)
from schemas.registry_records import Served


def split_manifest(prepared: Prepared) -> dict[str, Any]:
    """Describe how the splits were made, with digest, rows and summary of each; without paths."""
    split = prepared.split
    sides = {
        s: {
            "sha256": split.side(s).file.sha256,
            "rows": split.side(s).rows,
            **split.summary.get(s, {}),
        }
        for s in SPLITS
    }
    ledgers = {
        f"{name}_sha256": ref.sha256 if ref else None
        for name, ref in (("ledger", split.ledger), ("group_ledger", split.group_ledger))
    }
    return {
        "strategy": split.strategy,
        "plan": split.plan,
        "excluded": split.excluded,
        **ledgers,
        "sides": sides,
    }


def build_evidence(
    run_id: str,
    declaration: Declaration,
    prepared: Prepared,
    preflight: PreflightReport,
    served: Served,
    evaluated: EvaluationReport,
    gate: GateReport | None,
    provenance: dict[str, Any],
) -> Evidence:
    """Collect every digest, verdict, metric and version behind a model.

    Args:
        run_id, declaration, prepared: of the run, and its data.
        preflight: checks before training.
        served: the model to register.
        evaluated: on test; of the estimate, if the model is its refit.
        gate: verdict on the estimate.
        provenance: code, libraries and machine.
    """
    return Evidence(
        run_id=run_id,
        name=declaration.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        config_sha256=digest_of(declaration),
        source_sha256=prepared.source.sha256,
        validated_sha256=prepared.validated.table.file.sha256,
        split=split_manifest(prepared),
        statistics_sha256=digest_of(prepared.statistics),
        arrays_sha256=prepared.arrays.sha256,
        checkpoint_sha256=served.trained.best_checkpoint.sha256,
        model_sha256=served.trained.model_sha256,
        program_sha256=served.exported.program.sha256,
        checks=(*prepared.checks.results, *preflight.checks.results),
        metrics=evaluated.metrics,
        gate=gate,
        seeds={"split": getattr(declaration.split, "seed", 0), "train": declaration.train.seed},
        mode=declaration.train.mode,
        promise=served.trained.promise,
        provenance=provenance,
        search=searched(declaration, evaluated),
        thresholds=evaluated.thresholds,
        margins=served.trained.margins,
        against=evaluated.against,
        looks=evaluated.looks,
        slices=evaluated.slices,
        refit=served.refit,
        members=served.trained.members,
        init=started_from(prepared.init),
    )


def started_from(weights: InitialWeights | None) -> dict[str, Any] | None:
    """Return which weights the training started from and what they were trained on, without paths.

    `trained_on` is empty of a file, of which nothing is known. Without `model.init`: None.
    """
    if weights is None:
        return None
    origins = [
        origin.model_dump(
            mode="json", include={"run_id", "name", "version", "source_sha256", "train_sha256"}
        )
        for origin in weights.origins
    ]
    is_path = not weights.resolved.startswith("models:/")
    return {
        "from": Path(weights.resolved).name if is_path else weights.resolved,
        "given": Path(weights.given).name if is_path else weights.given,
        "sha256": weights.sha256,
        "trained_on": origins,
        "seen_rows": None if weights.seen is None else weights.seen.model_dump(mode="json"),
    }


def searched(declaration: Declaration, evaluated: EvaluationReport) -> dict[str, Any] | None:
    """Return what a search found, with the test score and how far validation lies above it.

    None if the values were not searched. A gap above 0: the validation score is the better one.
    """
    found = declaration.search.found if declaration.search else None
    if found is None:
        return None
    interval = evaluated.metrics.get(found.metric)
    test = interval.value if interval else None
    sign = 1.0 if declaration.metrics[found.metric] else -1.0
    gap = None if test is None else sign * (found.score - test)
    return {**found.model_dump(mode="json"), "test_score": test, "gap": gap}
