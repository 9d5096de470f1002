"""Training losses: an unreduced value per row, and the weight of each row.

The loss of a window is `sum(w_i l_i) / sum(w_i)` over all its rows on all ranks. Micro-batches and
ranks sum numerators and divisors, and never average averages. Computed at once, it equals torch's
functional form with reduction "mean" (with class weights, positive weight and label smoothing).
Losses of several labels are in label_losses.py. Shapes: B rows, K scores per row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.records import Statistics
from training.data.arrays.sequences import NO_TARGET
from training.objectives.link import ordered_log_probabilities
from training.objectives.targets import Targets


class Loss(nn.Module, ABC):
    """Per-row loss and row weight.

    Args:
        class_weights: Weight of each class [C]; None: all rows have equal weight.
    """

    class_weights: Tensor | None
    targets: Targets = ()  # for a loss of several labels

    def __init__(self, class_weights: tuple[float, ...] | None = None) -> None:
        super().__init__()
        self.register_buffer(
            "class_weights",
            None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32),
            persistent=False,
        )

    @abstractmethod
    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the unreduced, unweighted loss of each row [B]; scores are [B, K], labels [B]."""

    def row_losses(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B] of scores in train mode.

        Of the scores [B, M, K] of M members it is the mean of the members' losses.
        """
        if scores.ndim == 2:
            return self.per_row(scores, label)
        rows, members = scores.shape[:2]
        # [B, M, K] -> [B M, K] -> [B, M]
        each = self.per_row(scores.flatten(0, 1), label.repeat_interleave(members, dim=0))
        return each.view(rows, members).mean(1)

    def row_weights(self, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return class weight times sample weight of each row [B]; ones if neither is declared."""
        dtype = (
            torch.get_default_dtype() if self.class_weights is None else self.class_weights.dtype
        )
        rows = (
            torch.ones(label.shape, dtype=dtype, device=label.device)
            if self.class_weights is None
            else self.class_weights.to(label.device)[label]
        )
        return rows if weight is None else rows * weight

    def forward(self, scores: Tensor, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the weighted mean over the rows, a float64 scalar: `sum(w l) / sum(w)`."""
        weights = self.row_weights(label, weight).to(torch.float64)
        return (weights * self.row_losses(scores, label).to(torch.float64)).sum() / weights.sum()


class CrossEntropy(Loss):
    """Softmax cross-entropy on logits [B, K] and class indices [B], with label smoothing e.

    Per row `-(1-e) log p_y - e/K sum_c (v_c / v_y) log p_c` with class weights v (all 1 if none are
    declared): times the row weight v_y that is the numerator of
    `torch.nn.functional.cross_entropy`.
    """

    def __init__(self, class_weights: tuple[float, ...] | None, label_smoothing: float) -> None:
        super().__init__(class_weights)
        self.label_smoothing = label_smoothing

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        if self.class_weights is None or not self.label_smoothing:
            return F.cross_entropy(
                scores, label, reduction="none", label_smoothing=self.label_smoothing
            )
        weights = self.class_weights.to(scores)
        return (
            F.cross_entropy(
                scores, label, weights, reduction="none", label_smoothing=self.label_smoothing
            )
            / weights[label]
        )


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy on log odds [B, 1] and labels 0/1 [B].

    `pos_weight` multiplies the loss of positives, not the divisor.
    """

    pos_weight: Tensor | None

    def __init__(
        self, class_weights: tuple[float, ...] | None = None, pos_weight: float | None = None
    ) -> None:
        super().__init__(class_weights)
        self.register_buffer(
            "pos_weight", None if pos_weight is None else torch.tensor(pos_weight), persistent=False
        )

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        weight = None if self.pos_weight is None else self.pos_weight.to(scores)
        return F.binary_cross_entropy_with_logits(
            scores.squeeze(1), label.to(scores.dtype), reduction="none", pos_weight=weight
        )


class SquaredError(Loss):
    """Squared error `(score - label)²` in units of the scaled label, scores [B, 1]."""

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        return F.mse_loss(scores.squeeze(1), label.to(scores.dtype), reduction="none")


class AbsoluteError(Loss):
    """Absolute error `|score - label|` in units of the scaled label, scores [B, 1]."""

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        return F.l1_loss(scores.squeeze(1), label.to(scores.dtype), reduction="none")


class Huber(Loss):
    """Huber loss: squared within `delta` (times 1/2), else linear; scaled label units, scores [B,
    1].
    """

    def __init__(self, delta: float) -> None:
        super().__init__()
        self.delta = delta

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        return F.huber_loss(
            scores.squeeze(1), label.to(scores.dtype), reduction="none", delta=self.delta
        )


class Quantile(Loss):
    """Pinball loss of quantile q in scaled label units, scores [B, 1].

    `q (label - score)` for a label above the score, `(1 - q) (score - label)` below.
    Source: Koenker and Bassett 1978, as in `sklearn.metrics.mean_pinball_loss`.
    """

    def __init__(self, quantile: float) -> None:
        super().__init__()
        self.quantile = quantile

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        above = label.to(scores.dtype) - scores.squeeze(1)
        return torch.maximum(self.quantile * above, (self.quantile - 1) * above)


class Poisson(Loss):
    """Half the Poisson deviance of label y and mean exp(s), scores s [B, 1].

    `exp(s) - y s + y log y - y`.
    It is `torch.nn.functional.poisson_nll_loss` plus a constant of the label, so that 0 is perfect.
    The label is divided by its scale, and never negative.
    """

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        log_mean, y = scores.squeeze(1), label.to(scores.dtype)
        return log_mean.exp() - y * log_mean + torch.special.xlogy(y, y) - y


class Tweedie(Loss):
    """Half the Tweedie deviance of label y and mean m = exp(score), scores [B, 1], 1 < power p < 2.

    `y^(2-p) / ((1-p)(2-p)) - y m^(1-p) / (1-p) + m^(2-p) / (2-p)`.
    The label is divided by its scale, and never negative. Source: Jorgensen 1987, as in
    `sklearn.metrics.mean_tweedie_deviance`, which is twice as large.
    """

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        log_mean, y, a, b = (
            scores.squeeze(1),
            label.to(scores.dtype),
            1 - self.power,
            2 - self.power,
        )
        return y**b / (a * b) - y * torch.exp(a * log_mean) / a + torch.exp(b * log_mean) / b


class BinaryFocal(BinaryCrossEntropy):
    """Binary cross-entropy times `(1 - p)^gamma`, p the probability of the row's own label.

    Source: Lin et al. 2017; class weights and `pos_weight` take the place of its alpha.
    """

    def __init__(
        self, gamma: float, class_weights: tuple[float, ...] | None, pos_weight: float | None
    ) -> None:
        super().__init__(class_weights, pos_weight)
        self.gamma = gamma

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        sign = 1 - 2 * label.to(scores.dtype)
        # log(1 - p) without cancelling; for gamma 0 the factor is 1
        wrong = torch.exp(self.gamma * F.logsigmoid(sign * scores.squeeze(1)))
        return wrong * super().per_row(scores, label)


class Focal(Loss):
    """Softmax cross-entropy times `(1 - p)^gamma`, p the probability of the row's own class.

    Source: Lin et al. 2017; class weights take the place of its alpha.
    """

    def __init__(self, gamma: float, class_weights: tuple[float, ...] | None) -> None:
        super().__init__(class_weights)
        self.gamma = gamma

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        logs = F.log_softmax(scores, dim=1)
        own = label[:, None]
        # log(1 - p) from the other classes: near p = 1 the difference would cancel
        others = logs.scatter(1, own, -torch.inf).logsumexp(dim=1)
        return -torch.exp(self.gamma * others) * logs.gather(1, own).squeeze(1)


class Ordinal(Loss):
    """Negative log likelihood of ordered classes, scores [B, K - 1]; see `link`."""

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]."""
        return F.nll_loss(ordered_log_probabilities(scores), label, reduction="none")


class TokenCrossEntropy(Loss):
    """Cross-entropy of a row's target tokens, from logits [B, T, V] and labels [B, T] (-100: no
    target).

    A row has the mean over its targets, weighted by their number (times its sample weight). A
    window's loss is therefore the sum over all target tokens divided by their number, for any rows,
    micro-batches and ranks.
    """

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the mean loss of each row's targets [B]; 0 for a row without any."""
        # [B, T, V] -> [B T, V], and back to [B, T]
        losses = F.cross_entropy(
            scores.flatten(0, 1), label.flatten().long(), reduction="none", ignore_index=NO_TARGET
        ).view_as(label)
        return losses.sum(1) / (label != NO_TARGET).sum(1).clamp_min(1)

    def row_losses(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]: its second axis is positions, not members."""
        return self.per_row(scores, label)

    def row_weights(self, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the targets of each row [B], times its sample weight; whole numbers are exact."""
        targets = (label != NO_TARGET).sum(1).to(torch.float64)
        return targets if weight is None else targets * weight


def pos_weight(declaration: Declaration, statistics: Statistics) -> float | None:
    """Return the factor on the loss of a binary label's positives: declared, or negatives /
    positives of train; None without one.
    """
    declared = declaration.loss.pos_weight
    if declared == "balanced":
        negatives, positives = statistics.class_counts
        return negatives / positives
    return None if declared == "none" else declared


def declared_quantile(declaration: Declaration) -> float:
    """Return the quantile of loss quantile.

    Raises:
        ConfigError: none is declared; a declaration with this loss has one.
    """
    if declaration.loss.quantile is None:
        raise ConfigError("loss quantile has to say which one: set loss.quantile, e.g. 0.9")
    return declaration.loss.quantile


def make_loss(declaration: Declaration, statistics: Statistics) -> Loss:
    """Create the declared loss, with class weights from train statistics if declared."""
    if statistics.labels:
        # makes the loss of each label here
        from training.objectives.label_losses import make_labels_loss

        return make_labels_loss(declaration, statistics)
    config = declaration.loss
    if declaration.task.kind == "causal_lm":
        return TokenCrossEntropy()
    weights = None if config.class_weights == "none" else statistics.class_weights
    match declaration.loss_kind:
        case "cross_entropy":
            return CrossEntropy(weights, config.label_smoothing)
        case "bce":
            return BinaryCrossEntropy(weights, pos_weight(declaration, statistics))
        case "mse":
            return SquaredError()
        case "mae":
            return AbsoluteError()
        case "focal" if declaration.task.kind == "binary":
            return BinaryFocal(config.gamma, weights, pos_weight(declaration, statistics))
        case "focal":
            return Focal(config.gamma, weights)
        case "ordinal":
            return Ordinal(weights)
        case "quantile":
            return Quantile(declared_quantile(declaration))
        case "poisson":
            return Poisson()
        case "tweedie":
            return Tweedie(config.power)
    return Huber(config.delta)
