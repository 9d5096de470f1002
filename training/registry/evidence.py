"""`evidence.json`: links each number of a run to the bytes it came from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from schemas.config import SPLITS, Declaration
from schemas.records import (
    EvaluationReport,
    Evidence,
    ExportedModel,
    GateReport,
    PreflightReport,
    Prepared,
    TrainReport,
    digest_of,
)


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
    trained: TrainReport,
    exported: ExportedModel,
    evaluated: EvaluationReport,
    gate: GateReport | None,
    provenance: dict[str, Any],
) -> Evidence:
    """Collect every digest, verdict, metric and version behind a model."""
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
        checkpoint_sha256=trained.best_checkpoint.sha256,
        model_sha256=trained.model_sha256,
        program_sha256=exported.program.sha256,
        checks=(*prepared.checks.results, *preflight.checks.results),
        metrics=evaluated.metrics,
        gate=gate,
        seeds={"split": getattr(declaration.split, "seed", 0), "train": declaration.train.seed},
        mode=declaration.train.mode,
        promise=trained.promise,
        provenance=provenance,
        members=trained.members,
    )
