"""Estimators that fail, or answer oddly, for tests of yardsticks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd


class Recorder:
    """Remembers what its last fit was given, and changes it."""

    seen: ClassVar[dict[str, Any]] = {}

    def fit(self, X: pd.DataFrame, y: np.ndarray, sample_weight: Any = None) -> Recorder:
        Recorder.seen.update(X=X.copy(), y=y.copy(), weight=sample_weight)
        self.classes_ = np.unique(y)
        X.iloc[:, 0] = 1e9
        y[:] = 0
        return self

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        return np.zeros(len(X))

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        return np.ones((len(X), len(self.classes_)))


class Fails(Recorder):
    """Fails in its fit, with an address in the message."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Recorder:
        raise RuntimeError("no licence at https://ann:secret@host\nsecond line")


class NotFinite(Recorder):
    """Predicts NaN."""

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), np.nan)

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.full((len(X), len(self.classes_)), np.nan)


class TwoColumns(Recorder):
    """Predicts a matrix where values are expected."""

    def predict(self, X: Any) -> np.ndarray:
        return np.zeros((len(X), 1))


class NoWeights(Recorder):
    """Takes no sample weights."""

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> Recorder:  # type: ignore[override]
        return super().fit(X, y)


class NoPredict:
    """Can be fitted alone."""

    def fit(self, X: Any, y: Any) -> NoPredict:
        return self


NUMBER = 5
