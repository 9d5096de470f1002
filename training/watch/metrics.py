"""Metrics of the whole that are computed a batch at a time."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from training.watch.forwards import Forwards
from training.watch.loaders import Loaders, loader_rows
from training.watch.patches import around
from training.watch.record import Place, Watch

OF_THE_WHOLE = ("roc_auc_score", "average_precision_score", "roc_curve", "precision_recall_curve")
TWICE = 2


class Metrics:
    """Listens to ranking metrics of scikit-learn, from the moment that the program imports it."""

    def __init__(self, watch: Watch, forwards: Forwards, loaders: Loaders, imported: Callable[[], None]) -> None:
        self.watch, self.forwards, self.loaders, self.imported = watch, forwards, loaders, imported
        self.calls: dict[Place, list[tuple[int, int]]] = {}  # by line: step, batch drawn before
        self._listening = False

    def install(self) -> None:
        """Listen to imports."""
        around(builtins, "__import__", self._import)

    def _import(self, original: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        module = original(name, *args, **kwargs)
        if name.startswith("sklearn"):
            self.imported()
        if not self._listening and name.startswith("sklearn") and hasattr(sys.modules.get("sklearn.metrics"), OF_THE_WHOLE[0]):
            self._listening = True
            for metric in OF_THE_WHOLE:
                around(sys.modules["sklearn.metrics"], metric, self._scored)
        return module

    def _scored(self, original: Callable[..., Any], y_true: Any, *args: Any, **kwargs: Any) -> Any:
        last = self.loaders.last
        if not self.watch.quiet and last is not None and self.forwards.last is not None and not self.forwards.last.grad:
            size = last.loader.batch_size or 0
            if len(y_true) == self.forwards.last.rows <= size < loader_rows(last.loader):
                place = self.watch.here()
                calls = self.calls.setdefault(place, [])
                calls.append((self.watch.steps, self.loaders.drawn))
                of_now = {drawn for step, drawn in calls if step == self.watch.steps}
                if len(of_now) >= TWICE:
                    told = (
                        f"{original.__name__} is computed on {len(y_true)} of {loader_rows(last.loader)} rows at a time: a mean over batches is not its value"
                    )
                    self.watch.tell("BH204", told, place)
        return original(y_true, *args, **kwargs)
