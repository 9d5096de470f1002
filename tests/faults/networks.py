"""Network with every kind of state that a kill could damage: dropout, running statistics, affine
parameters.
"""

from __future__ import annotations

import os
import signal
import time

from torch import Tensor, nn

from training.models.shape import ModelShape


class Delicate(nn.Module):
    """Two blocks with dropout; the first has running statistics, which a forward pass alone
    changes.

    BULKHEAD_TEST_HOLD=how:rank:mode:calls, outside the declaration, stops a rank in that forward
    pass of its process: `sleep:1:train:7` for good, as if its data never came; `STOP:0:eval:2`
    until SIGCONT.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Linear(shape.numeric, 16),
                    nn.BatchNorm1d(16),
                    nn.Sequential(nn.GELU(), nn.Dropout(0.3)),
                ),
                nn.Sequential(
                    nn.Linear(16, 16), nn.LayerNorm(16), nn.Sequential(nn.GELU(), nn.Dropout(0.3))
                ),
            ]
        )
        self.head = nn.Linear(16, shape.outputs)
        self.calls = {True: 0, False: 0}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return scores [B, outputs]."""
        self._hold()
        values = batch["numeric"]
        for block in self.blocks:
            values = block(values)
        return self.head(values)

    def _hold(self) -> None:
        self.calls[self.training] += 1
        how, rank, mode, calls = os.environ.get("BULKHEAD_TEST_HOLD", ":::0").split(":")
        if (
            rank != os.environ.get("RANK", "0")
            or (mode == "train") != self.training
            or int(calls) != self.calls[self.training]
        ):
            return
        os.write(2, f"holding {how}\n".encode())
        if how == "sleep":
            time.sleep(600)
        else:
            os.kill(os.getpid(), signal.Signals[f"SIG{how}"])
