"""Transformers of scikit-learn that learn from labels: whether held-out rows are among those that
they learn from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from training.watch.patches import around
from training.watch.record import Listener, Place, Watch, guarded
from training.watch.rows import Rows

FEW = 20
SUPERVISED = (
    "sklearn.feature_selection.",
    "sklearn.cross_decomposition.",
    "sklearn.preprocessing._target_encoder",
)
LABEL_IGNORED = ("VarianceThreshold",)


class Fits(Listener):
    """Listens to `fit` of such transformers, from the moment that the program imports them."""

    def __init__(self, watch: Watch, rows: Rows) -> None:
        self.watch, self.rows = watch, rows
        self.made: list[tuple[str, int, Place]] = []  # class, rows, where
        self.known: set[type] = set()
        self.depth = 0

    def imported(self) -> None:
        """Wrap the classes that are new."""
        base = getattr(sys.modules.get("sklearn.base"), "TransformerMixin", None)
        pending = [base] if base is not None else []
        while pending:
            kind = pending.pop()
            pending += kind.__subclasses__()
            if (
                kind in self.known
                or not kind.__module__.startswith(SUPERVISED)
                or kind.__name__ in LABEL_IGNORED
            ):
                continue
            self.known.add(kind)
            for name in ("fit", "fit_transform"):
                if name in vars(kind):
                    around(kind, name, self._fit)

    def _fit(
        self,
        original: Callable[..., Any],
        learner: Any,
        X: Any,
        y: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not self.depth and not self.watch.quiet and not self.watch.steps and y is not None:
            self._keep(type(learner).__name__, X)
        self.depth += 1
        try:
            return original(learner, X, y, *args, **kwargs)
        finally:
            self.depth -= 1

    @guarded
    def _keep(self, name: str, given: Any) -> None:
        self.made.append(
            (
                name,
                int(given.shape[0]) if hasattr(given, "shape") else len(given),
                self.watch.here(),
            )
        )

    def ended(self) -> None:
        """Fits before the first step, of as many rows as were trained on and held out together."""
        for trained, held_out in self.rows.counts():
            for name, size, place in self.made:
                if held_out >= FEW and size == trained + held_out:
                    self.watch.tell(
                        "BH501",
                        f"{name} learns from the labels of all {size} rows, {held_out} of which are"
                        " held out",
                        place,
                    )
