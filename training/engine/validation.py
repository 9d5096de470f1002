"""Evaluation during training: validation rows and as many train rows, measured on rank 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from schemas.config import Declaration
from schemas.errors import TrainingError
from schemas.records import RunSpec
from training.distributed.layout import Layout
from training.engine.batches import TARGETS, Tensors, as_tensors
from training.engine.scoring import measure, require_finite, score_tensors
from training.engine.token_scoring import TokenScorer
from training.objectives.losses import make_loss
from training.run.metrics_file import Values


class Validation:
    """Rows that each evaluation scores.

    Args:
        spec: the run.
        declaration: its declaration.
        train: inputs and targets of train as tensors, possibly on the device.
        val: those of validation, on the host.
    """

    def __init__(
        self, spec: RunSpec, declaration: Declaration, train: Tensors, val: dict[str, np.ndarray]
    ) -> None:
        self.spec, self.declaration = spec, declaration
        self.loss = make_loss(declaration, spec.statistics)
        self.batch_size = declaration.train.micro_batch_size or declaration.train.batch_size
        # A language model is scored together with its loss, because the logits of a split would not
        # fit.
        self.with_loss = declaration.task.kind == "causal_lm"
        targets = ("weight",) if self.with_loss else TARGETS
        self.val_inputs = {name: t for name, t in as_tensors(val).items() if name not in targets}
        self.val_targets = {name: val[name] for name in TARGETS if name in val}
        # Rows are ordered by the hash of their id, so the first ones are a random sample.
        self.train_rows = min(spec.arrays.train.rows, spec.arrays.val.rows)
        self.train_inputs = {name: t for name, t in train.items() if name not in targets}
        self.train_targets = {
            name: train[name][: self.train_rows].cpu().numpy() for name in TARGETS if name in train
        }

    def scores(self, layout: Layout, stop: Callable[[], bool]) -> tuple[np.ndarray, np.ndarray]:
        """Score validation rows and the train sample on every rank: [N, K], or sums [N, 3].
        Collective.

        Raises:
            Interrupted: a stop was requested on some rank.
            NonFiniteError: scores are not finite; the message names rows.
        """
        sides = ((self.val_inputs, self.spec.arrays.val.rows), (self.train_inputs, self.train_rows))
        model = TokenScorer(layout.model) if self.with_loss else layout.model
        with layout.scoring():
            val, train = (
                score_tensors(
                    model,
                    inputs,
                    rows,
                    self.batch_size,
                    layout.parallel,
                    lockstep=layout.sharded,
                    stop=stop,
                )
                for inputs, rows in sides
            )
        require_finite(val, self.spec.arrays.val)
        require_finite(train, self.spec.arrays.train)
        return val, train

    def measure(self, val: np.ndarray, train: np.ndarray) -> Values:
        """Compute loss and metrics of both splits, as `val/<name>` and `train_eval/<name>`."""
        figures: Values = {}
        for side, scores, targets in (
            ("val", val, self.val_targets),
            ("train_eval", train, self.train_targets),
        ):
            found = measure(self.declaration, self.spec.statistics, self.loss, scores, targets)
            figures |= {f"{side}/{name}": value for name, value in found.items()}
        return figures

    def deciding(self, values: Values) -> float:
        """Return the metric of validation rows that chooses the best weights.

        Raises:
            TrainingError: it is not defined on these rows.
        """
        name = self.declaration.metric
        metric = values[f"val/{name}"]
        if metric is None:
            raise TrainingError(
                f"{name} is not defined on the {self.spec.arrays.val.rows} validation rows (a"
                " single class, or a constant label?), so no best weights can be chosen; choose"
                " another train.metric, or a split whose validation side has every class"
            )
        return metric
