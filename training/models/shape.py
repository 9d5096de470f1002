"""Inputs and outputs of a model: widths, category codes, tensor shapes, scores, prior."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from schemas.config import Declaration
from schemas.encoder_config import EncoderConfig
from schemas.records import Statistics, TokenStats
from schemas.series_config import SeriesEncoder
from schemas.task_metrics import LOG_MEAN_LOSSES
from training.data.arrays.apply import transform_numeric
from training.objectives.constants import focal_shares
from training.objectives.link import LARGEST_LOG, ordered_scores
from training.objectives.losses import pos_weight
from training.objectives.targets import targets_of

UNKNOWN, NULL = 0, 1  # codes of every categorical column; known values start at 2
FIRST_VALUE = 2


@dataclass(frozen=True)
class BagShape:
    """Input `bag_<column>`, int32 [B, length], of codes 0 to codes - 1; see `BagStats`.

    `size` and `combine`: of the vectors that a network learns for them.
    """

    length: int
    codes: int
    size: int
    combine: str


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
            multiclass, one less for loss ordinal; for several labels the columns of each, next to
            each other.
        prior: Scores [K] of the best constant prediction, see `prior_scores`.
        context: Most positions T of a language model's `tokens` and `segments`, int [B, T]; its
            scores are [B, T, outputs], one for each token of the vocabulary. 0 = the model reads
            features.
        bins: For each scaled column of `batch["numeric"]`, in its units, the edges of its quantile
            bins in train: float32 values, strictly increasing, at least two; empty = the model asks
            for none.
        label_range: Smallest and largest score of a train label, for a model that clamps its
            predictions; None for classes, several labels, and models that do not clamp.
        bags: Batch key `bag_<column>` to its shape. A body never sees them: it gets a vector of
            each as one more tensor (`training.models.bag_vectors`).
        encoders: Keys of `tensors` that have an encoder of their own: a body gets a vector in
            place of each (`training.models.encoders`).
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
    bags: dict[str, BagShape] = field(default_factory=dict)
    encoders: dict[str, EncoderConfig | SeriesEncoder] = field(default_factory=dict)

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
            *self.bags,
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
        tensors={t.key: t.shape for t in statistics.tensor},
        outputs=len(prior),
        prior=prior,
        bins=scaled_bins(statistics),
        label_range=scaled_label_range(declaration, statistics),
        bags={b.key: BagShape(b.length, b.num_codes, b.size, b.combine) for b in statistics.bags},
        encoders={t.key: t.encoder for t in statistics.tensor if t.encoder is not None},
    )


def scaled_bins(statistics: Statistics) -> tuple[tuple[float, ...], ...]:
    """Return the edges of each numeric column's bins in units of `batch["numeric"]`, or ().

    Edges that scaling or clipping makes equal become one; a single edge becomes a bin around it.

    >>> from schemas.records import NumericStats
    >>> column = NumericStats(name="x", method="standard", center=2.0, scale=4.0, bins=(0, 4, 90))
    >>> scaled_bins(Statistics(train_sha256="", rows=3, numeric=(column,), categorical=(),
    ...     tensor=(), clip=10.0))
    ((-0.5, 0.5, 10.0),)
    """
    if not any(column.bins for column in statistics.numeric):
        return ()
    found = list[tuple[float, ...]]()
    for column in statistics.numeric:
        alone = statistics.model_copy(update={"numeric": (column,)})
        raw = np.array(column.bins, dtype=np.float64)[:, None]
        edges = np.unique(transform_numeric(raw, alone)[:, 0]).tolist()
        if len(edges) == 1:
            half = max(0.5, abs(edges[0]) * 2.0**-20)  # a width that float32 can hold
            edges = np.array([edges[0] - half, edges[0] + half], dtype=np.float32).tolist()
        found.append(tuple(edges))
    return tuple(found)


def scaled_label_range(
    declaration: Declaration, statistics: Statistics
) -> tuple[float, float] | None:
    """Return the scores that predict the smallest and the largest train label, or None."""
    low, high = statistics.label_low, statistics.label_high
    if low is None or high is None:
        return None
    center, scale = statistics.target_center, statistics.target_scale
    if declaration.loss_kind in LOG_MEAN_LOSSES:
        logs = [math.log(value / scale) if value > 0 else -LARGEST_LOG for value in (low, high)]
        return logs[0], logs[1]
    return (low - center) / scale, (high - center) / scale


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
    shares = tuple(m / sum(mass) for m in mass)
    return focal_shares(shares, loss.gamma) if declaration.loss_kind == "focal" else shares


def prior_scores(declaration: Declaration, statistics: Statistics) -> tuple[float, ...]:
    """Return the scores of the best constant prediction under the declared loss.

    Binary: log odds of the positive class. Multiclass: log shares, centred; of ordered classes the
    scores of `link.ordered_log_probabilities`. Regression: 0 if the label is scaled, else its train
    mean; the train quantile, or the log of the mean, for losses of those. Several labels: those of
    each, next to each other.
    """
    if statistics.labels:
        return tuple(
            score
            for target in targets_of(declaration, statistics)
            for score in prior_scores(target.declaration, target.statistics)
        )
    if declaration.loss_kind in LOG_MEAN_LOSSES:
        return (math.log(statistics.label_mean / statistics.target_scale),)
    if declaration.loss_kind == "quantile" and statistics.label_quantile is not None:
        return ((statistics.label_quantile - statistics.target_center) / statistics.target_scale,)
    if declaration.task.kind == "regression":
        return ((statistics.label_mean - statistics.target_center) / statistics.target_scale,)
    shares = class_shares(declaration, statistics)
    if declaration.loss_kind == "ordinal":
        logs_of_one = torch.tensor([shares], dtype=torch.float64).log()
        return tuple(ordered_scores(logs_of_one)[0].tolist())
    logs = [math.log(share) for share in shares]
    if declaration.task.kind == "binary":
        return (logs[1] - logs[0],)
    return tuple(value - sum(logs) / len(logs) for value in logs)
