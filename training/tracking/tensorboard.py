"""TensorBoard next to MLflow: figures of `metrics.jsonl` as scalars in RUN_DIR/tensorboard.

The launcher writes them, never a rank. They always match the file: if it was rewritten (a resumed
run drops lines of steps that it repeats), the events are written again.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from schemas.config import TrackingConfig
from schemas.errors import ConfigError
from training.tracking.metric_lines import metric_batches

FOLDER = "tensorboard"
EVENTS = "events.out.tfevents.*"
FIGURES_AT_ONCE = 1000


def require_installed(config: TrackingConfig) -> None:
    """Refuse a declaration with TensorBoard if its package is missing.

    Raises:
        ConfigError: the package is missing; the message names the command that installs it.
    """
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "tracking.tensorboard needs the package tensorboard, which is not installed: pip"
            " install 'bulkhead[tensorboard]', or unset it"
        )


class Board:
    """TensorBoard events of one run.

    Args:
        metrics: `metrics.jsonl`; it may not exist yet.
        folder: folder of the event files; those of an earlier start are replaced.
    """

    def __init__(self, metrics: Path, folder: Path) -> None:
        self.metrics, self.folder = metrics, folder
        self._writer: Any = None
        self._number, self._offset = -1, 0

    def forward(self) -> None:
        """Write and flush the figures of the lines added since the last call."""
        if not self.metrics.exists():
            return
        number = self.metrics.stat().st_ino
        if number != self._number:
            self._begin()
            self._number, self._offset = number, 0
        for figures, self._offset in metric_batches(self.metrics, self._offset, FIGURES_AT_ONCE):  # noqa: B020 - the offset behind each batch
            for figure in figures:
                # A tensor of double precision: plain scalars have single precision.
                self._writer.add_scalar(
                    figure.key,
                    figure.value,
                    figure.step,
                    figure.timestamp / 1000,
                    new_style=True,
                    double_precision=True,
                )
        self._writer.flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        self.forward()
        if self._writer is not None:
            self._writer.close()

    def _begin(self) -> None:
        # an extra that only runs with TensorBoard need
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        for path in self.folder.glob(EVENTS):
            path.unlink()
        self._writer = SummaryWriter(str(self.folder))
