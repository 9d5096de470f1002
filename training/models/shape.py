"""What a model is given and must return: widths, category codes, tensor shapes, outputs, prior."""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.config import Declaration
from schemas.records import Statistics, TokenStats

UNKNOWN, NULL = 0, 1  # codes of every categorical column; known values start at 2
FIRST_VALUE = 2


@dataclass(frozen=True)
class ModelShape:
    """The contract of `forward(batch) -> scores [B, outputs]`, fixed by declaration and statistics.

    Attributes:
        numeric: Width of `batch["numeric"]`, float32 [B, numeric]; 0 = the key is absent.
        indicators: How many of its last columns are 0/1 missing indicators.
        categories: Codes of each column of `batch["categorical"]`, int64 [B, C]; empty = the key is absent.
        unseen: For each of those columns the codes that no train row had.
        tensors: Batch key `tensor_<column>` to its shape [*shape] without the batch axis.
        outputs: Columns K of the scores: 1 for binary and regression, the number of classes for multiclass.
        prior: Scores [K] of the best constant prediction: log odds, centred log shares, or 0.
        context: Most positions T of a language model's `tokens` and `segments`, int [B, T]; its scores are [B, T, outputs],
            one for each token of the vocabulary. 0 = the model reads features.
    """

    numeric: int
    indicators: int
    categories: tuple[int, ...]
    unseen: tuple[tuple[int, ...], ...]
    tensors: dict[str, tuple[int, ...]]
    outputs: int
    prior: tuple[float, ...]
    context: int = 0

    @property
    def tensor_width(self) -> int:
        """Values of one row over all tensors."""
        return sum(math.prod(shape) for shape in self.tensors.values())

    @property
    def keys(self) -> tuple[str, ...]:
        """The batch keys that the model is given."""
        if self.context:
            return ("tokens", "segments")
        return (*(("numeric",) if self.numeric else ()), *(("categorical",) if self.categories else ()), *self.tensors)


def model_shape(declaration: Declaration, statistics: Statistics) -> ModelShape:
    """The shape contract that follows from a declaration and the statistics of its train rows."""
    if statistics.tokens is not None:
        return token_shape(statistics.tokens)
    columns = statistics.categorical
    return ModelShape(
        numeric=statistics.num_numeric,
        indicators=sum(s.indicator for s in statistics.numeric),
        categories=tuple(FIRST_VALUE + len(c.values) for c in columns),
        unseen=tuple((*((UNKNOWN,) if c.rare_rows == 0 else ()), *((NULL,) if c.nulls == 0 else ())) for c in columns),
        tensors={f"tensor_{t.name}": t.shape for t in statistics.tensor},
        outputs=len(statistics.classes) if declaration.task.kind == "multiclass" else 1,
        prior=prior_scores(declaration, statistics),
    )


def token_shape(tokens: TokenStats) -> ModelShape:
    """The contract over a vocabulary; its prior is that of a model that knows nothing: every token alike."""
    return ModelShape(0, 0, (), (), {}, outputs=tokens.size, prior=(0.0,) * tokens.size, context=tokens.context)


def class_shares(declaration: Declaration, statistics: Statistics) -> tuple[float, ...]:
    """Share of each class in the training loss: its train rows times its class weight, adding up to 1."""
    weights = statistics.class_weights if declaration.loss.class_weights == "balanced" else (1.0,) * len(statistics.class_counts)
    mass = [max(n, 0.5) * w for n, w in zip(statistics.class_counts, weights, strict=True)]
    return tuple(m / sum(mass) for m in mass)


def prior_scores(declaration: Declaration, statistics: Statistics) -> tuple[float, ...]:
    """Scores of the best constant prediction under the declared class weights.

    Binary: log odds of the positive class. Multiclass: log shares, centred. Regression: 0 where the
    label is scaled, else its train mean.
    """
    if declaration.task.kind == "regression":
        return ((statistics.label_mean - statistics.target_center) / statistics.target_scale,)
    logs = [math.log(share) for share in class_shares(declaration, statistics)]
    if declaration.task.kind == "binary":
        return (logs[1] - logs[0],)
    return tuple(value - sum(logs) / len(logs) for value in logs)
