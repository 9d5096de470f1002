"""Ensemble: networks whose weighted mean prediction is the prediction of one network's scores.

The mean is taken of predictions (probabilities, values), and given back as raw scores, so that
whatever follows a network's scores (loss, temperature, export, evaluation) applies unchanged.

B rows, K scores, M members, C classes of a label.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.errors import ConfigError
from schemas.label_config import LabelKind
from schemas.load import declare
from schemas.members import members_of
from schemas.records import RunSpec, Statistics
from training.models.build import build_model
from training.objectives.targets import targets_of

Column = tuple[LabelKind, slice]


class Ensemble(nn.Module):
    """Members and their weights, with the contract of one network.

    Args:
        members: networks `forward(batch) -> scores [B, K]`.
        columns: kind of each label, and its columns of the scores.
    """

    weights: Tensor

    def __init__(self, members: Sequence[nn.Module], columns: Sequence[Column]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.columns = tuple(columns)
        # float64, also in a float32 network: rounded weights would not add up to 1
        uniform = torch.full((len(members),), 1 / len(members), dtype=torch.float64)
        self.register_buffer("weights", uniform)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K] whose predictions are the weighted mean of the members'."""
        scores = torch.stack([member(batch) for member in self.members])
        return combine(self.columns, scores, self.weights)


def combine(columns: Sequence[Column], scores: Tensor, weights: Tensor) -> Tensor:
    """Map scores [M, B, K] and weights [M], sum 1, → scores [B, K] of the weighted mean prediction.

    Args:
        columns: kind of each label, and its columns of the scores.
        scores: of the members.
        weights: of the members; 0 leaves one out.
    """
    weights = weights.to(scores.dtype)
    found = [_mean_scores(kind, scores[:, :, place], weights) for kind, place in columns]
    return torch.cat(found, dim=1)


def _mean_scores(kind: LabelKind, scores: Tensor, weights: Tensor) -> Tensor:
    """Return the scores [B, C] of the weighted mean prediction from one label's [M, B, C].

    Computed from logarithms: a probability that rounds to 0 or 1 keeps its odds.
    """
    if kind == "regression":
        return torch.tensordot(weights, scores, dims=1)
    shares = weights.log()[:, None, None]
    if kind == "multiclass":
        return torch.logsumexp(shares + nn.functional.log_softmax(scores, dim=2), dim=0)
    log_sigmoid = nn.functional.logsigmoid
    positive = torch.logsumexp(shares + log_sigmoid(scores), dim=0)
    return positive - torch.logsumexp(shares + log_sigmoid(-scores), dim=0)


def label_columns(declaration: Declaration, statistics: Statistics) -> tuple[Column, ...]:
    """Return the kind of each label and its columns of the scores.

    Raises:
        ConfigError: the task has no labels whose predictions have a mean.
    """
    if statistics.labels:
        return tuple((t.kind, t.columns) for t in targets_of(declaration, statistics))
    match declaration.task.kind:
        case "binary" | "regression" as kind:
            return ((kind, slice(0, 1)),)
        case "multiclass":
            return (("multiclass", slice(0, len(statistics.classes))),)
    raise ConfigError(f"an ensemble of task {declaration.task.kind!r} has no mean prediction")


def build_ensemble(
    declaration: Declaration, statistics: Statistics, numbers: Sequence[int]
) -> Ensemble:
    """Build the ensemble of some members with initial weights and equal shares.

    Args:
        declaration: of the whole run.
        statistics: of the run; every member's inputs are made with them.
        numbers: of the members, from 1.
    """
    declared = members_of(declaration)
    networks = [build_model(declared[number - 1], statistics) for number in numbers]
    return Ensemble(networks, label_columns(declaration, statistics))


def build_network(run: RunSpec) -> nn.Module:
    """Build the network whose weights a run keeps: the declared one, or the ensemble of members."""
    declaration = declare(run.declaration)
    if run.members:
        return build_ensemble(declaration, run.statistics, run.members)
    return build_model(declaration, run.statistics)
