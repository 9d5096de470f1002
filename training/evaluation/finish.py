"""Finish a trained model on the validation rows: temperature, threshold, margins.

The best weights with their temperature go to `final/model.pt` of the run, the report that names
them to `final/result.json`. `result.json` stays as training wrote it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from schemas import digest
from schemas.calibration_records import Calibration
from schemas.errors import IntegrityError
from schemas.evaluate_config import HALF
from schemas.load import declare
from schemas.records import RunSpec, TrainReport, digest_of
from schemas.seal import write_sealed
from training.checkpoint.state import model_digest
from training.data.arrays.shards import load_arrays
from training.engine.scoring import require_finite
from training.evaluation.decisions import calibrated, choose_thresholds, class_labels
from training.evaluation.margins import group_of, margins_of
from training.models.temperature import KEY, temperature_of
from training.objectives.metrics import predict, targets
from training.objectives.targets import targets_of
from training.run.record import RESULT
from training.run.result_files import FINAL, Final, read_final
from training.serving.reference_network import read_state, reference_network, reference_scores


def finish(run: RunSpec, trained: TrainReport, run_dir: Path) -> TrainReport:
    """Return the report of the finished model; a finished and unchanged folder is taken again.

    Only validation rows are read. Each label keeps its temperature only if its validation log loss
    falls; threshold and margins are chosen on the probabilities after that.

    Args:
        run: The trained run; it declares a temperature, a threshold or intervals.
        trained: Report of its training.
        run_dir: Directory of the run.

    Raises:
        IntegrityError: weights or arrays were changed after they were written.
        NonFiniteError: scores that are not finite.
    """
    earlier = _unchanged(run_dir, trained)
    if earlier is not None:
        return earlier
    weights = digest.verify(trained.best_checkpoint)
    declaration, statistics, val = declare(run.declaration), run.statistics, run.arrays.val
    network = reference_network(run, weights)  # its temperature is 1
    scores = reference_scores(network, val)
    require_finite(scores, val)
    data = load_arrays(val)
    target, weight = targets(declaration, statistics, data["label"]), data.get("weight")
    changes: dict[str, object] = {}
    if temperature_of(network) is not None:
        labels = class_labels(run, scores, target, weight)
        calibration = tuple(calibrated(known) for known in labels if not known.is_empty)
        changes["calibration"] = calibration
        values = _temperatures(run, calibration)
        scores = scores / _divisors(run, values)
        if any(found.kept for found in calibration):
            changes |= _write_weights(weights, values, run_dir)
    if declaration.evaluate.threshold != HALF:
        predictions = predict(declaration, statistics, scores)
        changes["threshold"] = choose_thresholds(run, predictions, target, weight)
    if declaration.evaluate.intervals is not None:
        predictions = predict(declaration, statistics, scores)
        changes["margins"] = margins_of(run, predictions, target, group_of(val))
    report = trained.model_copy(update=changes)
    final = Final(trained_sha256=digest_of(trained), report=report)
    write_sealed(run_dir / FINAL / RESULT, final.model_dump_json(indent=1))
    return report


def _unchanged(run_dir: Path, trained: TrainReport) -> TrainReport | None:
    """Return the report of an earlier end if it belongs to this training and its weights verify."""
    try:
        report = read_final(run_dir, trained)
        digest.verify(report.best_checkpoint)
    except IntegrityError:
        return None
    return report


def _temperatures(run: RunSpec, calibration: tuple[Calibration, ...]) -> list[float]:
    """Return the temperature of each label [L], 1 where none was kept."""
    kept = {found.label: found.temperature for found in calibration if found.kept}
    names = [label.name for label in run.statistics.labels] or [run.spec.label]
    return [kept.get(name, 1.0) for name in names]


def _divisors(run: RunSpec, values: list[float]) -> np.ndarray:
    """Return the temperature of each score: [K] of several labels, else [1]."""
    labels = targets_of(declare(run.declaration), run.statistics)
    return np.repeat(values, [label.width for label in labels] or [1])


def _write_weights(trained: Path, values: list[float], run_dir: Path) -> dict[str, object]:
    """Write the weights with their temperature; return their reference and digest."""
    state = {**read_state(trained), KEY: torch.tensor(values)}
    path = run_dir / FINAL / "model.pt"
    with digest.replacing(path) as file:
        torch.save(state, file)
    return {"best_checkpoint": digest.file_ref(path), "model_sha256": model_digest(state)}
