"""Where a network drops values in train mode without scaling up those that it keeps: dropout of
one's own, written wrongly.

What follows sees values of another size in training than in evaluation. Scores do not show it:
behind a layer norm, dropout that is written rightly changes their mean as much. So it is looked for
where it happens, at what goes into and comes out of each module, with everything before it as in
eval mode.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

PASSES = 32
FEWEST_DROPPED = 0.02  # share of values
LIKE = 1e-3  # relative difference of values that are the same but for rounding
# difference between 1 and the mean of a value in train mode, as a multiple of that in eval mode
UNSCALED = 0.25
Place = tuple[str, str, int]  # module, "input" or "output", number of the call


@dataclass(frozen=True)
class Dropped:
    """Values that a module, or what stands before it, sets to 0 at random: where, which share is
    kept, and by what that is multiplied.
    """

    where: str
    kept: float
    factor: float


def dropped_unscaled(network: nn.Module, inputs: dict[str, Tensor]) -> Dropped | None:
    """The first place at which values are dropped and their mean is not kept; None where there is
    none.

    Args:
        network: its dropout modules may stay on, as they keep the mean; not changed.
        inputs: of a few rows.
    """
    student, clean, shares = (
        copy.deepcopy(network),
        dict[Place, Tensor](),
        defaultdict[Place, list[tuple[float, float]]](list),
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _watched(student.eval(), inputs, clean.setdefault)

        def compare(place: Place, value: Tensor) -> Tensor:
            if place not in clean or clean[place].shape != value.shape:
                return value
            found = _masked(value, clean[place])
            shares[place].append(found or (math.nan, math.nan))
            return clean[place]

        for _ in range(PASSES):
            _watched(student.train(), inputs, compare)
    return next(
        (found for place, measured in shares.items() if (found := _judged(place, measured))), None
    )


def _watched(
    network: nn.Module, inputs: dict[str, Tensor], look: Callable[[Place, Tensor], Tensor]
) -> None:
    """One forward pass in which each module is given, and gives on, what `look` makes of its input
    and output.
    """
    calls, handles = defaultdict[tuple[str, str], int](int), list[RemovableHandle]()

    def seen(name: str, side: str, value: object) -> object:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return value
        calls[name, side] += 1
        return look((name, side, calls[name, side]), value.clone())

    def before(name: str) -> Callable[[nn.Module, tuple[object, ...]], tuple[object, ...]]:
        return lambda module, given: (seen(name, "input", given[0]), *given[1:]) if given else given

    def after(name: str) -> Callable[[nn.Module, object, object], object]:
        return lambda module, given, output: seen(name, "output", output)

    for name, module in network.named_modules():
        handles += [
            module.register_forward_pre_hook(before(name)),
            module.register_forward_hook(after(name)),
        ]
    network({name: t.clone() for name, t in inputs.items()})
    for handle in handles:
        handle.remove()


def _masked(value: Tensor, clean: Tensor) -> tuple[float, float] | None:
    """Share of values that are kept, and their factor, where each of `value` is 0 or the same
    multiple of `clean`; None where it is not so.
    """
    least = 1e-6 * float(clean.abs().max()) if clean.numel() else 0.0
    alive = clean.abs() > least
    kept = alive & (value != 0)
    if not kept.any() or bool((value[~alive].abs() > least).any()):
        return None
    factors = value[kept] / clean[kept]
    factor = float(factors.mean())
    if float((factors - factor).abs().max()) > LIKE * abs(factor):
        return None
    return float(kept.sum() / alive.sum()), factor


def _judged(place: Place, measured: list[tuple[float, float]]) -> Dropped | None:
    """What was found at a place in all passes, where it is a dropout that does not keep the mean.

    Args:
        place: of the values.
        measured: share kept and factor, by pass.
    """
    kept, factor = torch.tensor(measured, dtype=torch.float64).T
    if (
        len(measured) < PASSES
        or not bool(kept.isfinite().all())
        or float((factor - factor.mean()).abs().max()) > LIKE * abs(float(factor.mean()))
    ):
        return None
    mean = kept * factor
    # whole rows or layers may be dropped at once
    unsure = 3 * float(mean.std()) / math.sqrt(len(measured))
    if float(kept.mean()) > 1 - FEWEST_DROPPED or abs(float(mean.mean()) - 1) <= UNSCALED + unsure:
        return None
    name, side, _ = place
    return Dropped(f"the {side} of {name or 'the model'}", float(kept.mean()), float(factor.mean()))
