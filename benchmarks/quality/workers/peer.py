"""Fit one library on arrays and predict: `python peer.py LIBRARY ROWS.npz OUT.npz TRIALS SEED`.

It runs in the environment of the library, without this project. ROWS.npz has for each of train, val
and test `numeric_<split>` float32 [N, D], `categorical_<split>` int64 [N, C] (codes) and for train
and val `label_<split>`, and `task`. With TRIALS above 0 the settings are chosen on validation by
random search; otherwise they are the library's defaults, with early stopping on validation where
the library has it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

PATIENCE, ROUNDS = 50, 2000
Space = Callable[[np.random.Generator], dict[str, Any]]


def _frame(rows: Any, side: str) -> pd.DataFrame:
    numeric, categorical = rows[f"numeric_{side}"], rows[f"categorical_{side}"]
    frame = pd.DataFrame(numeric, columns=[f"n{i}" for i in range(numeric.shape[1])])
    for i in range(categorical.shape[1]):
        values = range(int(rows["codes"][i]))
        frame[f"c{i}"] = pd.Categorical(categorical[:, i], categories=list(values))
    return frame


def _log_uniform(low: float, high: float) -> Callable[[np.random.Generator], float]:
    return lambda rng: float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _lightgbm(sides: dict[str, Any], task: str, seed: int, options: dict[str, Any]) -> Any:
    import lightgbm as lgb

    kind = lgb.LGBMRegressor if task == "regression" else lgb.LGBMClassifier
    model = kind(n_estimators=ROUNDS, random_state=seed, verbose=-1, n_jobs=-1, **options)
    stop = lgb.early_stopping(PATIENCE, verbose=False)
    return model.fit(*sides["train"], eval_set=[sides["val"]], callbacks=[stop])


def _catboost(sides: dict[str, Any], task: str, seed: int, options: dict[str, Any]) -> Any:
    import catboost as cb

    names = [name for name in sides["train"][0] if name.startswith("c")]
    sides = {
        side: (x.assign(**{n: x[n].astype(int) for n in names}), y)
        for side, (x, y) in sides.items()
    }
    kind = cb.CatBoostRegressor if task == "regression" else cb.CatBoostClassifier
    model = kind(
        iterations=ROUNDS,
        random_seed=seed,
        verbose=False,
        cat_features=names,
        allow_writing_files=False,
        early_stopping_rounds=PATIENCE,
        **options,
    )
    return model.fit(*sides["train"], eval_set=sides["val"])


def _xgboost(sides: dict[str, Any], task: str, seed: int, options: dict[str, Any]) -> Any:
    import xgboost as xgb

    kind = xgb.XGBRegressor if task == "regression" else xgb.XGBClassifier
    model = kind(
        n_estimators=ROUNDS,
        random_state=seed,
        enable_categorical=True,
        tree_method="hist",
        early_stopping_rounds=PATIENCE,
        **options,
    )
    return model.fit(*sides["train"], eval_set=[sides["val"]], verbose=False)


def _forest(sides: dict[str, Any], task: str, seed: int, options: dict[str, Any]) -> Any:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    kind = RandomForestRegressor if task == "regression" else RandomForestClassifier
    model = kind(n_estimators=300, random_state=seed, n_jobs=-1, **options)
    return model.fit(*sides["train"])


def _pytabkit(name: str) -> Callable[..., Any]:
    def fit(sides: dict[str, Any], task: str, seed: int, options: dict[str, Any]) -> Any:
        import pytabkit

        kind = getattr(pytabkit, f"{name}_{'Regressor' if task == 'regression' else 'Classifier'}")
        model = kind(random_state=seed, device="cpu", verbosity=0, **options)
        (x, y), (x_val, y_val) = sides["train"], sides["val"]
        return model.fit(x, y, x_val, y_val)

    return fit


FITS: dict[str, Callable[..., Any]] = {
    "lightgbm": _lightgbm,
    "catboost": _catboost,
    "xgboost": _xgboost,
    "forest": _forest,
    "realmlp": _pytabkit("RealMLP_TD"),
    "tabm": _pytabkit("TabM_D"),
}
SPACES: dict[str, Space] = {
    "lightgbm": lambda rng: {
        "learning_rate": _log_uniform(0.01, 0.2)(rng),
        "num_leaves": int(_log_uniform(8, 256)(rng)),
        "min_child_samples": int(_log_uniform(5, 200)(rng)),
        "reg_lambda": _log_uniform(1e-3, 10)(rng),
        "colsample_bytree": float(rng.uniform(0.4, 1)),
        "subsample": float(rng.uniform(0.5, 1)),
        "subsample_freq": 1,
    },
    "catboost": lambda rng: {
        "learning_rate": _log_uniform(0.02, 0.2)(rng),
        "depth": int(rng.integers(4, 9)),
        "l2_leaf_reg": _log_uniform(1, 30)(rng),
    },
    "xgboost": lambda rng: {
        "learning_rate": _log_uniform(0.01, 0.2)(rng),
        "max_depth": int(rng.integers(3, 11)),
        "min_child_weight": _log_uniform(1, 100)(rng),
        "reg_lambda": _log_uniform(1e-2, 10)(rng),
        "colsample_bytree": float(rng.uniform(0.4, 1)),
        "subsample": float(rng.uniform(0.5, 1)),
    },
}


def _predict(model: Any, rows: pd.DataFrame, task: str, classes: int) -> np.ndarray:
    if type(model).__module__.startswith("catboost"):
        rows = rows.assign(**{n: rows[n].astype(int) for n in rows if n.startswith("c")})
    if task == "regression":
        return np.asarray(model.predict(rows), dtype=np.float64).reshape(-1)
    found = np.zeros((len(rows), classes))
    found[:, np.asarray(model.classes_, dtype=int)] = model.predict_proba(rows)
    return found


def _loss(predictions: np.ndarray, label: np.ndarray, task: str) -> float:
    if task == "regression":
        return float(np.mean((predictions - label) ** 2))
    return float(-np.log(np.clip(predictions[np.arange(len(label)), label], 1e-12, 1)).mean())


def main(library: str, given: str, out: str, trials: int, seed: int) -> None:
    """Fit, choose by validation loss where there are trials, and write test predictions."""
    rows = np.load(given)
    task, classes = str(rows["task"]), int(rows["classes"])
    sides = {side: (_frame(rows, side), rows[f"label_{side}"]) for side in ("train", "val")}
    test, rng, started = _frame(rows, "test"), np.random.default_rng(seed), time.monotonic()
    best: tuple[float, np.ndarray] | None = None
    for _ in range(max(1, trials)):
        options = SPACES[library](rng) if trials else {}
        model = FITS[library](sides, task, seed, options)
        loss = _loss(_predict(model, sides["val"][0], task, classes), sides["val"][1], task)
        if best is None or loss < best[0]:
            best = loss, _predict(model, test, task, classes)
    if best is not None:
        seconds = time.monotonic() - started
        np.savez(out, predictions=best[1], val_loss=best[0], seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
