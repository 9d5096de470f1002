"""Inputs and outputs of a model: widths, category codes, tensor shapes, scores, prior."""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.config import Declaration
from schemas.records import Statistics, TokenStats
from training.objectives.losses import pos_weight
from training.objectives.targets import targets_of

UNKNOWN, NULL = 0, 1  # codes of every categorical column; known values start at 2
FIRST_VALUE = 2


@dataclass(frozen=True)
class ModelShape:
    """Contract of `forward(batch) -> scores [B, outputs]`, fixed by declaration and statistics.

    Attributes:
        numeric: Width of `batch["numeric"]`, float32 [B, numeric]; 0 = the key is absent.
        indicators: Number of its last columns that are 0/1 missing indicators.
        categories: Codes of each column of `batch["categorical"]`, int64 [B, C]; empty = the key is
            absent.
        unseen: For each of those columns the codes that no train row had.
        tensors: Batch key `tensor_<column>` to its shape [*shape] without the batch axis.
        outputs: Columns K of the scores: 1 for binary and regression, the number of classes for
            multiclass; for several labels the columns of each, next to each other.
        prior: Scores [K] of the best constant prediction: log odds, centred log shares, or 0.
        context: Most positions T of a language model's `tokens` and `segments`, int [B, T]; its
            scores are [B, T, outputs], one for each token of the vocabulary. 0 = the model reads
            features.
        bins: For each scaled numeric column its edges, strictly increasing, in the units of
            `batch["numeric"]`; empty if none are fitted.
        label_range: Smallest and largest label of train in units of the scaled label, of a
            regression; None if predictions are not clamped.
    """

    numeric: int
    indicators: int
    categories: tuple[int, ...]
    unseen: tuple[tuple[int, ...], ...]
    tensors: dict[str, tuple[int, ...]]
    outputs: int
    prior: tuple[float, ...]
    context: int = 0
    bins: tuple[tuple[float, ...], ...] = ()
    label_range: tuple[float, float] | None = None

    @property
    def tensor_width(self) -> int:
        """Return the number of values of one row over all tensors."""
        return sum(math.prod(shape) for shape in self.tensors.values())

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the batch keys that the model gets."""
        if self.context:
            return ("tokens", "segments")
        return (
            *(("numeric",) if self.numeric else ()),
            *(("categorical",) if self.categories else ()),
            *self.tensors,
        )


def model_shape(declaration: Declaration, statistics: Statistics) -> ModelShape:
    """Return the contract that follows from a declaration and the statistics of its train rows."""
    if statistics.tokens is not None:
        return token_shape(statistics.tokens)
    columns, prior = statistics.categorical, prior_scores(declaration, statistics)
    return ModelShape(
        numeric=statistics.num_numeric,
        indicators=sum(s.indicator for s in statistics.numeric),
        categories=tuple(FIRST_VALUE + len(c.values) for c in columns),
        unseen=tuple(
            (*((UNKNOWN,) if c.rare_rows == 0 else ()), *((NULL,) if c.nulls == 0 else ()))
            for c in columns
        ),
        tensors={f"tensor_{t.name}": t.shape for t in statistics.tensor},
        outputs=len(prior),
        prior=prior,
    )


def token_shape(tokens: TokenStats) -> ModelShape:
    """Return the contract over a vocabulary.

    Its prior is that of a model without knowledge: all tokens are equally likely.
    """
    return ModelShape(
        0, 0, (), (), {}, outputs=tokens.size, prior=(0.0,) * tokens.size, context=tokens.context
    )


def class_shares(declaration: Declaration, statistics: Statistics) -> tuple[float, ...]:
    """Return the probability of each class in the best constant prediction under the declared loss.

    A class's mass is (1 - e) times its train rows plus e times an equal share of all rows (e: label
    smoothing), times its class weight, and for the positive of a binary label times pos_weight; a
    class without train rows counts as half a row.
    """
    loss, counts = declaration.loss, [max(n, 0.5) for n in statistics.class_counts]
    weights = (1.0,) * len(counts) if loss.class_weights == "none" else statistics.class_weights
    kept = 1 - loss.label_smoothing
    # with class weights v a row of class y gives v_c / v_y to each class c, and has weight v_y
    # itself
    mass = [
        w * (kept * n + loss.label_smoothing * sum(counts) / len(counts))
        for n, w in zip(counts, weights, strict=True)
    ]
    if (
        declaration.task.kind == "binary"
        and (factor := pos_weight(declaration, statistics)) is not None
    ):
        mass[1] *= factor
    return tuple(m / sum(mass) for m in mass)


def prior_scores(declaration: Declaration, statistics: Statistics) -> tuple[float, ...]:
    """Return the scores of the best constant prediction under the declared loss.

    Binary: log odds of the positive class. Multiclass: log shares, centred. Regression: 0 if the
    label is scaled, else its train mean. Several labels: those of each, next to each other.
    """
    if statistics.labels:
        return tuple(
            score
            for target in targets_of(declaration, statistics)
            for score in prior_scores(target.declaration, target.statistics)
        )
    if declaration.task.kind == "regression":
        return ((statistics.label_mean - statistics.target_center) / statistics.target_scale,)
    logs = [math.log(share) for share in class_shares(declaration, statistics)]
    if declaration.task.kind == "binary":
        return (logs[1] - logs[0],)
    return tuple(value - sum(logs) / len(logs) for value in logs)
