"""What the quality benchmark compares: this project at three efforts, baselines, and libraries."""

from __future__ import annotations

from dataclasses import dataclass

PYTABKIT = ("pytabkit==1.7.3",)


@dataclass(frozen=True)
class Candidate:
    """One way to get predictions.

    `overrides`: of the declaration, for this project. `library`: in `workers/peer.py`, with its
    packages and trials. `baseline`: fitted by `training.evaluation.baselines`.
    """

    name: str
    overrides: tuple[str, ...] | None = None
    library: str = ""
    packages: tuple[str, ...] = ()
    trials: int = 0
    baseline: str = ""


OURS = (
    Candidate("Bulkhead, quick", ("model.kind=auto", "model.effort=quick")),
    Candidate("Bulkhead, default", ("model.kind=auto",)),
    Candidate("Bulkhead, best", ("model.kind=auto", "model.effort=best")),
)
BOOSTING = (
    Candidate("LightGBM", library="lightgbm", packages=("lightgbm==4.7.0",)),
    Candidate("CatBoost", library="catboost", packages=("catboost==1.2.10",)),
    Candidate("XGBoost", library="xgboost", packages=("xgboost==3.2.0",)),
)
TUNED = tuple(
    Candidate(f"{c.name}, 30 trials", library=c.library, packages=c.packages, trials=30)
    for c in BOOSTING
)
CANDIDATES = (
    *OURS,
    *(
        Candidate(f"Bulkhead, {kind} alone", (f"model.kind={kind}",))
        for kind in ("realmlp", "tabm", "boosting")
    ),
    Candidate("constant", baseline="constant"),
    Candidate("linear", baseline="linear"),
    Candidate("HistGradientBoosting", baseline="boosting"),
    *BOOSTING,
    *TUNED,
    Candidate("random forest", library="forest", packages=("joblib",)),
    Candidate("RealMLP-TD (pytabkit)", library="realmlp", packages=PYTABKIT),
    Candidate("TabM (pytabkit)", library="tabm", packages=PYTABKIT),
)
QUICK = (
    "Bulkhead, quick",
    "Bulkhead, default",
    "constant",
    "linear",
    "HistGradientBoosting",
    "LightGBM",
    "RealMLP-TD (pytabkit)",
)
