"""Whether a program's own dropout leaves the scale of what it thins out: tried on a copy, beside
the program.
"""

from __future__ import annotations

import copy
import weakref

import torch
from torch import Tensor, nn

from training.watch.aside import aside
from training.watch.forwards import Call
from training.watch.record import Watch

DRAWS, OFF, SURE = 200, 0.03, 6  # of masks; share of the scale; standard errors
SHAPES = ((16, 12, 8), (16, 8), (16, 6, 8, 8))


class Dropouts:
    """Looks at each network that is trained, once."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def forwarded(self, call: Call) -> None:
        """Try its own layers that are called after dropout and have no weights."""
        if not (call.grad and call.training) or call.module in self.seen:
            return
        self.seen.add(call.module)
        for name, part in call.module.named_modules():
            kind = type(part)
            own = (
                not kind.__module__.startswith("torch.")
                and "drop" in kind.__name__.lower()
                and next(part.parameters(), None) is None
            )
            if (
                own
                and (scale := scale_of(self.watch, part)) is not None
                and not 1 - OFF < scale < 1 + OFF
            ):
                told = (
                    f"{kind.__name__} ({name}) gives {scale:.2g} times in train mode, on average,"
                    " what it gives in eval mode"
                )
                self.watch.tell("BH886", told, call.place)


def scale_of(watch: Watch, part: nn.Module) -> float | None:
    """The mean of what a layer gives for ones in train mode, over what it gives in eval mode; None
    where it cannot be told or is as it should be within chance.
    """
    try:
        tried = copy.deepcopy(part)
    except Exception:
        return None
    with aside(watch), torch.no_grad():
        found = next((f for shape in SHAPES if (f := _tried(tried, shape)) is not None), None)
    if found is None:
        return None
    still, drawn = found
    if not float(still.mean()) > 0 or float(still.std()) > 0:
        return None
    ratio = drawn / still.mean()
    mean, error = float(ratio.mean()), float(ratio.std()) / DRAWS**0.5
    return mean if abs(mean - 1) > SURE * error else None


def _tried(part: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """What a layer gives for ones in eval mode, and the means of what it gives in train mode; None
    where it takes no such shape.
    """
    try:
        still = part.eval()(torch.ones(shape))
        drawn = torch.stack([part.train()(torch.ones(shape)).mean() for _ in range(DRAWS)])
    except Exception:
        return None
    return (still, drawn) if isinstance(still, Tensor) and still.shape == shape else None
