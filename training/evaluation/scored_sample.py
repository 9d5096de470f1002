"""A sample of scored test rows that can be scored again with other inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import nn

from schemas.records import RunSpec
from training.evaluation.slice_scores import Rows
from training.objectives.metrics import predict
from training.serving.reference_network import scores_of


class Sample(NamedTuple):
    """Sampled test rows: their arrays, predictions, and the arguments of the bootstrap."""

    run: RunSpec
    network: nn.Module
    arrays: dict[str, np.ndarray]
    rows: Rows
    generator: np.random.Generator

    def predictions(self, changed: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return predictions of the rows with other arrays in place of some."""
        scores = scores_of(self.network, {**self.arrays, **changed})
        return predict(self.rows.declaration, self.run.statistics, scores)
