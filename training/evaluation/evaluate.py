"""Score the best weights once on one split: metrics, their uncertainty, and comparisons.

Scores come from the network that is registered (float64 on the CPU if the model allows it), so the
registered model gives exactly the evaluated predictions. N rows, C classes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from schemas import digest
from schemas.calibration_records import Calibration, Margin
from schemas.config import Declaration, SplitName
from schemas.evaluate_config import HALF
from schemas.load import declare
from schemas.look_records import Looks, with_bounds
from schemas.records import (
    EvaluationReport,
    FileRef,
    Interval,
    RunSpec,
    SampleReport,
    SplitArrays,
    Statistics,
    TableRef,
)
from training.data.arrays.shards import load_arrays
from training.engine.scoring import require_finite
from training.engine.token_scoring import score_documents
from training.evaluation.baselines import Skill, baseline_predictions, standings, verdict
from training.evaluation.by_group import clusters_of, group_table
from training.evaluation.closer import look_closer
from training.evaluation.decisions import Decides, baseline_decisions, calibration_of
from training.evaluation.ensembling import member_spread
from training.evaluation.evaluate_text import read_documents, text_facts, write_losses
from training.evaluation.label_evaluation import (
    base_rates,
    given_values,
    label_table,
    numbers,
    prediction_columns,
)
from training.evaluation.label_verdict import add_labels
from training.evaluation.margins import coverage_of
from training.evaluation.next_step import add_unfinished
from training.evaluation.permutation import permutation_chance, too_few_units
from training.evaluation.row_ids import label_names, read_ids
from training.evaluation.slice_scores import Rows
from training.evaluation.text_samples import make_samples
from training.evaluation.yardsticks import Own, measure_yardsticks
from training.objectives.bootstrap import intervals, paired_difference
from training.objectives.label_metrics import undefined_note
from training.objectives.measures import declared_measures
from training.objectives.metrics import (
    compute_predictions,
    predict,
    predicted_class,
    targets,
)
from training.objectives.targets import Targets, decided, targets_of
from training.serving.reference_network import reference_network, reference_scores


def evaluate(
    run: RunSpec,
    weights: Path | FileRef,
    side: SplitName,
    out_dir: Path,
    thresholds: Mapping[str, float] | None = None,
    training_note: str = "",
    margins: Sequence[Margin] = (),
    looks: Looks = (),
    table: TableRef | None = None,
) -> EvaluationReport:
    """Evaluate one split: metrics with bootstrap intervals, next to baselines and the base rate.

    Every row is scored exactly once. It writes `predictions.parquet` (ids, label as given,
    prediction, probabilities) and `evaluation.json`. Baselines, yardsticks and verdict are computed
    for test alone: boosting stops early on val and is fitted on train.

    Args:
        run: The trained run.
        weights: File with the network's state dict; a reference is verified first.
        side: Split to score.
        out_dir: Created; files of an earlier evaluation are replaced.
        thresholds: Label to threshold, where one is declared.
        training_note: Of `next_step.unfinished`; goes to a verdict that it may explain.
        margins: Of validation rows, where intervals are declared.
        looks: At these rows, counted; get their bounds here.
        table: That the arrays of the split were made from; without it there are no slices.

    Raises:
        IntegrityError: weights or arrays were changed after they were written.
        NonFiniteError: scores that are not finite.
    """
    declaration, statistics = declare(run.declaration), run.statistics
    weights = digest.verify(weights) if isinstance(weights, FileRef) else weights
    network = reference_network(run, weights)
    labels, threshold = decided(targets_of(declaration, statistics), thresholds or {})
    scored = _scored(run, declaration, network, run.arrays.side(side), (labels, threshold))
    predictions, target, ids, weight = scored.predictions, scored.target, scored.ids, scored.weight
    group = None if ids["__group"].isna().all() else ids["__group"].to_numpy()
    clusters, note = clusters_of(group)
    resampling = _resampling(declaration, clusters, weight, labels, threshold)
    metrics = intervals(declaration, predictions, target, **resampling)
    tested = side == "test"
    others = baseline_predictions(declaration, statistics, run.arrays, side) if tested else {}
    rules = baseline_decisions(run, bool(thresholds)) if others else {}
    compared = _compare_all(declaration, others, rules, scored, metrics, resampling, group)
    rows = Rows(declaration, predictions, target, resampling)
    compared = look_closer(run, network, rows, ids, table, add_unfinished(compared, training_note))
    own = Own(predictions, target, metrics, resampling, compared.get("too_few", ""))
    report = EvaluationReport(
        side=side,
        rows=len(ids),
        metrics=metrics,
        base_rate=_base_rate(statistics, labels, scored),
        resampled_by="row" if clusters is None else "group",
        interval_note=note,
        predictions=scored.write(out_dir / "predictions.parquet"),
        samples=_samples(run, declaration, network) if tested else None,
        by_group=group_table(declaration, group, predictions, target, weight, labels, threshold),
        by_label=label_table(labels, predictions, target, others, resampling),
        label_note=undefined_note(declaration.task.kind, predictions, target, weight, labels),
        calibration=scored.calibration,
        thresholds=dict(thresholds or {}),
        coverage=coverage_of(run, margins, predictions, target, group) if margins else (),
        against=measure_yardsticks(run, own, bool(thresholds)) if others else (),
        looks=with_bounds(looks, metrics, declaration.evaluate.confidence),
        **compared,
    )
    digest.write_atomic(out_dir / "evaluation.json", report.model_dump_json(indent=1))
    return report


def _resampling(
    declaration: Declaration,
    clusters: np.ndarray | None,
    weight: np.ndarray | None,
    labels: Targets,
    threshold: float,
) -> dict[str, Any]:
    return {
        "labels": labels,
        "threshold": threshold,
        "group": clusters,
        "weight": weight,
        "resamples": declaration.evaluate.bootstrap,
        "confidence": declaration.evaluate.confidence,
        "seed": declaration.train.seed,
    }


def _samples(run: RunSpec, declaration: Declaration, network: nn.Module) -> SampleReport | None:
    """Generate texts of a language model, if declared."""
    tokens, config = run.statistics.tokens, declaration.tokens
    if tokens is None or config is None or not config.samples:
        return None
    return make_samples(network, tokens, config, declaration.train.seed, run.arrays.train)


class Scored(NamedTuple):
    """One prediction, target, id and weight per row (or document), and their form in a file."""

    predictions: np.ndarray
    target: np.ndarray
    ids: pd.DataFrame
    weight: np.ndarray | None
    write: Callable[[Path], FileRef]
    calibration: tuple[Calibration, ...] = ()
    spread: np.ndarray | None = None  # of an ensemble's members


def _scored(
    run: RunSpec,
    declaration: Declaration,
    network: nn.Module,
    arrays: SplitArrays,
    decides: Decides,
) -> Scored:
    """Score rows or documents."""
    if run.statistics.tokens:
        return _score_documents(network, arrays)
    return _score_rows(run, declaration, network, arrays, decides)


def _score_rows(
    run: RunSpec,
    declaration: Declaration,
    network: nn.Module,
    arrays: SplitArrays,
    decides: Decides,
) -> Scored:
    statistics = run.statistics
    scores = reference_scores(network, arrays)
    require_finite(scores, arrays)
    predictions, data, ids = (
        predict(declaration, statistics, scores),
        load_arrays(arrays),
        read_ids(arrays, statistics),
    )
    target, weight = given_targets(declaration, statistics, data["label"], ids), data.get("weight")
    spread = member_spread(network, declaration, statistics, arrays)
    return Scored(
        predictions,
        target,
        ids,
        weight,
        lambda path: write_predictions(path, statistics, ids, predictions, *decides, spread),
        calibration_of(run, network, scores, target, weight),
        spread,
    )


def _score_documents(network: nn.Module, arrays: SplitArrays) -> Scored:
    scored, ids = score_documents(network, arrays), read_documents(arrays)
    return Scored(
        scored.predictions,
        scored.targets,
        ids,
        scored.weight,
        lambda path: write_losses(path, ids, scored),
    )


def _base_rate(statistics: Statistics, labels: Targets, scored: Scored) -> dict[str, float]:
    """Return the facts of labels or documents that need no model."""
    if statistics.tokens:
        return text_facts(scored.ids)
    return (
        base_rates(labels, scored.target, scored.weight)
        if labels
        else base_rate(statistics, scored.target, scored.weight)
    )


def given_targets(
    declaration: Declaration, statistics: Statistics, label: np.ndarray, given: pd.DataFrame
) -> np.ndarray:
    """Return class indices, or the values as given; for several labels [N, L].

    The stored label is scaled and rounded to float32, so it is not used.

    Args:
        declaration: the task.
        statistics: statistics of the labels.
        label: the label array.
        given: the same rows with the columns of `label_names`.
    """
    if statistics.labels:
        return given_values(targets_of(declaration, statistics), label, given)
    if declaration.task.kind != "regression":
        return targets(declaration, statistics, label)
    return numbers(given["label"])


def _compare_all(
    declaration: Declaration,
    others: dict[str, np.ndarray],
    rules: dict[str, Decides],
    scored: Scored,
    metrics: dict[str, Interval],
    resampling: dict[str, Any],
    group: np.ndarray | None,
) -> dict[str, Any]:
    """Compare with baselines; the verdict names labels that nothing could score."""
    found, target, task = scored.predictions, scored.target, declaration.task.kind
    compared = _compare(declaration, others, rules, scored, metrics, resampling, group)
    left_out = undefined_note(task, found, target, scored.weight, resampling["labels"])
    base = others.get("constant")
    return add_labels(declaration, compared, left_out, found, base, target, metrics, resampling)


def _compare(
    declaration: Declaration,
    others: dict[str, np.ndarray],
    rules: dict[str, Decides],
    scored: Scored,
    metrics: dict[str, Interval],
    resampling: dict[str, Any],
    group: np.ndarray | None,
) -> dict[str, Any]:
    """Compare with baselines on the same rows by paired differences and permutations; report
    fields.
    """
    if not others:
        return {}
    predictions, target, metric = scored.predictions, scored.target, declaration.metric
    own = {name: resampling[name] for name in ("weight", "labels", "seed", "threshold")}
    skill = own | {"group": group}
    rules = dict.fromkeys(others, (own["labels"], own["threshold"])) | rules
    task, declared = declaration.task.kind, declared_measures(declaration)
    baselines = {
        name: compute_predictions(task, p, target, scored.weight, *rules[name], declared)
        for name, p in others.items()
    }
    differences = {
        name: paired_difference(
            declaration, metric, predictions, p, target, **resampling, other_decides=rules[name]
        )
        for name, p in others.items()
    }
    too_few = too_few_units(declaration, target, group)
    no_width = any(found.low is None for found in differences.values())
    known = Skill(
        (
            None
            if too_few
            else permutation_chance(declaration, predictions, target, **skill, always=no_width)
        ),
        too_few,
    )
    has_skill, sentence = verdict(declaration, metrics, baselines, differences, known)
    standing = standings(declaration, metrics, baselines, differences, known)
    return {
        "baselines": baselines,
        "differences": differences,
        "verdict": sentence,
        "has_skill": has_skill,
        "standing": standing,
        **known._asdict(),
    }


def base_rate(
    statistics: Statistics, target: np.ndarray, weight: np.ndarray | None
) -> dict[str, float]:
    """Return the weighted fraction of each class in the scored rows, or the label's mean and sd."""
    if statistics.classes:
        counts = np.bincount(target, weights=weight, minlength=len(statistics.classes))
        return {
            str(name): float(n / counts.sum())
            for name, n in zip(statistics.classes, counts, strict=True)
        }
    mean = float(np.average(target, weights=weight))
    return {
        "mean": mean,
        "standard deviation": float(np.sqrt(np.average((target - mean) ** 2, weights=weight))),
    }


def write_predictions(
    path: Path,
    statistics: Statistics,
    ids: pd.DataFrame,
    predictions: np.ndarray,
    labels: Targets = (),
    threshold: float = HALF,
    spread: np.ndarray | None = None,
) -> FileRef:
    """Write `__id`, `__group`, `label`, `prediction` and, for classes, `probability_<class>`.

    `spread` [N] of an ensemble's members becomes the column `uncertainty`.

    The Parquet file is written completely or not at all; see EvaluationReport.
    """
    columns = {name: pa.array(ids[name]) for name in ("__id", "__group", *label_names(statistics))}
    if labels:
        columns |= prediction_columns(labels, predictions)
    elif statistics.classes:
        columns["prediction"] = pa.array(list(statistics.classes)).take(
            pa.array(predicted_class(predictions, threshold))
        )
        columns |= {
            f"probability_{name}": pa.array(predictions[:, i])
            for i, name in enumerate(statistics.classes)
        }
    else:
        columns["prediction"] = pa.array(predictions)
    if spread is not None:
        columns["uncertainty"] = pa.array(spread)
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return digest.write_atomic(path, buffer.getvalue())
