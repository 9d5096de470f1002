"""Fit a run of `model.kind: boosting`: what a finished training leaves, without a training loop.

Train and validation rows are read, never test rows. The fit has no step to resume from: cut off, it
starts again from the first tree, and gives the same trees. No file has its name in the run
directory before it is whole, and `result.json` comes last. N rows, K scores of a row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from schemas import digest
from schemas.config import Declaration
from schemas.errors import TrainingError
from schemas.load import declare
from schemas.model_config import BoostingModel
from schemas.records import RunSpec, Statistics, TrainReport
from schemas.seal import remove_sealed, write_sealed
from training.boosting.tree_arrays import Ensemble, ensemble_of, staged_scores, trees_of
from training.boosting.tree_fit import TreeRows, best_iteration, fit_boosting
from training.boosting.tree_inputs import Arrays, matrix, native_columns
from training.checkpoint.checkpoint import Checkpoints
from training.checkpoint.state import TrainerState, environment, identity
from training.data.arrays.shards import load_arrays
from training.engine.batches import as_tensors
from training.engine.result import best_weights, finished_report, in_words
from training.engine.validation import Validation
from training.models.build import build_model
from training.models.encoders import body_shape
from training.models.shape import model_shape, prior_scores
from training.objectives.losses import make_loss, pos_weight
from training.objectives.targets import targets_of
from training.run.lease import Lease
from training.run.metrics_file import Journal, Values
from training.run.record import RESULT

log = logging.getLogger("training")

STAGES = 50  # evaluations of a run, unless train.eval_every says otherwise
SAME = 1e-6  # largest difference from scikit-learn's own scores
LOSSES = {"mse": "squared_error", "mae": "absolute_error"}
PROMISE = (
    "the same trees, to the bit, for the same scikit-learn, machine type, number of threads, data"
    " and seed"
)


def fit_trees(spec: RunSpec, run_dir: Path) -> TrainReport:
    """Fit the declared trees and return `result.json`; a finished run returns its report at once.

    Args:
        spec: `resolved.json`.
        run_dir: gets `config.yaml`, `metrics.jsonl`, the weights below `checkpoints` and
            `result.json`.

    Raises:
        LeaseError: another process writes to this run directory.
        TrainingError: the arrays of trees do not score like scikit-learn, or the metric is not
            defined on validation rows.
        DataError, IntegrityError: the arrays are not valid.
    """
    _model(declare(spec.declaration, "resolved.json"))
    finished = finished_report(run_dir, spec.run_id)
    if finished is not None:
        log.info("%s is finished already", spec.run_id)
        return TrainReport.model_validate(finished)
    lease = Lease(run_dir)
    lease.take(lambda: False)
    try:
        return _Fit(spec, run_dir, lease).run()
    finally:
        lease.release()


class _Fit:
    """One fit, by the holder of the run directory's lease."""

    def __init__(self, spec: RunSpec, run_dir: Path, lease: Lease) -> None:
        self.spec, self.run_dir, self.lease = spec, run_dir, lease
        self.declaration = declare(spec.declaration, "resolved.json")
        self.started = time.monotonic()
        self.train, self.val = (load_arrays(s) for s in (spec.arrays.train, spec.arrays.val))
        self.journal = Journal(run_dir / "metrics.jsonl", lease.check)
        self.state = TrainerState()

    def run(self) -> TrainReport:
        """Fit, compare, evaluate, save."""
        self._announce()
        ensembles = fit_ensembles(self.declaration, self.spec.statistics, self.train, self.val)
        self.state.train_seconds = time.monotonic() - self.started
        network = network_of(self.declaration, self.spec.statistics, ensembles)
        require_same_scores(network, self.spec.statistics, ensembles, self.val)
        self._evaluate(ensembles)
        return self._finish(network, ensembles)

    def _announce(self) -> None:
        self.lease.check()
        digest.remove_leftovers(self.run_dir)
        remove_sealed(self.run_dir / RESULT)
        self.journal.rewind(0, 0)
        digest.write_atomic(
            self.run_dir / "config.yaml",
            yaml.safe_dump(self.spec.declaration, sort_keys=False, allow_unicode=True),
        )
        log.info(
            "%s: boosting on %d train rows, at most %d iterations; promise: %s",
            self.spec.run_id,
            self.spec.arrays.train.rows,
            _model(self.declaration).max_iter,
            PROMISE,
        )

    def _evaluate(self, ensembles: list[Ensemble]) -> None:
        """Write losses and metrics of the growing ensemble; the best stage is the kept one."""
        best = max(e.iterations for e in ensembles)
        last = max(num_iterations(e) for e in ensembles) if len(ensembles) == 1 else best
        every = self.declaration.train.eval_every or -(-last // STAGES)
        stages = sorted({*range(every, last + 1, every), best, last})
        measure = Validation(self.spec, self.declaration, as_tensors(self.train), self.val)
        some = slice(0, measure.train_rows)
        val, train = (
            np.concatenate([staged_scores(e, features, stages) for e in ensembles], axis=2)
            for features in (
                matrix(self.spec.statistics, self.val, scaled=False),
                matrix(self.spec.statistics, self.train, some, scaled=False),
            )
        )
        for stage, of_val, of_train in zip(stages, val, train, strict=True):
            values = measure.measure(of_val, of_train)
            self._note(stage, values | {"train/loss": values["train_eval/loss"]}, stage == best)
        self.state.step = self.state.updates = self.state.evaluated_step = last
        self.state.rows = self.spec.arrays.train.rows * last
        self.state.best_step = best

    def _note(self, stage: int, values: Values, kept: bool) -> None:
        name = self.declaration.metric
        found = values[f"val/{name}"]
        if kept:
            self.state.best_metric = found
        self.journal.at(stage, stage)
        self.journal.values("evaluation", values | {"best": float(kept)})
        log.info(
            "iteration %d: train loss %.5g, val loss %.5g, val %s %s%s",
            stage,
            values["train/loss"],
            values["val/loss"],
            name,
            "not defined" if found is None else f"{found:.5g}",
            " (kept)" if kept else "",
        )

    def _finish(self, network: nn.Module, ensembles: list[Ensemble]) -> TrainReport:
        """Commit the trees, then `result.json`."""
        if self.state.best_metric is None:
            raise TrainingError(
                f"{self.declaration.metric} is not defined on the {self.spec.arrays.val.rows}"
                " validation rows (a single class, or a constant label?); choose another"
                " train.metric, or a split whose validation side has every class"
            )
        facts = identity(self.spec, self.declaration, 1), environment(torch.device("cpu"))
        checkpoints = Checkpoints(
            self.run_dir / "checkpoints",
            *facts,
            self.declaration.train.keep,
            self.journal.event,
            self.lease.check,
        )
        checkpoints.save_best(self.state.best_step, dict(network.state_dict()))
        checkpoints.prune(self.state.best_step)
        self.journal.sync()
        limit = _model(self.declaration).max_iter
        report = TrainReport(
            run_id=self.spec.run_id,
            status=(
                "finished"
                if any(num_iterations(e) >= limit for e in ensembles)
                else "stopped_early"
            ),
            epochs=self.state.step,
            steps=self.state.step,
            best_step=self.state.best_step,
            best_metric=self.state.best_metric,
            metric=self.declaration.metric,
            seconds=time.monotonic() - self.started,
            world_size=1,
            num_parameters=0,
            **best_weights(checkpoints, self.state, {}),
            rows_per_second=self.state.rows_per_second,
            promise=PROMISE,
        )
        self.lease.check()
        write_sealed(self.run_dir / RESULT, report.model_dump_json(indent=1))
        log.info("%s", in_words(report, ""))
        return report


# ------------------------------------------------------------------------------------------- fits


def fit_ensembles(
    declaration: Declaration, statistics: Statistics, train: Arrays, val: Arrays, **limits: Any
) -> list[Ensemble]:
    """Fit one ensemble for each label on its known rows, in the order of the scores.

    Args:
        declaration: of a run with `model.kind: boosting`.
        statistics: fitted on train.
        train: arrays of train rows.
        val: arrays of validation rows; where a label is known in none, train rows stop its fit.
        limits: options of scikit-learn in place of the declared ones.
    """
    config = _model(declaration)
    native = native_columns(statistics, config.max_bins)
    options: dict[str, Any] = {
        "learning_rate": config.learning_rate,
        "max_iter": config.max_iter,
        "n_iter_no_change": config.patience,
        "max_leaf_nodes": config.max_leaf_nodes,
        "min_samples_leaf": config.min_samples_leaf,
        "l2_regularization": config.l2,
        "max_features": config.max_features,
        "max_bins": config.max_bins,
        "random_state": declaration.train.seed,
    } | limits
    features = [matrix(statistics, side, scaled=False) for side in (train, val)]
    found = []
    for at, columns, own, fitted in _labels(declaration, statistics):
        regression = own.task.kind == "regression"
        extra = {"loss": LOSSES[own.loss_kind]} if regression else {}
        known, held = (
            _known(own, fitted, side, x, at) for side, x in zip((train, val), features, strict=True)
        )
        if not len(known.label) or (known.label == known.label[0]).all():
            found.append(Ensemble(None, 0, columns, np.array(prior_scores(own, fitted))))
            continue
        stopping = held if regression or np.isin(held.label, known.label).any() else known
        stopping = stopping if len(stopping.label) else known
        model = fit_boosting(known, stopping, native, regression, **options, **extra)
        found.append(ensemble_of(model, best_iteration(model), columns))
    return found


def _labels(
    declaration: Declaration, statistics: Statistics
) -> Iterator[tuple[int | None, slice, Declaration, Statistics]]:
    """Return place, score columns, declaration and statistics of each label as if it were alone."""
    if not statistics.labels:
        outputs = len(prior_scores(declaration, statistics))
        yield None, slice(0, outputs), declaration, statistics
        return
    for at, target in enumerate(targets_of(declaration, statistics)):
        yield at, target.columns, target.declaration, target.statistics


def _known(
    declaration: Declaration,
    statistics: Statistics,
    arrays: Arrays,
    features: np.ndarray,
    at: int | None,
) -> TreeRows:
    """Return the rows whose label is known, weighted as the declared loss weighs them.

    Args:
        declaration: of this label alone.
        statistics: of this label alone.
        arrays: of a split.
        features: of its rows.
        at: place of the label among several; None for a single one.
    """
    label = arrays["label"] if at is None else arrays["label"][:, at]
    rows = np.arange(len(label)) if at is None else np.flatnonzero(~np.isnan(label))
    label = label[rows]
    if declaration.task.kind != "regression":
        label = label.astype(np.int64)
    given = arrays["weight"][rows] if "weight" in arrays else None
    weight = (
        make_loss(declaration, statistics)
        .row_weights(torch.from_numpy(label), None if given is None else torch.from_numpy(given))
        .numpy()
        .astype(np.float64)
    )
    factor = pos_weight(declaration, statistics) if declaration.task.kind == "binary" else None
    if factor is not None:
        weight = weight * np.where(label == 1, factor, 1.0)
    is_even = given is None and (weight == 1).all()
    return TreeRows(features[rows], label, None if is_even else weight)


def num_iterations(ensemble: Ensemble) -> int:
    """Return the fitted iterations of an ensemble, kept or not."""
    return 0 if ensemble.model is None else int(ensemble.model.n_iter_)


def network_of(
    declaration: Declaration, statistics: Statistics, ensembles: list[Ensemble]
) -> nn.Module:
    """Return the network over the kept trees, in eval mode."""
    network = build_model(declaration, statistics)
    native = native_columns(statistics, _model(declaration).max_bins)
    shape = body_shape(model_shape(declaration, statistics), is_of_trees=True)
    network.load_state_dict(trees_of(ensembles, shape, native))
    return network.eval()


def require_same_scores(
    network: nn.Module, statistics: Statistics, ensembles: list[Ensemble], arrays: Arrays
) -> float:
    """Return the largest difference between the arrays' scores and scikit-learn's own.

    Args:
        network: over the kept trees.
        statistics: fitted on train.
        ensembles: of each label.
        arrays: rows to score, the first thousand of them.

    Raises:
        TrainingError: it reaches 1e-6; this scikit-learn keeps its trees in another form.
    """
    some = slice(0, 1000)
    features = matrix(statistics, arrays, some, scaled=False)
    expected = np.concatenate(
        [staged_scores(e, features, [e.iterations])[0] for e in ensembles], axis=1
    )
    batch = {
        name: torch.from_numpy(np.array(values[some]))
        for name, values in arrays.items()
        if name not in ("label", "weight")
    }
    with torch.inference_mode():
        found = network(batch).numpy()
    difference = float(np.abs(found - expected).max())
    if not difference < SAME:
        raise TrainingError(
            f"the trees as arrays differ from scikit-learn's predictions by {difference:.3g},"
            f" expected less than {SAME:g}; install the scikit-learn of constraints.txt"
        )
    return difference


def _model(declaration: Declaration) -> BoostingModel:
    """Return the section `model`, which is that of boosting here."""
    if not isinstance(declaration.model, BoostingModel):
        raise TrainingError(
            f"expected model.kind boosting, got {declaration.model.kind!r}; other kinds are trained"
            " by training.main"
        )
    return declaration.model
