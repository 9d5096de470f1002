"""Losses over several labels, each of which may be unknown in a row: masked, never filled.

Multilabel: the mean over all known labels, `sum_ik w_k m_ik l_ik / sum_ik w_k m_ik`. Known labels
differ only in the weight of their column. Multitask: the weighted sum of each label's mean, `sum_k
w_k (sum_i s_i m_ik l_ik / sum_i s_i m_ik)`. In training, the fraction of known rows f_k is that of
all train rows, a constant: `sum_i s_i sum_k (w_k / f_k) m_ik l_ik / sum_i s_i`. Over all train rows
both are equal. Over a window the second is an unbiased estimate: a single row with the only known
label of a column does not get the column's whole weight.

Both are `sum(w l) / sum(w)` over rows, so ranks and micro-batches add up as for a single label.
Shapes: B rows, K scores, L labels. m_ik: 1 if known, times the class weight if declared. s_i:
sample weight.
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
    """Base of both losses: each label's own loss on its own scores, with zero weight if unknown.

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
        """Return m [B, L] of labels [B, L]: class weight if known, 0 if unknown (NaN)."""
        columns = [loss.row_weights(self._filled(label, i)) for i, loss in enumerate(self.each)]
        return torch.stack(columns, dim=1) * ~torch.isnan(label)

    def parts(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each label [B, L], 0 if unknown; scores are [B, K], labels [B, L]."""
        columns = [
            loss.per_row(scores[:, t.columns], self._filled(label, i))
            for i, (t, loss) in enumerate(zip(self.targets, self.each, strict=True))
        ]
        return torch.stack(columns, dim=1).masked_fill(torch.isnan(label), 0.0)

    def _filled(self, label: Tensor, index: int) -> Tensor:
        """Return one label's column [B] as input of its loss.

        The placeholder of an unknown label is masked afterwards.
        """
        column = label[:, index].nan_to_num(0.0)
        return column if self.targets[index].kind == "regression" else column.long()


class MultilabelLoss(LabelsLoss):
    """Mean over all known labels: a row weighs as much as its known labels."""

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the mean over the known labels of each row [B]; 0 for a row without any."""
        weights = self.masses(label) * self.weights
        return (self.parts(scores, label) * weights).sum(1) / weights.sum(1).clamp_min(TINY)

    def row_weights(self, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the summed weights of each row's known labels [B], times its sample weight."""
        rows = (self.masses(label) * self.weights).sum(1)
        return rows if weight is None else rows * weight


class MultitaskLoss(LabelsLoss):
    """Weighted sum of each label's mean."""

    shares: Tensor

    def __init__(self, targets: Targets) -> None:
        super().__init__(targets)
        self.register_buffer(
            "shares",
            torch.tensor([target.share for target in targets], dtype=torch.float64),
            persistent=False,
        )

    def per_row(self, scores: Tensor, label: Tensor) -> Tensor:
        """Return the loss of each row [B]: known labels by weight over fraction of known train
        rows.
        """
        return (self.parts(scores, label) * self.masses(label) * (self.weights / self.shares)).sum(
            1
        )

    def row_weights(self, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the sample weight of each row [B]; ones if none is declared."""
        return (
            torch.ones(len(label), dtype=self.weights.dtype, device=label.device)
            if weight is None
            else weight
        )

    def forward(self, scores: Tensor, label: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the weighted sum of each label's mean over the given rows, a float64 scalar.

        It uses the known rows among them; labels without any are left out.
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
    """Create the loss of a task of several labels."""
    targets = targets_of(declaration, statistics)
    return (
        MultilabelLoss(targets) if declaration.task.kind == "multilabel" else MultitaskLoss(targets)
    )
