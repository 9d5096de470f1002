"""Metrics of scikit-learn: their arguments, and metrics that are averaged over batches."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from training.watch.events import Listener, Place
from training.watch.forwards import Forwards
from training.watch.loaders import Loaders, loader_rows
from training.watch.patches import around
from training.watch.record import Watch, guarded

FEWEST = 30  # least number of scores and steps
FAR_OFF = -2.0  # R², with errors three times those of the mean
OF_NUMBERS = ("mean_squared_error", "root_mean_squared_error", "mean_absolute_error", "r2_score")
RANKING = ("roc_auc_score", "average_precision_score", "roc_curve", "precision_recall_curve")
OF_LABELS = (
    "accuracy_score", "balanced_accuracy_score", "f1_score", "precision_score", "recall_score",
    "precision_recall_fscore_support", "confusion_matrix", "classification_report",
    "matthews_corrcoef", "cohen_kappa_score", "log_loss", "brier_score_loss",
)  # fmt: skip


class Metrics(Listener):
    """Listener for scikit-learn metrics, active once the program imports scikit-learn."""

    def __init__(
        self, watch: Watch, forwards: Forwards, loaders: Loaders, imported: Callable[[], None]
    ) -> None:
        self.watch, self.forwards, self.loaders, self.imported = watch, forwards, loaders, imported
        # line and step: batches drawn before
        self.batches: dict[tuple[Place, int], set[int]] = {}
        # line of the last call: step and R²
        self.fits: dict[Place, tuple[int, float]] = {}
        self._listening = False

    def install(self) -> None:
        """Install the hook for imports."""
        around(builtins, "__import__", self._import)

    def _import(self, original: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        module = original(name, *args, **kwargs)
        if name.startswith("sklearn"):
            self.imported()
            metrics = sys.modules.get("sklearn.metrics")
            whole = metrics is not None and not getattr(metrics.__spec__, "_initializing", False)
            if whole and not self._listening:
                self._listening = True
                for metric in (*RANKING, *OF_LABELS, *OF_NUMBERS):
                    if hasattr(metrics, metric):
                        around(metrics, metric, self._computed)
        return module

    def _computed(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        named = [kwargs[name] for name in ("y_true", "y_pred", "y_score") if name in kwargs]
        if not self.watch.quiet:
            self._look(original.__name__, [*args[:2], *named])
        return original(*args, **kwargs)

    @guarded
    def _look(self, name: str, given: list[Any]) -> None:
        """Check the labels and predictions of a metric."""
        arrays = [np.asarray(side) for side in given]
        if len(arrays) != 2 or any(not a.ndim or a.dtype.kind not in "biuf" for a in arrays):
            return
        labels, predictions = map(np.ascontiguousarray, arrays)
        if name in RANKING:
            self._ranked(name, labels, predictions)
        elif name in OF_NUMBERS:
            self._fit(*(side.astype(np.float64).reshape(-1) for side in arrays))
        self.watch.emit(Listener.scored, torch.tensor(labels), torch.tensor(predictions))

    def _ranked(self, name: str, labels: np.ndarray, scores: np.ndarray) -> None:
        """Check that scores are not decisions and that a ranking metric covers all rows."""
        if scores.size >= FEWEST and np.array_equal(np.unique(scores), [0, 1]):
            told = f"{name} is given nothing but 0 and 1 for {scores.size} scores"
            self.watch.tell("BH221", f"{told}: decisions have no order")
        used, call = self.loaders.last, self.forwards.last
        if used is None or call is None or call.grad:
            return
        rows = loader_rows(used.loader)
        if len(labels) == call.rows <= (used.loader.batch_size or 0) < rows:
            key = self.watch.here(), self.watch.steps
            self.batches.setdefault(key, set()).add(self.loaders.drawn)
            if len(self.batches[key]) > 1:
                told = f"{name} is computed on {len(labels)} of {rows} rows at a time"
                self.watch.tell("BH204", f"{told}: a mean over batches is not its value")

    def _fit(self, labels: np.ndarray, found: np.ndarray) -> None:
        """Record the R² of regression predictions, one per row."""
        if len(labels) == len(found) >= FEWEST and labels.std() > 0:
            fit = 1 - float(((labels - found) ** 2).mean() / labels.var())
            self.fits[self.watch.here()] = self.watch.steps, fit

    def ended(self) -> None:
        """Report final predictions that are far from the labels."""
        for place, (step, fit) in self.fits.items():
            if self.watch.complete and self.watch.steps == step >= FEWEST and fit < FAR_OFF:
                told = f"predictions miss the labels by {(1 - fit) ** 0.5:.1f} of their standard"
                told = f"{told} deviation; their mean would by 1: both are not in the same units"
                self.watch.tell("BH880", told, place)
