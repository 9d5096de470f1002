"""What preflight tries a run's network on: the declaration, a few rows, and steps as declared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from schemas.config import Declaration
from schemas.records import Statistics
from training.models.build import build_model
from training.objectives.losses import Loss
from training.optim.optimizer import make_optimizer
from training.preflight.probe import Probe


@dataclass(frozen=True)
class Trial:
    """What is tried, and the rows for it: `probe`, a few; `window`, those of a micro-batch, for
    what they cost; of `rows` on the train side.
    """

    declaration: Declaration
    statistics: Statistics
    loss: Loss
    probe: Probe
    window: Probe
    rows: int

    def fresh(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The network with its initial weights in train mode, and its optimizer at the peak
        rates.
        """
        network = build_model(self.declaration, self.statistics).train()
        return network, make_optimizer(
            self.declaration.optimizer.scaled(self.declaration.train.batch_size), network
        )

    def step(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        rows: Probe | None = None,
        clipped: bool = True,
    ) -> float:
        """One step as declared, in float32, or without its clipping; the loss before it."""
        rows, train = rows or self.probe, self.declaration.train
        optimizer.zero_grad(set_to_none=True)
        loss = self.loss.per_row(
            network({name: t.clone() for name, t in rows.inputs.items()}), rows.label
        ).mean()
        loss.backward()
        trained = [p for p in network.parameters() if p.grad is not None]
        if not clipped:
            pass
        elif train.clip == "norm":
            nn.utils.clip_grad_norm_(trained, train.clip_at)
        elif train.clip == "value":
            nn.utils.clip_grad_value_(trained, train.clip_at)
        optimizer.step()
        return float(loss.detach())
