"""Yardsticks: estimators of `evaluate.against`, fitted on the train rows and compared on test.

They are not registered, and the gate does not read them. N rows, C classes.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from schemas.calibration_records import thresholds_of
from schemas.comparison_records import Interval, YardstickResult
from schemas.config import Declaration
from schemas.errors import DataError
from schemas.evaluate_config import HALF
from schemas.load import declare
from schemas.records import RunSpec
from schemas.yardstick_config import YardstickConfig
from training.boosting.tree_inputs import Arrays
from training.data.arrays.shards import load_arrays
from training.evaluation.baselines import Skill, standings
from training.evaluation.decisions import Decides, choose_thresholds
from training.evaluation.feature_frame import feature_frame
from training.evaluation.predictions import MAX_TREE_VALUES, first_rows, predictor
from training.evaluation.yardstick_class import build_estimator, first_line
from training.objectives.bootstrap import paired_difference
from training.objectives.measures import declared_measures
from training.objectives.metrics import compute_predictions, targets
from training.run.provenance import masked


class Fitted(NamedTuple):
    """A fitted estimator: `predict` gives probabilities [N, C] or values [N] in the label's unit.

    `rows`: train rows of the fit, which took `seconds`. `note`: what it could not use.
    """

    predict: Callable[[Arrays], np.ndarray]
    rows: int
    seconds: float
    note: str


class Own(NamedTuple):
    """The model on the test rows: predictions like `metrics.predict`, target [N], metrics.

    `resampling`: options of `paired_difference`. `too_few`: why so few rows can show no difference.
    """

    predictions: np.ndarray
    target: np.ndarray
    metrics: dict[str, Interval]
    resampling: dict[str, Any]
    too_few: str


def measure_yardsticks(run: RunSpec, own: Own, decides: bool) -> tuple[YardstickResult, ...]:
    """Fit each declared yardstick on the train rows, and compare the model with it on test.

    One that fails has a line on why instead of figures; the others and the run go on.

    Args:
        run: The trained run.
        own: The model on the test rows.
        decides: A threshold is declared: each yardstick gets its own on the validation rows.
    """
    declaration = declare(run.declaration)
    against = declaration.evaluate.against
    return tuple(_measured(run, declaration, yardstick, own, decides) for yardstick in against)


def _measured(
    run: RunSpec, declaration: Declaration, yardstick: YardstickConfig, own: Own, decides: bool
) -> YardstickResult:
    # read outside of the try: arrays that were changed are no fault of the estimator
    train, val, test = (load_arrays(run.arrays.side(name)) for name in ("train", "val", "test"))
    result = YardstickResult(name=yardstick.title, path=yardstick.path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an estimator that the user chose
            fitted = fit_yardstick(run, yardstick, train)
            found = _checked(declaration, fitted.predict(test), own.predictions.shape)
            rule = _rule(run, declaration, fitted, val) if decides else ((), HALF)
    except Exception as error:  # any estimator, any error: the run does not depend on it
        problem = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
        return result.model_copy(update={"problem": masked(problem)})
    figures = _figures(declaration, found, rule, own)
    facts = {name: getattr(fitted, name) for name in ("rows", "seconds", "note")}
    return result.model_copy(update={**figures, **facts})


def fit_yardstick(run: RunSpec, yardstick: YardstickConfig, train: Arrays) -> Fitted:
    """Fit an estimator on the `feature_frame` of train rows, with their weights if fit takes any.

    Labels are class indices or scaled values, as the model learns them. The arrays are copied, so
    that no estimator can change them.

    Raises:
        ConfigError: the class is not allowed or unusable.
    """
    declaration, statistics = declare(run.declaration), run.statistics
    estimator = build_estimator(yardstick, declaration)
    some = first_rows(statistics, MAX_TREE_VALUES)
    inputs, label = feature_frame(statistics, train, some), np.array(train["label"][some])
    weights, notes = {}, []
    if "weight" in train:
        if "sample_weight" in inspect.signature(estimator.fit).parameters:
            weights["sample_weight"] = np.array(train["weight"][some])
        else:
            notes.append("its fit takes no sample weights")
    if len(label) < len(train["label"]):
        notes.append(f"fitted on the first {len(label):,} of {len(train['label']):,} train rows")
    started = time.perf_counter()
    estimator.fit(inputs, label, **weights)
    seconds = time.perf_counter() - started
    predict = predictor(declaration, statistics, estimator, feature_frame)
    return Fitted(predict, len(label), seconds, "; ".join(notes))


def _checked(declaration: Declaration, found: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the predictions in float64.

    Raises:
        DataError: another shape than that of the model's, or values that cannot be predictions.
    """
    if found.shape != shape:
        raise DataError(f"expected predictions of shape {shape}, got {found.shape}")
    if not np.isfinite(found).all() or (declaration.task.kind != "regression" and found.min() < 0):
        raise DataError("expected finite predictions and no probability below 0")
    return np.asarray(found, dtype=np.float64)


def _rule(run: RunSpec, declaration: Declaration, fitted: Fitted, val: Arrays) -> Decides:
    """Choose the yardstick's threshold by the declared rule on the validation rows."""
    target = targets(declaration, run.statistics, val["label"])
    chosen = choose_thresholds(run, fitted.predict(val), target, val.get("weight"))
    return (), next(iter(thresholds_of(chosen).values()))


def _figures(
    declaration: Declaration, found: np.ndarray, rule: Decides, own: Own
) -> dict[str, Any]:
    """Compute metrics, paired differences, and where the model stands to the yardstick."""
    task, metric, weight = declaration.task.kind, declaration.metric, own.resampling["weight"]
    declared = declared_measures(declaration)
    metrics = compute_predictions(task, found, own.target, weight, *rule, declared)
    differences = {
        name: paired_difference(
            declaration,
            name,
            own.predictions,
            found,
            own.target,
            **own.resampling,
            other_decides=rule,
        )
        for name in dict.fromkeys((metric, *(["log_loss"] if task != "regression" else [])))
    }
    place = standings(
        declaration,
        own.metrics,
        {"it": metrics},
        {"it": differences[metric]},
        Skill(too_few=own.too_few),
    )
    return {"metrics": metrics, "differences": differences, "standing": place["it"]}
