"""Users' language models with a planted mistake each; `Sound` has none. Built as `Class(shape)`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from schemas.config import CausalTransformerModel
from training.models.causal_transformer import CausalTransformer, may_see
from training.models.shape import ModelShape

SMALL = CausalTransformerModel(width=32, depth=1, heads=2, dropout=0.0)


class Sound(CausalTransformer):
    """As it should be."""

    def __init__(self, shape: ModelShape, packed: bool = True) -> None:
        super().__init__(shape, SMALL, packed)


class Peeking(Sound):
    """Attends to what comes later."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.embedding(batch["tokens"])
        own = (batch["segments"].unsqueeze(2) == batch["segments"].unsqueeze(1)).unsqueeze(1)
        for block in self.blocks:
            x = block(x, own, None)
        return self.norm(x) @ self.embedding.weight.T


class Leaking(Sound):
    """Packs documents, but forgets the mask between them."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, packed=False)


class Mixing(Sound):
    """Adds the mean over the batch."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        scores = super().forward(batch)
        return scores + scores.mean(0, keepdim=True)


class Loud(Sound):
    """Starts with large logits."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return 200 * super().forward(batch)


class LastOnly(Sound):
    """Scores the last position alone."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch)[:, -1]


class Blind(Sound):
    """Logits that no token reaches: the shares of tokens are all that it can learn."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward({**batch, "tokens": torch.full_like(batch["tokens"], 4)})


class Unmasked(Sound):
    """A mask that allows some positions nothing."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x, mask = self.embedding(batch["tokens"]), may_see(batch["segments"])
        closed = mask & ~torch.eye(mask.shape[-1], dtype=torch.bool)
        scores = torch.where(closed, 0.0, -torch.inf).softmax(-1)[:, 0] @ x
        return scores @ self.embedding.weight.T


class Frozen(Sound):
    """A block that the gradient does not reach."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            x = self.blocks[0](self.embedding(batch["tokens"]), may_see(batch["segments"]), None)
        return self.norm(x) @ self.embedding.weight.T


class Counter(nn.Module):
    """Not a language model at all."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.layer = nn.Linear(shape.context, shape.outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.layer(batch["tokens"].float())
