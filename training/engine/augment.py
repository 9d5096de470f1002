"""Random changes of train inputs, drawn from the window's own stream: a resumed run repeats them.

Shapes: B rows, D numeric columns of which the last `indicators` are 0/1 flags of missing values, C
channels, H height, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from schemas.config import AugmentConfig
from schemas.errors import ConfigError
from training.engine.window_tensors import WindowTensor


class Augment:
    """Apply the declared changes to a batch; return the same batch if none are declared.

    Args:
        config: `train.augment`.
        indicators: number of last numeric columns that are flags and get no noise.
        inputs: a batch's tensors, or anything with the same keys and shapes.

    Raises:
        ConfigError: noise without numeric columns, flip or shift without an image ([.., H, W]).
    """

    def __init__(self, config: AugmentConfig, indicators: int, inputs: dict[str, Tensor]) -> None:
        self.config, self.indicators = config, indicators
        self.images = tuple(
            key
            for key, value in inputs.items()
            if key.startswith("tensor_")
            and value.ndim in (3, 4)
            and not isinstance(value, WindowTensor)
        )
        if config.noise and "numeric" not in inputs:
            raise ConfigError(
                "train.augment.noise needs numeric columns, the data have none; unset it"
            )
        if (config.flip or config.shift) and not self.images:
            raise ConfigError(
                "train.augment.flip and shift need a tensor column of shape [height, width] or"
                " [channels, height, width]; the data have none"
            )

    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch with copies of the tensors that changed."""
        changed = dict(batch)
        if self.config.noise:
            changed["numeric"] = self._noisy(batch["numeric"])
        for key in self.images if self.config.flip or self.config.shift else ():
            changed[key] = self._moved(batch[key])
        return changed

    def _noisy(self, numeric: Tensor) -> Tensor:
        noise = torch.randn_like(numeric) * self.config.noise
        if self.indicators:
            noise[:, -self.indicators :] = 0.0
        return numeric + noise

    def _moved(self, images: Tensor) -> Tensor:
        """Mirror images [B, H, W] or [B, C, H, W] at random, shift each by its own offset; edges
        repeat.
        """
        rows, by = len(images), self.config.shift
        height, width = images.shape[-2:]
        down, right = (
            torch.randint(-by, by + 1, (rows, 1), device=images.device) for _ in range(2)
        )
        y = (torch.arange(height, device=images.device) + down).clamp(0, height - 1)  # [B, H]
        x = (torch.arange(width, device=images.device) + right).clamp(0, width - 1)  # [B, W]
        if self.config.flip:
            mirrored = torch.rand(rows, 1, device=images.device) < 0.5
            x = torch.where(mirrored, width - 1 - x, x)
        # [B, ..., H, W] -> one gather over flattened positions [B, C, H W]
        positions = (y.unsqueeze(2) * width + x.unsqueeze(1)).flatten(1).unsqueeze(1)
        flat = images.reshape(rows, -1, height * width)
        return flat.gather(2, positions.expand(-1, flat.shape[1], -1)).reshape(images.shape)
