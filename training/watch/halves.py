"""Numbers of 16 bits where they are too coarse: averages that stand still, and angles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from training.watch.gradients import Gradients
from training.watch.losses import Functions
from training.watch.record import Place, Watch

HALVES = (torch.bfloat16, torch.float16)
FEWEST, SOME = 16, 5  # values, and updates
MOSTLY = 0.5  # of the values
SLOW = 0.9  # share that an average keeps, at least
STEP = 0.5  # radians between two numbers: what is left of a phase


class Halves:
    """Listens to updates in place, and to sine and cosine."""

    def __init__(self, watch: Watch, functions: Functions, gradients: Gradients) -> None:
        self.watch, self.functions, self.gradients = watch, functions, gradients
        self.lost: dict[Place, list[bool]] = {}

    def install(self) -> None:
        """Listen."""
        self.functions.listen(("lerp_",), before=self._averaged)
        self.functions.listen(("mul_", "__imul__"), before=self._shrunk)
        self.functions.listen(("sin", "cos"), before=self._angle)

    def _averaged(
        self, name: str, kept: Tensor, new: Any, weight: Any = None, *_: Any, **__: Any
    ) -> None:
        if (
            kept.dtype in HALVES
            and kept.numel() >= FEWEST
            and isinstance(new, Tensor)
            and isinstance(weight, float)
            and 0 < weight <= 1 - SLOW
        ):
            moved = (new.detach().double() - kept.detach().double()) * weight
            self._look(kept, moved)

    def _shrunk(self, name: str, kept: Tensor, factor: Any, *_: Any, **__: Any) -> None:
        if (
            kept.dtype in HALVES
            and kept.numel() >= FEWEST
            and isinstance(factor, float)
            and SLOW <= factor < 1
            and not kept.requires_grad
        ):
            self._look(kept, kept.detach().double() * (factor - 1))

    def _look(self, kept: Tensor, moved: Tensor) -> None:
        """Whether most values that are to move stay as they are, as the next number lies too far
        away; what an optimizer keeps is its own affair.
        """
        if self.gradients.inside:
            return
        before = kept.detach().double()
        asked = moved != 0
        stays = (before + moved).to(kept.dtype) == kept.detach()
        if bool(asked.any()):
            self.lost.setdefault(self.watch.here(), []).append(
                float(stays[asked].double().mean()) > MOSTLY
            )

    def _angle(self, name: str, angle: Tensor, *_: Any, **__: Any) -> None:
        if angle.dtype in HALVES and angle.numel() >= FEWEST:
            between = angle.detach().double().abs() * torch.finfo(angle.dtype).eps
            share = float((between > STEP).double().mean())
            if share > MOSTLY / 5:
                told = (
                    f"{share:.0%} of the angles, up to {float(angle.abs().max()):.0f}, are"
                    f" {angle.dtype}, whose numbers lie {float(between.max()):.1f} apart there"
                )
                self.functions.often("BH864", f"{name} of angles in half precision: {told}")

    def ended(self) -> None:
        """Averages of which most updates were lost."""
        for place, lost in self.lost.items():
            if len(lost) >= SOME and sum(lost) > len(lost) / 2:
                told = (
                    f"in {sum(lost)} of {len(lost)} updates most values of an average stay as they"
                    " are: a step is smaller than half the distance of two numbers of 16 bits"
                )
                self.watch.tell("BH863", told, place)
