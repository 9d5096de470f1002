"""Peak memory, and gradient norms by layer with notes on vanishing and exploding gradients.

Measured on logged steps. A layer is a module with parameters; its norm is that of all its
gradients.

- Vanishing: a layer's norm is below 1e-6 of the median layer's (or zero), three logged steps in a
  row.
- Exploding: the whole gradient's norm is above 100 times its median over the last 50 logged steps,
  of at least 5.

Each is reported once per layer.
"""

from __future__ import annotations

import math
import resource
from collections import deque
from statistics import median

import torch

VANISHING_SHARE = 1e-6
VANISHING_STEPS = 3
EXPLODING_FACTOR = 100.0
EXPLODING_HISTORY = 50
EXPLODING_MINIMUM = 5


def layer_norms(norms: dict[str, float]) -> dict[str, float]:
    """Compute the norm of each layer from the norms of its parameters.

    >>> layer_norms({"head.weight": 3.0, "head.bias": 4.0, "scale": 1.0})
    {'head': 5.0, 'scale': 1.0}
    """
    squares: dict[str, float] = {}
    for name, norm in norms.items():
        layer = name.rpartition(".")[0] or name
        squares[layer] = squares.get(layer, 0.0) + norm * norm
    return {layer: math.sqrt(square) for layer, square in squares.items()}


class GradientHealth:
    """Monitor of gradient norms at logged steps."""

    def __init__(self) -> None:
        self._history: deque[float] = deque(maxlen=EXPLODING_HISTORY)
        self._vanished: dict[str, int] = {}
        self._noted: set[str] = set()

    def observe(self, step: int, layers: dict[str, float], total: float) -> list[str]:
        """Return new findings at this step, as plain sentences."""
        notes = [
            note
            for layer, norm in layers.items()
            if (note := self._vanishing(step, layer, norm, median(layers.values())))
        ]
        if (
            len(self._history) >= EXPLODING_MINIMUM
            and total > EXPLODING_FACTOR * median(self._history)
            and "" not in self._noted
        ):
            self._noted.add("")
            largest = max(layers, key=lambda layer: layers[layer])
            notes.append(
                f"step {step}: exploding gradient: norm {total:.3g} is more than"
                f" {EXPLODING_FACTOR:g} times the recent median {median(self._history):.3g},"
                f" largest in {largest} ({layers[largest]:.3g}); lower optimizer.lr or clip harder"
            )
        self._history.append(total)
        return notes

    def _vanishing(self, step: int, layer: str, norm: float, typical: float) -> str:
        self._vanished[layer] = (
            self._vanished.get(layer, 0) + 1 if norm <= VANISHING_SHARE * typical else 0
        )
        if self._vanished[layer] < VANISHING_STEPS or layer in self._noted:
            return ""
        self._noted.add(layer)
        return (
            f"step {step}: vanishing gradient in {layer}: norm {norm:.3g} where the median layer"
            f" has {typical:.3g}, {VANISHING_STEPS} logged steps in a row; check its initial"
            " weights, dead activations, or whether it can be reached at all"
        )


def memory_mb(device: torch.device) -> float:
    """Return the peak memory in MiB: of the device, or of this process on the CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
