"""Multi-layer perceptron over the row vector."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from schemas.config import MlpModel
from training.models.inputs import Head, RowVector, init_linear_
from training.models.shape import ModelShape


class Mlp(nn.Module):
    """Hidden layers `dropout(gelu(W x + b))`, then the head. Weights as in `init_linear_`."""

    def __init__(self, shape: ModelShape, config: MlpModel) -> None:
        super().__init__()
        self.inputs = RowVector(shape, config.numeric_embedding)
        widths = (self.inputs.width, *config.hidden)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.GELU(), nn.Dropout(config.dropout)]
            init_linear_(layers[-3])
        self.hidden = nn.Sequential(*layers)
        self.head = Head(widths[-1], shape)

    def ordered_layers(self) -> list[nn.Module]:
        """Return layers from input to output: the inputs, each hidden layer, the head."""
        return [
            self.inputs,
            *(layer for layer in self.hidden if isinstance(layer, nn.Linear)),
            self.head,
        ]

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K]."""
        return self.head(self.hidden(self.inputs(batch)))
