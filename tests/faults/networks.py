"""A network with every kind of state that a kill could tear: dropout, running statistics, affine parameters."""

from __future__ import annotations

from torch import Tensor, nn

from training.models.shape import ModelShape


class Delicate(nn.Module):
    """Two blocks with dropout; the first one keeps running statistics, which a mere forward pass changes."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(shape.numeric, 16), nn.BatchNorm1d(16), nn.Sequential(nn.GELU(), nn.Dropout(0.3))),
                nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Sequential(nn.GELU(), nn.Dropout(0.3))),
            ]
        )
        self.head = nn.Linear(16, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores [B, outputs]."""
        values = batch["numeric"]
        for block in self.blocks:
            values = block(values)
        return self.head(values)
