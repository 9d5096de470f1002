"""Export the best weights, compare them with the champion, and register a model that passes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.calibration_records import thresholds_of
from schemas.comparison_records import yardstick_figures
from schemas.digest import write_atomic
from schemas.look_records import look_at
from schemas.records import (
    EvaluationReport,
    Evidence,
    ExportedModel,
    GateReport,
    PreflightReport,
    Prepared,
    Registered,
    RunSpec,
    TrainReport,
)
from schemas.registry_records import Served
from schemas.slice_records import slice_figures
from tasks.context import RunContext, await_servers
from tasks.looks import count_keys, count_looks, ledger_path, scored_rows
from tasks.say import say

if TYPE_CHECKING:
    from training.registry.fresh_rows import Fresh
    from training.registry.registry import LoadedModel


@task(
    name="export model",
    description="A self-contained program with normalization inside, proved equal to the network.",
    tags=["register"],
    cache_policy=NO_CACHE,
)
def export(
    spec: RunSpec, trained: TrainReport, prepared: Prepared, run: RunContext
) -> ExportedModel:
    """Write `program.pt2` and `spec.json` in the run directory."""
    from training.serving.export import export_model

    exported = export_model(
        spec,
        trained.best_checkpoint.file,
        run.run_dir / "model",
        prepared.split.val,
        thresholds_of(trained.threshold),
        trained.margins,
    )
    say(
        "export",
        f"{exported.program.num_bytes / 1e6:.1f} MB, equal to the network to {exported.parity:.1g},"
        f" sha256 {exported.program.sha256[:12]}",
    )
    return exported


@task(
    name="judge challenger",
    description=(
        "Thresholds, checks, skill, and the champion on the same rows that neither has learned"
        " from."
    ),
    tags=["register", "check"],
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=5,
    retry_condition_fn=lambda _task, _run, state: isinstance(
        state.result(raise_on_failure=False), OSError
    ),
)
def judge_challenger(
    spec: RunSpec,
    prepared: Prepared,
    preflight: PreflightReport,
    evaluated: EvaluationReport,
    exported: ExportedModel,
    run: RunContext,
) -> GateReport:
    """Return the gate's verdict with one row for each condition."""
    from training.data.split.rolling import rolls
    from training.registry.compare_champion import challenge
    from training.registry.gate import UNCHANGED, judge
    from training.registry.registry import load_champion

    await_servers(run)
    champion = load_champion(spec.name, run.tracker.uri)
    comparison = None
    # a run that registers nothing decides nothing: it uses no fresh rows up
    uses_up = rolls(run.declaration) and run.declaration.register_.enabled
    fresh = fresh_rows_of(run, prepared, exported, champion) if uses_up else None
    if champion:
        weights = (champion.evidence or {}).get("model_sha256")
        test = scored_rows(spec.arrays.test)
        looks = evaluated.looks
        if weights and fresh is None:  # else looks are counted when the fresh rows are known
            looks = count_looks(run.declaration, test, weights, "gate")
        comparison = challenge(
            run.declaration,
            spec,
            prepared.split.test,
            evaluated.model_copy(update={"looks": looks}),
            exported.program.sha256,
            champion,
            fresh,
        )
    everything = np.ones(prepared.split.test.rows, dtype=bool)
    first = fresh(everything).window if fresh is not None and champion is None else None
    checks = (*prepared.checks.results, *preflight.checks.results)
    gate = judge(run.declaration, evaluated, checks, comparison, window=first)
    stays = gate.verdict.startswith(UNCHANGED) or not gate.replaces
    say("gate", gate.verdict, "cached" if stays else "done" if gate.passed else "warn")
    return gate


def fresh_rows_of(
    run: RunContext, prepared: Prepared, exported: ExportedModel, champion: LoadedModel | None
) -> Callable[[np.ndarray], Fresh]:
    """Return the function that chooses the rows of the comparison, and writes them down."""
    from training.registry.fresh_rows import Question, open_window

    asked = Question(prepared.validated, prepared.split, exported.program.sha256, run.run_id)
    metric = run.declaration.register_.metric or run.declaration.metric

    def count(keys: np.ndarray) -> int:
        if champion is None:  # the evaluation has counted its own look
            return 1
        weights = (champion.evidence or {}).get("model_sha256") or champion.program_sha256
        found = look_at(count_keys(run.declaration, keys, weights, "gate"), metric)
        return found.number if found else 1

    path = ledger_path(run.declaration)
    return lambda unseen: open_window(path, run.declaration, asked, champion, unseen, count)


@task(
    name="collect evidence",
    description="Digests, verdicts, figures and versions in one file.",
    tags=["track"],
    cache_policy=NO_CACHE,
)
def collect_evidence(
    run: RunContext,
    prepared: Prepared,
    preflight: PreflightReport,
    served: Served,
    evaluated: EvaluationReport,
    gate: GateReport,
) -> Evidence:
    """Write `evidence.json` in the run directory and MLflow."""
    from training.registry.evidence import build_evidence

    evidence = build_evidence(
        run.run_id, run.declaration, prepared, preflight, served, evaluated, gate, run.provenance
    )
    path = run.run_dir / "evidence.json"
    write_atomic(path, evidence.model_dump_json(indent=1))
    run.tracker.log_artifact(path)
    run.tracker.log_record("evaluation/test.json", evaluated)
    run.tracker.log_metrics(
        {f"test/{name}": interval.value for name, interval in evaluated.metrics.items()}
    )
    run.tracker.log_metrics(
        {
            f"baseline/{kind}/{name}": value
            for kind, found in evaluated.baselines.items()
            for name, value in found.items()
        }
        | yardstick_figures(evaluated.against)
        | slice_figures(evaluated.slices)
    )
    return evidence


@task(
    name="register model",
    description="A new version when the gate passed, loaded back and tried; it has no alias yet.",
    tags=["register"],
    cache_policy=NO_CACHE,
)
def register_model(
    spec: RunSpec,
    prepared: Prepared,
    served: Served,
    evidence: Evidence,
    gate: GateReport,
    run: RunContext,
) -> Registered:
    """Register the model; return the registry's record of it."""
    from training.data.split.seen_rows import keys_of_origins
    from training.data.split.unseen import evaluated_keys, trained_keys
    from training.registry.evidence import split_manifest
    from training.registry.registry import register

    if not run.declaration.register_.enabled or not gate.passed:
        why = gate.verdict if run.declaration.register_.enabled else "register.enabled is false"
        return Registered(
            registered=False, name=spec.name, version=None, uri=None, alias=None, verdict=why
        )
    splits = served.refit.splits if served.refit else ("train", "val")
    own = trained_keys([prepared.split.side(name) for name in splits])
    keys = functools.reduce(np.union1d, keys_of_origins(spec.init), own)
    manifest: dict[str, Any] = split_manifest(prepared)
    registered = register(
        served.exported,
        spec,
        evidence,
        run.tracker,
        trained_on=keys,
        tested_on=evaluated_keys(prepared.split.test),
        split_manifest=manifest,
    )
    say("register", str(registered.uri))
    if served.refit:
        return registered.model_copy(update={"note": served.refit.sentence})
    return registered
