"""Modules of a user: a sound one, and one for each mistake that preflight must name."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models.shape import ModelShape


class Sound(nn.Module):
    """Numeric columns through one hidden layer; torch's own initial weights."""

    def __init__(self, shape: ModelShape, width: int = 64) -> None:
        super().__init__()
        self.hidden = nn.Linear(shape.numeric, width)
        self.head = nn.Linear(width, shape.outputs)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return F.relu(self.hidden(batch["numeric"]))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(self.features(batch))


class Detached(Sound):
    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch).detach()


class NoGradient(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return super().forward(batch)


class Unused(Sound):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.forgotten = nn.Linear(3, 3)


class Dead(Sound):
    """A gate that is closed: reached, but by a gradient of 0."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return F.relu(super().features(batch) * 0 - 1)


class Frozen(Sound):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.requires_grad_(False)


class Mixing(Sound):
    """Softmax over the batch."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch).softmax(dim=0) * 10


class Company(Sound):
    """Divides by the number of rows: no row sees another's inputs, yet alone it scores
    differently.
    """

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return super().features(batch) * (1 + 1 / len(batch["numeric"]))


class NotFinite(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(torch.log(self.hidden(batch["numeric"])))


class Explosive(Sound):
    """Finite for usual inputs, not for large ones."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch) + torch.expm1(
            F.relu(batch["numeric"].abs().amax(1, keepdim=True) - 6) * 30
        )


class RootAtZero(Sound):
    """Its value is finite where its gradient is not."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch) + torch.sqrt((self.hidden(batch["numeric"])[:, :1] * 0) ** 2)


class TooWide(Sound):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.head = nn.Linear(64, shape.outputs + 1)


class Squeezed(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch).squeeze()


class Tupled(Sound):
    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor]:  # type: ignore[override]
        return (super().forward(batch),)


class Raising(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        raise RuntimeError("shapes cannot be multiplied")


class Sigmoid(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch).sigmoid()


class Softmax(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch).softmax(dim=1)


class Positive(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return F.softplus(super().forward(batch))


class Bounded(Sound):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch).tanh() * 0.3


class Loud(Sound):
    """Scores of thousands before training."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        nn.init.normal_(self.head.weight, std=100)


class BatchNormed(Sound):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(64)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return self.norm(super().features(batch))


class Noisy(Sound):
    """Dropout that stays on in eval mode."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        return F.dropout(super().features(batch), 0.5)


class ZeroInitialised(Sound):
    """Sound: its last layer starts at zero, so that the first gradient stops there."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        nn.init.zeros_(self.head.weight)


class Deaf(nn.Module):
    """The inputs never reach the output."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.full((1, shape.outputs), 0.3))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.level.expand(len(batch["numeric"]), -1)


class Demanding(Sound):
    def __init__(self, shape: ModelShape, *, colour: str) -> None:
        super().__init__(shape)


NOT_A_MODULE = 3
