"""Networks that lose what is in their columns, or drop values wrongly; each is `Sound` but for the
line that is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.training.modules import Sound
from training.models.shape import ModelShape


class SkipsAColumn(Sound):
    """A slice that was right while an identifier stood first."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.hidden = nn.Linear(shape.numeric - 1, 64)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward({"numeric": batch["numeric"][:, 1:]})


class PooledTokens(nn.Module):
    """A token for each column, all by the same layer, and nothing that says which column a token is
    of.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.scaled = shape.numeric - shape.indicators
        self.token, self.flags = nn.Linear(1, 32), nn.Linear(shape.indicators, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, shape.outputs))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        tokens = torch.tanh(self.token(batch["numeric"][:, : self.scaled].unsqueeze(2)))
        mixed = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(mixed.mean(1) + self.flags(batch["numeric"][:, self.scaled :]))


class TwoSummed(Sound):
    """Two of the columns are added up before anything has weighed them."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.hidden = nn.Linear(shape.numeric - 1, 64)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        values = batch["numeric"]
        return super().forward(
            {
                "numeric": torch.cat(
                    [values[:, 1:3].sum(1, keepdim=True), values[:, :1], values[:, 3:]], 1
                )
            }
        )


class WholeNumbers(Sound):
    """Scaled values rounded to whole numbers, as if they were counts still."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward({"numeric": batch["numeric"].round()})


class NothingBelowZero(Sound):
    """The logarithm of scaled values, of which half are negative."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward({"numeric": batch["numeric"].clamp(min=0).log1p()})


class KeepsThePlain(Sound):
    """Dropout by hand, between two layers, that leaves what it keeps as it is."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = super().features(batch)
        return torch.where(torch.rand_like(found) < 0.4, 0.0, found) if self.training else found


class Branch(nn.Module):
    """A layer that is left out for some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, values: Tensor) -> Tensor:
        found = F.gelu(self.layer(values))
        return found * torch.bernoulli(torch.full((len(found), 1), 0.5)) if self.training else found


class PlainDepth(Sound):
    """Stochastic depth that does not make up for the branches that it leaves out, behind a batch
    norm.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.norm, self.branch = nn.BatchNorm1d(64), Branch()

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        found = self.norm(super().features(batch))
        return found + self.branch(found)


class Ordered(Sound):
    """Scores that are sorted, so that the last class always wins."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch).sort(dim=1).values


class OneForAll(Sound):
    """One score for all classes: a softmax sees nothing of it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.head = nn.Linear(64, 1)
        self.level = nn.Parameter(torch.tensor(shape.prior))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch) + self.level
