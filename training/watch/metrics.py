"""Metrics of scikit-learn: those of the whole that are computed a batch at a time, and the order of
labels.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from training.watch.forwards import Forwards
from training.watch.loaders import Loaders, loader_rows
from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded

FEWEST = 30  # scores, steps
FAR_OFF = -2.0  # squared errors three times those of the mean
OF_NUMBERS = ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error", "r2_score")
OF_THE_WHOLE = ("roc_auc_score", "average_precision_score", "roc_curve", "precision_recall_curve")
OF_LABELS = (
    *(
        "accuracy_score",
        "balanced_accuracy_score",
        "f1_score",
        "precision_score",
        "recall_score",
        "precision_recall_fscore_support",
    ),
    *(
        "confusion_matrix",
        "classification_report",
        "matthews_corrcoef",
        "cohen_kappa_score",
        "log_loss",
        "brier_score_loss",
    ),
    *("mean_squared_error", "root_mean_squared_error", "mean_absolute_error", "r2_score"),
)
TWICE = 2


class Metrics(Listener):
    """Listens to metrics of scikit-learn, from the moment that the program imports it."""

    def __init__(
        self, watch: Watch, forwards: Forwards, loaders: Loaders, imported: Callable[[], None]
    ) -> None:
        self.watch, self.forwards, self.loaders, self.imported = watch, forwards, loaders, imported
        self.calls: dict[Place, list[tuple[int, int]]] = {}  # by line: step, batch drawn before
        # by line, of its last call: the step, and the share of the labels' variance that
        # predictions explain
        self.fits: dict[Place, tuple[int, float]] = {}
        self._listening = False

    def install(self) -> None:
        """Listen to imports."""
        around(builtins, "__import__", self._import)

    def _import(self, original: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        module = original(name, *args, **kwargs)
        if name.startswith("sklearn"):
            self.imported()
        metrics = (
            sys.modules.get("sklearn.metrics")
            if not self._listening and name.startswith("sklearn")
            else None
        )
        # it has all its functions
        if metrics is not None and not getattr(metrics.__spec__, "_initializing", False):
            self._listening = True
            for metric in OF_THE_WHOLE:
                around(metrics, metric, self._scored)
            for metric in (*OF_THE_WHOLE, *OF_LABELS):
                if hasattr(metrics, metric):
                    around(metrics, metric, self._compared)
        return module

    def _compared(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.watch.quiet:
            self._look(
                [*args[:2], *(given for name, given in kwargs.items() if name.startswith("y_"))]
            )
            if original.__name__ in OF_NUMBERS and "y_true" not in kwargs and len(args) > 1:
                self._fits(args[0], args[1])
        return original(*args, **kwargs)

    @guarded
    def _fits(self, labels: Any, predictions: Any) -> None:
        """Labels and predictions of a regression, one each a row."""
        y, found = (np.asarray(a, dtype=np.float64).reshape(-1) for a in (labels, predictions))
        if (
            len(y) == len(found) >= FEWEST
            and np.isfinite(y).all()
            and np.isfinite(found).all()
            and y.std() > 0
        ):
            self.fits[self.watch.here()] = (
                self.watch.steps,
                1 - float(((y - found) ** 2).mean() / y.var()),
            )

    def ended(self) -> None:
        """Predictions of the evaluation behind the last step that are nowhere near the labels."""
        for place, (step, fit) in self.fits.items():
            if self.watch.complete and self.watch.steps == step >= FEWEST and fit < FAR_OFF:
                told = (
                    f"predictions miss the labels by {(1 - fit) ** 0.5:.1f} of their standard"
                    " deviation; their mean would by 1: both are not in the same units"
                )
                self.watch.tell("BH880", told, place)

    @guarded
    def _ranked(self, name: str, scores: Any) -> None:
        """Scores of a metric that ranks them."""
        given = np.asarray(scores)
        if (
            given.size >= FEWEST
            and given.dtype.kind in "biuf"
            and np.array_equal(np.unique(given), [0, 1])
        ):
            told = (
                f"{name} is given nothing but 0 and 1 for {given.size} scores: decisions have no"
                " order"
            )
            self.watch.tell("BH221", told, self.watch.here())

    @guarded
    def _look(self, given: list[Any]) -> None:
        arrays = [np.asarray(side) for side in given]
        if len(arrays) == 2 and all(a.ndim and a.dtype.kind in "biuf" for a in arrays):
            labels, predictions = map(torch.tensor, arrays)
            self.watch.emit(Listener.scored, labels, predictions)

    def _scored(self, original: Callable[..., Any], y_true: Any, *args: Any, **kwargs: Any) -> Any:
        last = self.loaders.last
        if not self.watch.quiet and (args or "y_score" in kwargs):
            self._ranked(original.__name__, args[0] if args else kwargs["y_score"])
        if (
            not self.watch.quiet
            and last is not None
            and self.forwards.last is not None
            and not self.forwards.last.grad
        ):
            size = last.loader.batch_size or 0
            if len(y_true) == self.forwards.last.rows <= size < loader_rows(last.loader):
                place = self.watch.here()
                calls = self.calls.setdefault(place, [])
                calls.append((self.watch.steps, self.loaders.drawn))
                of_now = {drawn for step, drawn in calls if step == self.watch.steps}
                if len(of_now) >= TWICE:
                    told = (
                        f"{original.__name__} is computed on {len(y_true)} of"
                        f" {loader_rows(last.loader)} rows at a time: a mean over batches is not"
                        " its value"
                    )
                    self.watch.tell("BH204", told, place)
        return original(y_true, *args, **kwargs)
