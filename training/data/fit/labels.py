"""Fit the label: classes with their weights, or center and scale.

Each of several labels is fitted over its known rows. Called by normalize.fit alone, on train.
"""

from __future__ import annotations

from typing import Any

from schemas.config import EvaluateConfig, LabelConfig
from schemas.errors import DataError, first_few
from schemas.label_config import Value, value_text
from schemas.records import LabelStats
from schemas.task_metrics import LOG_MEAN_LOSSES
from training.data.engine.engine import ident, literal
from training.data.fit.moments import column_moments, least_quantile
from training.data.fit.train_rows import TrainRows, model_needs
from training.data.target_transform import transform_sql


def fit_labels(train: TrainRows) -> dict[str, Any]:
    """Return the label's fields of `Statistics`: those of a single label, or `labels`.

    Raises:
        DataError: only one class, more than two of a binary label, an unknown positive or weighted
            class, a constant value, or only weights of 0.
    """
    total = _mass(train, "true") if train.spec.weight or train.spec.has_several_labels else 1.0
    if not total > 0:
        raise DataError(
            f"expected sample weights with a positive sum in train, {train.spec.weight!r} sums to"
            f" {total:g}; look at the column with role weight"
        )
    if not train.spec.has_several_labels:
        return _fit_label(train, train.spec.label)
    labels = []
    for name in train.spec.labels:
        fitted = _fit_label(train, name)
        known = train.query(f"select count({ident(name)}) from {train.table}")[0][0]
        share = _weighted(train, name, fitted) / total
        if not share > 0:
            raise DataError(
                f"label {name!r}: every train row that knows it has weight 0; leave the label out,"
                " or fix the column with role weight"
            )
        labels.append(
            LabelStats(
                name=name,
                kind=train.declaration.task.label(name).kind,
                known=known,
                share=share,
                **fitted,
            )
        )
    return {"labels": tuple(labels)}


def _fit_label(train: TrainRows, name: str) -> dict[str, Any]:
    declared = train.declaration.task.label(name)
    if declared.kind == "regression":
        return _fit_target(train, name)
    column = ident(name)
    counts = dict(
        sorted(
            train.query(
                f"select {column}, count(*) from {train.table} where {column} is not null group by"
                f" {column}"
            )
        )
    )
    if len(counts) < 2:
        raise DataError(
            f"label {name!r}: expected at least two classes in train, got only"
            f" {first_few(map(repr, counts))}; use more rows, another split, or split kind"
            " stratified"
        )
    if declared.kind == "binary":
        counts = _negative_first(counts, name, declared)
    if train.declaration.label_loss(name) == "ordinal":
        counts = _in_order(counts, name, train.declaration.loss.order)
    _check_class_metrics(counts, name, train.declaration.evaluate)
    total, classes = sum(counts.values()), tuple(counts)
    share = counts[classes[1]] / total if declared.kind == "binary" else 0.0
    label = {"label_mean": share, "label_std": (share * (1 - share)) ** 0.5} if share else {}
    return {
        "classes": classes,
        "class_counts": tuple(counts.values()),
        "class_weights": _class_weights(train, name, counts),
        **label,
    }


def _class_weights(train: TrainRows, name: str, counts: dict[Any, int]) -> tuple[float, ...]:
    declared = train.declaration.loss.class_weights
    if declared == "balanced":
        return tuple(sum(counts.values()) / (len(counts) * n) for n in counts.values())
    weights = {} if declared == "none" else declared
    texts = {value_text(c): c for c in counts}
    if unknown := [c for c in weights if c not in texts]:
        raise DataError(
            f"label {name!r}: loss.class_weights names {first_few(map(repr, unknown))}, but the"
            f" classes in train are {first_few(map(repr, texts))}; name those"
        )
    return tuple(weights.get(text, 1.0) for text in texts)


def _negative_first(counts: dict[Any, int], name: str, declared: LabelConfig) -> dict[Any, int]:
    """Return the two classes as (negative, positive): the declared or the larger is positive."""
    positive = declared.positive
    if len(counts) != 2:
        raise DataError(
            f"label {name!r}: a binary task expects two classes, train has {len(counts)}"
            f" ({first_few(map(repr, counts))}); use task.kind: multiclass or derive a yes/no label"
        )
    if positive is None:
        return counts
    found: list[Value] = [
        c for c in counts if c == positive and isinstance(c, bool) == isinstance(positive, bool)
    ]
    if not found:
        raise DataError(
            f"label {name!r}: task.positive is {positive!r}, but the classes in train are"
            f" {first_few(map(repr, counts))}; write one of them (quote text such as 'yes')"
        )
    return {c: counts[c] for c in sorted(counts, key=lambda c: c == found[0])}


def _in_order(counts: dict[Any, int], name: str, order: tuple[Value, ...]) -> dict[Any, int]:
    """Return the classes from lowest to highest: as declared, or numbers ascending."""
    if not order and any(isinstance(value, str) for value in counts):
        raise DataError(
            f"label {name!r}: loss ordinal needs the order of the classes, and text has none:"
            f" {first_few(map(repr, counts))}; declare it, e.g. loss.order: [low, medium, high]"
        )
    classes = {value_text(value): value for value in counts}
    texts = [value_text(value) for value in order] or list(classes)
    if set(texts) != set(classes):
        raise DataError(
            f"label {name!r}: loss.order names {first_few(map(repr, texts))}, but the classes in"
            f" train are {first_few(map(repr, classes))}; name exactly those, from lowest to"
            " highest"
        )
    return {classes[text]: counts[classes[text]] for text in texts}


def _check_class_metrics(counts: dict[Any, int], name: str, evaluate: EvaluateConfig) -> None:
    """Check that evaluate.top_k and evaluate.costs suit the number of classes."""
    if evaluate.top_k is not None and len(counts) <= evaluate.top_k:
        raise DataError(
            f"label {name!r}: evaluate.top_k is {evaluate.top_k}, and train has {len(counts)}"
            " classes: every row would count as right; use a smaller k, or remove it"
        )
    costs = evaluate.costs
    if isinstance(costs, tuple) and len(costs) != len(counts):
        raise DataError(
            f"label {name!r}: evaluate.costs is a matrix for {len(costs)} classes, and train has"
            f" {len(counts)}: {first_few(map(repr, counts))}; give one list of costs for each, in"
            " this order"
        )


def _fit_target(train: TrainRows, name: str) -> dict[str, Any]:
    transform = train.declaration.task.transform
    table = (
        train.table
        if transform == "none"
        else f"(select {transform_sql(transform, ident(name))} as {ident(name)} from {train.table})"
    )
    found = column_moments(train.connection, table, [name])[name]
    if found.mean is None or found.std is None or found.low is None or found.low == found.high:
        raise DataError(
            f"label {name!r}: expected a spread of values in train, all are {found.low!r}; there is"
            " nothing to learn, check the label column"
        )
    loss, fitted = train.declaration.label_loss(name), train.declaration.loss.quantile
    clamped = model_needs(train.declaration).clamp and not (
        train.spec.has_several_labels or loss in LOG_MEAN_LOSSES  # the score is no label there
    )
    if loss in LOG_MEAN_LOSSES and found.low < 0:
        raise DataError(
            f"label {name!r}: loss {loss} expects labels of at least 0, got {found.low!r} in train;"
            " use loss mse, or leave those rows out with data.filter"
        )
    center, scale = 0.0, 1.0
    if train.declaration.normalize.target == "standard":
        # the mean of a log-mean loss is divided by, never subtracted: 0 has to stay 0
        center, scale = (
            (0.0, found.mean) if loss in LOG_MEAN_LOSSES else (found.mean, found.std or 1.0)
        )
    quantile = (
        least_quantile(train.connection, table, name, fitted, found.present)
        if loss == "quantile" and fitted is not None
        else None
    )
    return {
        "label_mean": found.mean,
        "label_std": found.std,
        "target_center": center,
        "target_scale": scale,
        **({"label_low": found.low, "label_high": found.high} if clamped else {}),
        **({} if quantile is None else {"label_quantile": quantile}),
        **({} if transform == "none" else {"target_transform": transform}),
    }


def _weighted(train: TrainRows, name: str, fitted: dict[str, Any]) -> float:
    """Return the sample weight of the known rows, times the weight of their class."""
    column = ident(name)
    if not fitted.get("classes"):
        return _mass(train, f"{column} is not null")
    by_class = dict(zip(fitted["classes"], fitted["class_weights"], strict=True))
    if train.spec.weight is None:
        return float(
            sum(n * w for n, w in zip(fitted["class_counts"], by_class.values(), strict=True))
        )
    return float(sum(w * _mass(train, f"{column} = {literal(c)}") for c, w in by_class.items()))


def _mass(train: TrainRows, condition: str) -> float:
    """Sum the sample weights of the rows that meet a condition; exact in every order.

    Return the number of rows if no weight is declared.
    """
    relation = f"(select * from {train.table} where {condition})"
    if train.spec.weight is None:
        return float(train.query(f"select count(*) from {relation}")[0][0])
    found = column_moments(train.connection, relation, [train.spec.weight])[train.spec.weight]
    return float(found.present * (found.mean or 0.0))
