"""Fits before training, each once on train alone and once with held-out rows.

The poison test must distinguish the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from schemas.references import TableSpec
from training.data.leakage.poison import poison_result

Fit = Callable[[pd.DataFrame, pd.DataFrame], Any]  # train, held out → the fitted object
LABEL = "outcome"


def _numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns=[LABEL]).select_dtypes("number")


def _scaler(rows: pd.DataFrame) -> Any:
    return _numbers(rows).agg(["mean", "std"]).to_numpy()


def _extremes(rows: pd.DataFrame) -> Any:
    return _numbers(rows).agg(["min", "max"]).to_numpy()


def _quantiles(rows: pd.DataFrame) -> Any:
    return _numbers(rows).quantile([0.25, 0.5, 0.75]).to_numpy()


def _medians(rows: pd.DataFrame) -> Any:
    return _numbers(rows).median().to_numpy()


def _vocabulary(rows: pd.DataFrame) -> Any:
    return sorted(map(str, rows["code"].dropna().unique()))


def _frequencies(rows: pd.DataFrame) -> Any:
    return rows["code"].value_counts(normalize=True).sort_index().to_dict()


def _target_means(rows: pd.DataFrame) -> Any:
    return rows.groupby("code")[LABEL].mean().to_dict()


def _class_weights(rows: pd.DataFrame) -> Any:
    return (rows[LABEL] > 20).value_counts(normalize=True).sort_index().to_dict()


def _selected(rows: pd.DataFrame) -> Any:
    return (
        _numbers(rows).corrwith(rows[LABEL]).abs().round(12).sort_values(ascending=False).to_dict()
    )


def _components(rows: pd.DataFrame) -> Any:
    numbers = _numbers(rows).fillna(0).to_numpy()
    return np.linalg.svd(numbers - numbers.mean(axis=0), full_matrices=False)[2]


def _bins(rows: pd.DataFrame) -> Any:
    return np.quantile(rows["income"], np.linspace(0, 1, 11))


def _fences(rows: pd.DataFrame) -> Any:
    low, high = rows["income"].quantile([0.01, 0.99])
    return float(low), float(high)


def _regression(rows: pd.DataFrame) -> Any:
    numbers = _numbers(rows).fillna(0).to_numpy()
    return np.linalg.lstsq(
        np.c_[numbers, np.ones(len(numbers))], rows[LABEL].to_numpy(), rcond=None
    )[0]


def _clusters(rows: pd.DataFrame) -> Any:
    numbers = _numbers(rows).fillna(0).to_numpy()
    centres = numbers[:4]
    for _ in range(5):
        nearest = ((numbers[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.stack(
            [
                numbers[nearest == k].mean(axis=0) if (nearest == k).any() else centres[k]
                for k in range(4)
            ]
        )
    return centres


FITS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "mean and spread": _scaler,
    "smallest and largest": _extremes,
    "quartiles": _quantiles,
    "medians that fill nulls": _medians,
    "vocabulary": _vocabulary,
    "frequency encoding": _frequencies,
    "target encoding": _target_means,
    "class weights": _class_weights,
    "feature selection by correlation": _selected,
    "principal components": _components,
    "bins by quantile": _bins,
    "outlier fences": _fences,
    "linear model": _regression,
    "cluster centres": _clusters,
}


def _threshold(train: pd.DataFrame, held_out: pd.DataFrame) -> Any:
    """Choose a cut of one feature by its score on held-out rows."""
    cuts = train["height"].quantile(np.linspace(0.1, 0.9, 17)).to_numpy()
    return float(
        max(cuts, key=lambda cut: ((held_out["height"] > cut) == (held_out[LABEL] > 20)).mean())
    )


def _last_step(train: pd.DataFrame, held_out: pd.DataFrame) -> Any:
    """Return weights of gradient descent, stopped at the smallest held-out loss."""
    mean, spread = _numbers(train).mean(), _numbers(train).std()
    x, y = (((_numbers(rows) - mean) / spread).fillna(0).to_numpy() for rows in (train, held_out))
    weights, best, least = np.zeros(x.shape[1]), np.zeros(x.shape[1]), np.inf
    for _ in range(30):
        weights = weights - 0.1 * x.T @ (x @ weights - train[LABEL].to_numpy() + 20) / len(x)
        loss = float(((y @ weights - held_out[LABEL].to_numpy() + 20) ** 2).mean())
        best, least = (weights, loss) if loss < least else (best, least)
    return best


def _neighbours(train: pd.DataFrame, held_out: pd.DataFrame) -> Any:
    """Keep the train rows near a held-out row: selection by the test set."""
    a, b = (
        _numbers(rows)[["height", "ratio"]].to_numpy()
        for rows in (train.head(300), held_out.head(300))
    )
    return ((a[:, None] - b) ** 2).sum(axis=2).min(axis=1).argsort()[:50]


def _on_train(fit: Callable[[pd.DataFrame], Any]) -> Fit:
    return lambda train, held_out: fit(train)


def _on_all(fit: Callable[[pd.DataFrame], Any]) -> Fit:
    return lambda train, held_out: fit(pd.concat([train, held_out]))


LEAKY: dict[str, Fit] = {name: _on_all(fit) for name, fit in FITS.items()} | {
    "threshold chosen on held-out rows": _threshold,
    "stopped early on held-out rows": _last_step,
    "train rows chosen by likeness to held-out rows": _neighbours,
}
CLEAN: dict[str, Fit] = {name: _on_train(fit) for name, fit in FITS.items()}


def accused(fit: Fit, rows: int = 1200) -> bool:
    """Return whether the poison test fails a way to fit, on generated rows."""
    rng = np.random.default_rng(8)
    x, code = rng.normal(size=(rows, 4)), rng.integers(0, 30, rows)
    columns = {
        "height": 170 + 9 * x[:, 0],
        "income": np.exp(9 + 0.6 * x[:, 1]),
        "ratio": x[:, 2],
        "dose": np.where(x[:, 3] > 1.3, np.nan, x[:, 3]),
    }
    frame = pd.DataFrame(
        {
            **columns,
            "code": [f"c{c}" for c in code],
            LABEL: 20 + 3 * x[:, 0] + 2 * x[:, 1] + rng.normal(size=rows),
        }
    )
    spec = TableSpec(
        id=(),
        group=(),
        time=None,
        label=LABEL,
        label_type="float",
        weight=None,
        split=None,
        numeric=tuple(columns),
        categorical=("code",),
        tensor={},
    )
    types = pa.schema(
        [(name, pa.string() if name == "code" else pa.float64()) for name in frame.columns]
    )
    train, held_out = (
        pa.Table.from_pandas(part, types, preserve_index=False)
        for part in (frame.iloc[: rows * 3 // 4], frame.iloc[rows * 3 // 4 :])
    )
    return (
        poison_result(lambda a, b: fit(a.to_pandas(), b.to_pandas()), train, held_out, spec).verdict
        == "fail"
    )
