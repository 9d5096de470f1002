"""Losses over several labels, of which any may be unknown in a row: masked, never filled in.

Multilabel: the mean over all known labels, `sum_ik w_k m_ik l_ik / sum_ik w_k m_ik`. Every known
label counts alike but for the weight of its column. Multitask: the weighted sum of each label's own
mean, `sum_k w_k (sum_i s_i m_ik l_ik / sum_i s_i m_ik)`. In training the share of known rows f_k is
that of the whole train side, a constant: `sum_i s_i sum_k (w_k / f_k) m_ik l_ik / sum_i s_i`. Over
all train rows both are the same, and over a window the second is an estimate of it without bias, in
which a window with a single known label of some column does not give that one row the column's
whole weight.

Both are `sum(w l) / sum(w)` over rows, so that ranks and micro-batches add up as for a single
label. Shapes: B rows, K scores, L labels. m_ik: 1 where known, times the weight of the class where
one is declared. s_i: sample weight.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.records import Statistics
from training.objectives.losses import Loss, make_loss
from training.objectives.targets import Targets, targets_of

TINY = torch.finfo(torch.float32).tiny


class LabelsLoss(Loss):
    """What both have in common: each label's own loss on its own scores, zero with zero weight
    where it is unknown.

    Args:
        targets: The labels, in the order of the columns of the label array.
    """

    weights: Tensor

    def __init__(self, targets: Targets) -> None:
        super().__init__()
        self.targets = targets
        self.each = nn.ModuleList(
            make_loss(target.declaration, target.statistics) for target in targets
        )
        self.register_buffer(
            "weights",
            torch.tensor([target.weight for target in targets], dtype=torch.float64),
            persistent=False,
        )

    def masses(self, label: Tensor) -> Tensor:
        """m [B, L] of labels [B, L]: class weight where known, 0 where unknown (NaN)."""
        columns = [loss.row_weights(self._filled(label, i)) for i, loss in enumerate(self.each)]
        return torch.stack(columns, dim=1) * ~torch.isnan(label)

    def parts(self, scores: Tensor, label: Tensor) -> Tensor:
        """Loss of each known label [B, L], from scores [B, K] and labels [B, L]; 0 where
        unknown.
        """
        columns = [
            loss.per_row(scores[:, t.columns], self._filled(label, i))
            for i, (t, loss) in enumerate(zip(self.targets, self.each, strict=True))
        ]
        return torch.stack(columns, dim=1).masked_fill(torch.isnan(label), 0.0)

    def _filled(self, label: Tensor, index: int) -> Tensor:
        """One label's column [B] as its own loss takes it; what stands in place of an unknown one
        is masked afterwards.
        """
        column = label[:, index].nan_to_num(0.0)
        return column if self.targets[index].kind == "regression" else column.long()


class MultilabelLoss(LabelsLoss):
    """The mean over all known labels: a row weighs as much as its known labels do."""

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Mean over the known labels of each row [B]; 0 for a row without any."""
        weights = self.masses(label) * self.weights
        return (self.parts(scores, label) * weights).sum(1) / weights.sum(1).clamp_min(TINY)

    def row_weights(self, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Summed weights of the known labels of each row [B], times its sample weight."""
        rows = (self.masses(label) * self.weights).sum(1)
        return rows if weight is None else rows * weight


class MultitaskLoss(LabelsLoss):
    """The weighted sum of each label's own mean."""

    shares: Tensor

    def __init__(self, targets: Targets) -> None:
        super().__init__(targets)
        self.register_buffer(
            "shares",
            torch.tensor([target.share for target in targets], dtype=torch.float64),
            persistent=False,
        )

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Loss of each row [B]: every known label by its weight over its share of known
        train rows.
        """
        return (self.parts(scores, label) * self.masses(label) * (self.weights / self.shares)).sum(
            1
        )

    def row_weights(self, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Sample weight of each row [B]; ones where none is declared."""
        return (
            torch.ones(len(label), dtype=self.weights.dtype, device=label.device)
            if weight is None
            else weight
        )

    def forward(self, scores: Tensor, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Weighted sum of each label's mean over the rows given, whatever shares are known among
        them, a float64 scalar; labels without any are left out.
        """
        masses = (
            self.masses(label).to(torch.float64)
            * self.row_weights(label, weight).to(torch.float64)[:, None]
        )
        means = (self.parts(scores, label).to(torch.float64) * masses).sum(0) / masses.sum(
            0
        ).clamp_min(TINY)
        return (means * self.weights).sum()


def make_labels_loss(declaration: Declaration, statistics: Statistics) -> LabelsLoss:
    """The loss of a task of several labels."""
    targets = targets_of(declaration, statistics)
    return (
        MultilabelLoss(targets) if declaration.task.kind == "multilabel" else MultitaskLoss(targets)
    )
