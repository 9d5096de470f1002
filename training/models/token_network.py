"""Contract of a body over tokens: `forward(batch) -> logits [B, T, V]`.

B sequences, T positions (at most the context), V tokens of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from schemas.errors import ConfigError
from training.models.shape import ModelShape

KEYS = ("segments", "tokens")


class TokenNetwork(nn.Module):
    """Check the batch, pass `tokens` and `segments` int [B, T] to the body, return float logits.

    The logits are checked. A position's logits are those of the next token. They may depend on the
    tokens of the same segment up to that position, and on nothing else.
    """

    def __init__(self, shape: ModelShape, body: nn.Module) -> None:
        super().__init__()
        self.shape = shape
        self.body = body

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Map a batch → logits [B, T, V].

        Raises:
            ConfigError: keys or shapes of the batch, or the body's output, break the contract.
        """
        check_tokens(self.shape, batch)
        scores = self.body({name: batch[name] for name in KEYS})
        check_logits(self.shape, batch["tokens"], scores)
        return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores


def check_tokens(shape: ModelShape, batch: dict[str, Tensor]) -> None:
    """Refuse a batch without the keys and shapes of the contract.

    Raises:
        ConfigError: naming the key, the expected and the found shape.
    """
    if set(batch) != set(KEYS):
        raise ConfigError(
            f"the model expects the batch keys {list(KEYS)}, got {sorted(batch)}; label and weight"
            " are not inputs"
        )
    for key, value in batch.items():
        if value.ndim != 2 or value.shape[1] > shape.context:
            raise ConfigError(
                f"batch[{key!r}]: expected ['B', at most {shape.context}], got {list(value.shape)};"
                " the arrays were made with another context"
            )


def check_logits(shape: ModelShape, tokens: Tensor, scores: Any) -> None:
    """Refuse scores that are not a tensor [B, T, V].

    Raises:
        ConfigError: naming both shapes.
    """
    expected = [*tokens.shape, shape.outputs]
    found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if found != expected:
        raise ConfigError(
            f"the model must return raw logits [B, T, {shape.outputs}] = {expected}, got {found};"
            f" set the width of its last layer to {shape.outputs}, keep all positions"
        )
