"""Baselines on the same rows (constant, linear, boosted trees), and the verdict on the network.

Baselines use the same materialised arrays as the network and are fitted on train alone (boosting
stops early on val, as the network does). They are scored by the same metrics on the same rows. N
rows, D columns, C classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder

from schemas.config import Declaration, SplitName
from schemas.records import ArraysRef, Interval, Standing, Statistics
from training.boosting.tree_fit import TreeRows, fit_boosting
from training.boosting.tree_inputs import (
    Arrays,
    category_columns,
    matrix,
    native_columns,
    num_columns,
)
from training.data.arrays.shards import load_arrays
from training.data.leakage.arrangements import tail
from training.evaluation import ngrams
from training.evaluation.estimators import best_constant, boosting_loss, linear_estimator
from training.evaluation.forest import fit_forest, molecules
from training.evaluation.last_values import LAST, SEASONAL, last_values, past_baselines
from training.evaluation.linear_inputs import linear_inputs
from training.evaluation.next_step import CONSTANTS, NAMES, advice, has_skill, perfect_note
from training.evaluation.predictions import (
    MAX_TREE_VALUES,
    Predict,
    first_rows,
    predictor,
    weight_of,
)
from training.formatting import capital, metric_name, number
from training.objectives.measures import declared_measures
from training.objectives.metrics import Metrics, compute_predictions, in_label_units, targets
from training.objectives.targets import Target, targets_of

MAX_LINEAR_VALUES = 50_000_000  # most rows x dense columns for fitting the linear model
WIDE = 256  # with more inputs, less is spent on a fit: pictures would take minutes
LINEAR_STEPS, WIDE_LINEAR_STEPS = 200, 50
TREES: dict[str, Any] = {"max_iter": 500, "learning_rate": 0.1, "max_bins": 255}
WIDE_TREES: dict[str, Any] = {"max_iter": 30, "learning_rate": 0.2, "max_bins": 31}
FOREST = "morgan-forest"
WHOSE = {"boosting": "gradient boosting's", "auto": "the blend's"}


def baseline_metrics(
    declaration: Declaration, statistics: Statistics, arrays: ArraysRef, side: SplitName = "test"
) -> dict[str, Metrics]:
    """Compute every metric of the task for each declared baseline: name → metric → value.

    `constant` is always included, because skill is measured against it.
    """
    data = load_arrays(arrays.side(side))
    target, weight = targets(declaration, statistics, data["label"]), data.get("weight")
    found, labels = (
        baseline_predictions(declaration, statistics, arrays, side),
        targets_of(declaration, statistics),
    )
    declared = declared_measures(declaration)
    return {
        name: compute_predictions(
            declaration.task.kind, p, target, weight, labels, declared=declared
        )
        for name, p in found.items()
    }


def baseline_predictions(
    declaration: Declaration, statistics: Statistics, arrays: ArraysRef, side: SplitName = "test"
) -> dict[str, np.ndarray]:
    """Return predictions of each declared baseline and `constant` for the rows of a split, in
    order.

    Returns:
        Name → float64 probabilities [N, C] or values [N] in the user's units, like
        `metrics.predict`; for a language model sums by document [D, 2], as its metrics need them.
    """
    if statistics.tokens is not None:
        return ngrams.document_predictions(declaration, statistics.tokens, arrays, side)
    train, val, rows = (load_arrays(arrays.side(name)) for name in ("train", "val", side))
    past = past_baselines(declaration, statistics)
    wanted: dict[str, None] = dict.fromkeys(["constant", *past, *declaration.evaluate.baselines])
    if declaration.evaluate.baselines and molecules(statistics):
        wanted[FOREST] = None
    if declaration.model.kind == "boosting":
        wanted.pop("boosting", None)  # no comparison: it is the model itself
    return {name: _fit(name, declaration, statistics, train, val)(rows) for name in wanted}


# -------------------------------------------------------------------------------------------- fits


def _fit(
    name: str,
    declaration: Declaration,
    statistics: Statistics,
    train: Arrays,
    val: Arrays,
    siblings: int = 1,
) -> Predict:
    """Fit the named baseline; the constant if its rows have one class only.

    With several labels there is one for each, fitted on the rows where it is known; `siblings` is
    their number.
    """
    if statistics.labels:
        labels = targets_of(declaration, statistics)
        own = ((t, _known(train, i, t), _known(val, i, t, train)) for i, t in enumerate(labels))
        fitted = [
            _fit(name, t.declaration, t.statistics, known, held, len(labels))
            for t, known, held in own
        ]
        return lambda rows: np.concatenate(
            [t.stored(predict(rows)) for t, predict in zip(labels, fitted, strict=True)], axis=1
        )
    label = train["label"][first_rows(statistics, MAX_LINEAR_VALUES)]
    if not (label != label[0]).any():
        name = "constant"
    elif name == FOREST:
        return fit_forest(declaration, statistics, train, val, siblings)
    return _FITTERS[name](declaration, statistics, train, val)


def _known(arrays: Arrays, index: int, label: Target, otherwise: Arrays | None = None) -> Arrays:
    """Return rows whose label is known, at most a fit's limit; rows of `otherwise` if there are
    none.
    """
    rows = np.flatnonzero(~np.isnan(arrays["label"][:, index]))[
        first_rows(label.statistics, MAX_TREE_VALUES)
    ]
    if not len(rows) and otherwise is not None:
        return _known(otherwise, index, label)
    values = arrays["label"][rows, index]
    return {name: array[rows] for name, array in arrays.items()} | {
        "label": values if label.kind == "regression" else values.astype(np.int64)
    }


def _constant(
    declaration: Declaration, statistics: Statistics, train: Arrays, val: Arrays
) -> Predict:
    """Fit weighted class fractions, or the best constant value, of the train rows."""
    target, weight = targets(declaration, statistics, train["label"]), train.get("weight")
    if declaration.task.kind == "regression":
        best = best_constant(declaration, target, weight)
        if statistics.target_transform is not None and declaration.loss_kind != "quantile":
            # of the scale that is learned on: the geometric mean; a quantile is the same on both
            label = np.asarray(train["label"], dtype=np.float64)
            mean = np.array([best_constant(declaration, label, weight)])
            best = float(in_label_units(statistics, mean)[0])
        return lambda rows: np.full(len(rows["label"]), best)
    counts = np.bincount(target, weights=weight, minlength=len(statistics.classes)).astype(
        np.float64
    )
    return lambda rows: np.tile(counts / counts.sum(), (len(rows["label"]), 1))


def _linear(
    declaration: Declaration, statistics: Statistics, train: Arrays, val: Arrays
) -> Predict:
    """Fit logistic or ridge regression on scaled numbers, one-hot categories and TF-IDF."""
    some = first_rows(statistics, MAX_LINEAR_VALUES)
    inputs_of = linear_inputs if statistics.bags else matrix
    one_hot = ("categories", OneHotEncoder(handle_unknown="ignore"), category_columns(statistics))
    encode = ColumnTransformer([one_hot], remainder="passthrough", sparse_threshold=1.0)
    steps = WIDE_LINEAR_STEPS if num_columns(statistics) > WIDE else LINEAR_STEPS
    estimator = linear_estimator(declaration, len(train["label"][some]), steps)
    model = Pipeline([("encode", encode), ("fit", estimator)][bool(statistics.bags) :])
    with warnings.catch_warnings():
        # capped iterations: accurate enough for a baseline
        warnings.simplefilter("ignore", ConvergenceWarning)
        inputs, weight = inputs_of(statistics, train, some), weight_of(train, some)
        model.fit(inputs, train["label"][some], fit__sample_weight=weight)
    return predictor(declaration, statistics, model, inputs_of)


def _boosting(
    declaration: Declaration, statistics: Statistics, train: Arrays, val: Arrays
) -> Predict:
    """Fit gradient boosting, stopped early on val; native or ordered categories, best on val."""
    some = first_rows(statistics, MAX_TREE_VALUES)
    options = WIDE_TREES if num_columns(statistics) > WIDE else TREES
    fitted_on, stopped_by = (
        TreeRows(matrix(statistics, side, some), side["label"][some], weight_of(side, some))
        for side in (train, val)
    )
    model = fit_boosting(
        fitted_on,
        stopped_by,
        native_columns(statistics, options["max_bins"]),
        declaration.task.kind == "regression",
        random_state=declaration.train.seed,
        **boosting_loss(declaration),
        **options,
    )
    return predictor(declaration, statistics, model)


_FITTERS: dict[str, Callable[[Declaration, Statistics, Arrays, Arrays], Predict]] = {
    "constant": _constant,
    "linear": _linear,
    "boosting": _boosting,
    LAST: lambda declaration, statistics, *_: last_values(declaration, statistics, False),
    SEASONAL: lambda declaration, statistics, *_: last_values(declaration, statistics, True),
}


# ----------------------------------------------------------------------------------------- verdict


class Skill(NamedTuple):
    """Evidence of skill besides intervals.

    `chance`: probability that scores independent of the labels do as well
    (`permutation.permutation_chance`), if computed. `too_few`: why no scores could show skill on so
    few rows; empty if some could.
    """

    chance: float | None = None
    too_few: str = ""


def verdict(
    declaration: Declaration,
    metrics: dict[str, Interval],
    baselines: dict[str, Metrics],
    differences: dict[str, Interval] | None = None,
    skill: Skill = Skill(),  # noqa: B008 - immutable
) -> tuple[bool, str]:
    """Decide if the network beats the constant beyond uncertainty; describe all baselines.

    Args:
        declaration: Gives the metric and its direction.
        metrics: The network's metrics with intervals.
        baselines: Name → metric → value, on the same rows, with `constant`.
        differences: Name → interval of network minus baseline in the metric, on the same resamples;
            the sharper comparison. Without it the baseline's value is compared with the network's
            own interval.
        skill: A constant is beaten only if `chance` is small, too.

    Returns:
        (has_skill, sentence). No skill if the metric is not defined, or rows are too few.
    """
    metric = declaration.metric
    found, values = metrics[metric], {b: baselines[b].get(metric) for b in baselines}
    if found.value is None:
        return (
            False,
            (
                f"{metric_name(metric)} is not defined on these rows, so nothing shows skill; take"
                " a test side with more rows or both classes."
            ),
        )
    if skill.too_few:
        shown = ", ".join(f"{NAMES.get(b, b)} {number(v)}" for b, v in values.items())
        return (
            False,
            (
                f"Too few rows to say: {skill.too_few}; {whose(declaration)}"
                f" {metric_name(metric)} is {_with_bounds(found)} ({shown}): take more test rows."
            ),
        )
    standing = standings(declaration, metrics, baselines, differences, skill)
    return has_skill(standing), _sentence(declaration, found, values, standing)


def standings(
    declaration: Declaration,
    metrics: dict[str, Interval],
    baselines: dict[str, Metrics],
    differences: dict[str, Interval] | None = None,
    skill: Skill = Skill(),  # noqa: B008 - immutable
) -> dict[str, Standing]:
    """Compare the network with each baseline, with arguments of `verdict`; unknown for few rows."""
    metric = declaration.metric
    if skill.too_few:
        return dict.fromkeys(baselines, "unknown")
    found = metrics[metric]
    standing = {
        b: _standing(declaration, found, values.get(metric), (differences or {}).get(b))
        for b, values in baselines.items()
    }
    if skill.chance is None or found.value is None:
        return standing
    is_rare = skill.chance <= tail(declaration.evaluate.confidence)
    for name in (b for b in CONSTANTS if b in standing):
        value, difference = baselines[name].get(metric), (differences or {}).get(name)
        no_width = difference is not None and difference.low is None and found.low is None
        is_better = (
            value is not None
            and (found.value > value) == declaration.greater_is_better
            and found.value != value
        )
        if standing[name] == "ahead" and not is_rare:
            standing[name] = "level"
        elif (
            no_width and is_rare and is_better
        ):  # a perfect score: no resample differs, and no permutation comes near
            standing[name] = "ahead"
    return standing


def _standing(
    declaration: Declaration, found: Interval, baseline: float | None, difference: Interval | None
) -> Standing:
    """Return ahead, behind or level (within the uncertainty); unknown without a baseline value."""
    if baseline is None or found.value is None:
        return "unknown"
    if difference is not None and difference.low is not None and difference.high is not None:
        low, high = difference.low, difference.high
    elif found.low is not None and found.high is not None:
        low, high = found.low - baseline, found.high - baseline
    else:
        return "level"  # the difference has no known interval
    if not declaration.greater_is_better:
        low, high = -high, -low
    return "ahead" if low > 0 else "behind" if high < 0 else "level"


def _with_bounds(found: Interval) -> str:
    return number(found.value) + (
        "" if found.low is None else f" [{number(found.low)}, {number(found.high)}]"
    )


def _sentence(
    declaration: Declaration,
    found: Interval,
    values: dict[str, float | None],
    standing: dict[str, Standing],
) -> str:
    shown = {b: f"{NAMES.get(b, b)} ({number(values[b])})" for b in standing}
    parts = [
        f"{words} {' and '.join(shown[b] for b, s in standing.items() if s == wanted)}"
        for wanted, words in (
            ("ahead", "better than"),
            ("level", "not distinguishable from"),
            ("behind", "behind"),
        )
        if wanted in standing.values()
    ]
    compared = ", ".join(parts) or "not compared with any baseline"
    name = metric_name(declaration.metric)
    return (
        f"{capital(whose(declaration))} {name} {_with_bounds(found)} is"
        f" {compared}{advice(declaration, found.value, values, standing)}."
        f"{perfect_note(declaration, values)}"
    )


def whose(declaration: Declaration) -> str:
    """Return the model that is compared, in the genitive."""
    return WHOSE.get(declaration.model.kind, "the network's")
