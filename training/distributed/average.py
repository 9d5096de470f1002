"""Exponential moving average of a network's weights (`train.ema`).

Validation, the best weights and with them the exported model use the average; training continues
from the raw weights. Buffers such as running statistics are not averaged: the network's own are
used, as in `torch.optim.swa_utils.AveragedModel`.

P trainable parameters. Of a sharded parameter each rank averages its own slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from schemas.train_config import EmaConfig
from training.distributed.layout import local


def weight_of(update: int, ema: EmaConfig) -> float:
    """Return the weight of the parameters after an update, the first of which is number 1.

    The first one is taken whole. With a warm-up, the decay of update n + 1 is at most
    (1 + n) / (10 + n): the average of a short run does not remember its random start.

    Source: `num_updates` of tf.train.ExponentialMovingAverage.

    >>> ema = EmaConfig(decay=0.99, warmup=True)
    >>> [round(weight_of(n, ema), 3) for n in (1, 2, 11, 10_000)]
    [1.0, 0.818, 0.45, 0.01]
    """
    before = update - 1
    if before == 0:
        return 1.0
    decay = min(ema.decay, (1 + before) / (10 + before)) if ema.warmup else ema.decay
    return 1 - decay


class Average:
    """Averaged weights next to the raw ones; without `train.ema` it is empty and does nothing.

    Args:
        model: network after it was distributed over the ranks.
        ema: as declared, or None.

    Attributes:
        weights: averages by parameter name [P], distributed like the parameters.
    """

    def __init__(self, model: nn.Module, ema: EmaConfig | None) -> None:
        self.ema = ema
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad and ema}
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in self.parameters.items()
        }

    def update(self, update: int) -> None:
        """Move the averages towards the parameters. Never waits for the device.

        Args:
            update: updates of the parameters so far, with this one; skipped steps do not count.
        """
        if self.ema is not None:
            torch._foreach_lerp_(*self._locals(), weight_of(update, self.ema))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the network have the averaged weights inside; afterwards the raw ones, to the bit."""
        if self.ema is None:
            yield
            return
        averages, raw = self._locals()
        kept = [tensor.clone() for tensor in raw]  # before any change: memory may run out here
        try:
            torch._foreach_copy_(raw, averages)
            yield
        finally:
            torch._foreach_copy_(raw, kept)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Restore averages that are not sharded.

        Raises:
            KeyError: the average of a parameter is missing.
        """
        for name, average in self.weights.items():
            average.copy_(weights[name])

    def _locals(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return this rank's parts of averages and parameters [P]; both share memory."""
        # FSDP2 may move a slice when it first runs, so that none is kept
        return (
            [local(tensor) for tensor in self.weights.values()],
            [local(parameter.detach()) for parameter in self.parameters.values()],
        )
