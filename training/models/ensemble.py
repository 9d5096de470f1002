"""Ensemble: networks whose weighted mean prediction is the prediction of one network's scores.

B rows, K scores, M members.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.load import declare
from schemas.members import members_of
from schemas.records import RunSpec, Statistics
from training.models.build import build_model
from training.models.temperature import Temperature, build_temperature
from training.objectives.mean_prediction import Column, combine, label_columns


class Ensemble(nn.Module):
    """Members and their weights, with the contract of one network.

    Args:
        members: networks `forward(batch) -> scores [B, K]`, without a temperature.
        columns: link of each label, and its columns of the scores.
        temperature: divides the scores of the mean prediction, if one is declared.
    """

    weights: Tensor
    temperatures: Tensor

    def __init__(
        self,
        members: Sequence[nn.Module],
        columns: Sequence[Column],
        temperature: Temperature | None = None,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.columns = tuple(columns)
        self.temperature = temperature
        # float64, also in a float32 network: rounded weights would not add up to 1
        uniform = torch.full((len(members),), 1 / len(members), dtype=torch.float64)
        self.register_buffer("weights", uniform)
        self.register_buffer("temperatures", torch.ones(len(members), dtype=torch.float64))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K] whose predictions are the weighted mean of the members'.

        Each member's scores are divided by its own temperature first; a declared temperature
        divides the scores of the mean.
        """
        scores = torch.stack([member(batch) for member in self.members])
        scores = scores / self.temperatures.to(scores.dtype)[:, None, None]
        mean = combine(self.columns, scores, self.weights)
        return mean if self.temperature is None else self.temperature(mean)


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
    columns = label_columns(declaration, statistics)
    return Ensemble(networks, columns, build_temperature(declaration, statistics))


def build_network(run: RunSpec) -> nn.Module:
    """Build the network whose weights a run keeps: the declared one, or the ensemble of members."""
    declaration = declare(run.declaration)
    if run.members:
        return build_ensemble(declaration, run.statistics, run.members)
    return build_model(declaration, run.statistics)
