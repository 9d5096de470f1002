"""The journal's line of a logged step: loss, rate, norms by layer, speed, memory, and notes on
gradients that vanish or explode.
"""

from __future__ import annotations

import time

import torch

from training.checkpoint.state import TrainerState
from training.engine.health import GradientHealth, layer_norms, memory_mb
from training.engine.step import Gate
from training.run.metrics_file import Journal, Values


class StepLog:
    """Writes a step's line from its gate alone, so that it can be written while the device works on
    the next step.

    Args:
        journal: of the run.
        device: whose memory is told.
        scaled: fp16, whose loss scale is told.
    """

    def __init__(self, journal: Journal, device: torch.device, scaled: bool) -> None:
        self.journal, self.device, self.scaled = journal, device, scaled
        self.health = GradientHealth()
        self._since = (0.0, 0)

    def begin(self, rows: int) -> None:
        """Measure speed from now on.

        Args:
            rows: worked through so far.
        """
        self._since = (time.monotonic(), rows)

    def write(self, gate: Gate, rate: float, state: TrainerState) -> None:
        """One line, and what is new about the gradients; the journal stands at the step already.

        Args:
            gate: of the step.
            rate: learning rate of the step.
            state: after the step; gets the notes.
        """
        layers = layer_norms(gate.grad_norms)
        seconds, rows = self._since
        values: Values = {
            "train/loss": gate.loss,
            "lr": rate,
            "grad_norm": gate.grad_norm,
            "rows_per_second": (state.rows - rows) / max(time.monotonic() - seconds, 1e-9),
            "memory_mb": memory_mb(self.device),
        }
        self.begin(state.rows)
        if self.scaled:
            values["loss_scale"] = gate.loss_scale
        self.journal.values(
            "step", values | {f"grad_norm/{layer}": norm for layer, norm in layers.items()}
        )
        for note in self.health.observe(state.step, layers, gate.grad_norm):
            state.instabilities.append(note)
            self.journal.event(note)
