"""Ranks of one program: the collectives that each calls, and the weights that each holds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.patches import around
from training.watch.record import Watch

COLLECTIVES = [
    "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast",
    "broadcast_object_list", "barrier", "reduce", "gather", "gather_object", "scatter",
    "reduce_scatter",
]  # fmt: skip
MOST = 20_000


class Ranks(Listener):
    """Listener for collectives and wrappers. It logs each call in advance, because a collective may
    never return.
    """

    def __init__(self, watch: Watch, forwards: Forwards, log: Path | None) -> None:
        self.watch, self.forwards, self.log = watch, forwards, log
        self.calls = 0
        self.depth = 0
        self.grouped = False
        self.steps: dict[int, int] = {}  # by optimizer id
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.digests: dict[str, str] = {}  # digests of weights, by optimizer and step

    def install(self) -> None:
        """Install hooks for collectives if there are several ranks."""
        if self.log is None:
            return
        for name in COLLECTIVES:
            around(dist, name, self._called)

    def _called(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if (
            not self.watch.quiet
            and not self.depth
            and self.calls < MOST
            and self.log is not None
            and not (args and isinstance(args[0], nn.Module))
        ):
            place = self.watch.here()
            self.calls += 1
            with self.log.open("a") as file:
                file.write(f"{original.__name__}\t{place.line}\t{place.path}\n")
        self.depth += 1  # some collectives call others
        try:
            return original(*args, **kwargs)
        finally:
            self.depth -= 1

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Hash the unsharded weights after 1, 2, 4, 8 and so on steps."""
        if self.log is None:
            return
        self.grouped |= dist.is_initialized()
        self.log.touch()
        number = self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        self.optimizers[id(optimizer)] = optimizer
        if not number & (number - 1) and (held := _whole(optimizer)):
            self.digests[
                f"{list(self.steps).index(id(optimizer))}:{number}:{[list(p.shape) for p in held]}"
            ] = _digest(held)

    def told(
        self,
        rows: list[str],
        optimizer_at: Place | None,
        sides: tuple[list[str], list[tuple[Place, list[str]]]],
    ) -> dict[str, Any]:
        """Return the data to compare between ranks.

        Args:
            rows: hashes of the first train rows.
            optimizer_at: line of the first optimizer.
            sides: hashes of train rows and, by loader, of held-out rows.
        """
        last = [
            _digest(held) for optimizer in self.optimizers.values() if (held := _whole(optimizer))
        ]
        return {
            "grouped": self.grouped,
            "digests": self.digests,
            "last": last,
            "rows": rows,
            "optimizer_at": optimizer_at,
            "trained": sides[0],
            "held": sides[1],
        }


def _whole(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the unsharded weights on this rank."""
    return [
        p.detach()
        for g in optimizer.param_groups
        for p in g["params"]
        if type(p) in (Tensor, nn.Parameter)
    ]


def _digest(held: list[Tensor]) -> str:
    hashed = hashlib.sha256()
    for p in held:
        hashed.update(p.reshape(-1).contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def log_of(report: Path) -> Path | None:
    """Return the path of a rank's log of collectives, or None for a single rank."""
    return report.with_suffix(".calls") if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None
