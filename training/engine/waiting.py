"""Parameters that are trained from a later step on (`model.unfreeze_at`)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


class Waiting:
    """Drops the gradients of parameters before their first step.

    So the optimizer has no state for them until then.

    Args:
        parameters: all trainable ones, by name.
        first_steps: the first step of those that wait, by name.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], first_steps: Mapping[str, int]
    ) -> None:
        self.parameters = parameters
        self.first = {name: first_steps[name] for name in parameters if name in first_steps}

    def trained(self, step: int) -> list[nn.Parameter]:
        """Return the parameters that a step trains."""
        return [p for name, p in self.parameters.items() if self.first.get(name, 0) <= step]

    def drop(self, step: int) -> bool:
        """Drop the gradients of parameters that wait; return True where some are new."""
        for name, first in self.first.items():
            if step < first:
                self.parameters[name].grad = None
        return step in self.first.values()
