"""Journal line of a logged step: loss, learning rate, norms, speed, memory and gradient notes."""

from __future__ import annotations

import time

import torch

from training.checkpoint.state import TrainerState
from training.engine.health import GradientHealth, layer_norms, memory_mb
from training.engine.step import Gate
from training.run.metrics_file import Journal, Values


class StepLog:
    """Write a step's line from its gate alone, while the device computes the next step.

    Args:
        journal: journal of the run.
        device: device whose memory is logged.
        scaled: fp16, whose loss scale is logged.
    """

    def __init__(self, journal: Journal, device: torch.device, scaled: bool) -> None:
        self.journal, self.device, self.scaled = journal, device, scaled
        self.health = GradientHealth()
        self._since = (0.0, 0)

    def begin(self, rows: int) -> None:
        """Measure speed from now on.

        Args:
            rows: rows processed so far.
        """
        self._since = (time.monotonic(), rows)

    def write(self, gate: Gate, rate: float, state: TrainerState) -> None:
        """Write one line and new gradient notes; the journal is already at the step.

        Args:
            gate: gate of the step.
            rate: learning rate of the step.
            state: state after the step; gets the notes.
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
