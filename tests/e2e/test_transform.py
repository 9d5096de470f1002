"""A label learned on its logarithm, through the command line: networks, trees, ensembles, folds,
refit; verified and made again.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from tests.e2e.test_members import bulkhead

DECLARATION = """
name: dose
data: {uri: rows.parquet, columns: {row: id, dose: label, "*": numeric}}
task: {kind: regression, transform: log}
split: {kind: random}
model: {kind: mlp, hidden: [16]}
train: {epochs: 6, batch_size: 32, ranks: 1, threads: 1}
evaluate: {bootstrap: 30, baselines: [constant, linear]}
checks: {min_rows: 20}
register: {allow_behind: [linear, boosting]}
"""
VARIANTS: dict[str, list[str]] = {
    "network": [],
    "ensemble": ["ensemble.members=2"],
    "trees": ["model={kind: boosting, max_iter: 40}"],
    "blend": ["model={kind: auto, minutes: 100, candidates: [linear, boosting]}"],
    "clamped": ["model={kind: realmlp, hidden: [16]}", "train.refit=train_val"],
}
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transform")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    frame = pd.DataFrame(x, columns=list("abc")).assign(
        row=[f"r{i}" for i in range(500)],
        dose=np.exp(9 * x[:, 0] + 3 * x[:, 1] + 0.3 * rng.normal(size=500)),
    )
    frame.to_parquet(folder / "rows.parquet")
    (folder / "dose.yaml").write_text(DECLARATION)
    return folder


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_is_scored_and_served_in_the_label_s_units(place: Path, name: str) -> None:
    summary = bulkhead(place, "run", str(place / "dose.yaml"), f"name={name}", *VARIANTS[name])
    assert summary["registered"]["registered"], summary
    folder = Path(summary["run_dir"]) / "evaluation" / "test"
    rows = pd.read_parquet(folder / "predictions.parquet")
    y, p = (rows[column].to_numpy(dtype=float) for column in ("label", "prediction"))
    source = pd.read_parquet(place / "rows.parquet").set_index("row").loc[rows["__id"]]
    np.testing.assert_array_equal(y, source["dose"])
    found = json.loads((folder / "evaluation.json").read_text())["metrics"]
    own = sk.root_mean_squared_error(np.log(y), np.log(p))
    assert found["rmse"]["value"] == pytest.approx(sk.root_mean_squared_error(y, p))
    assert found["r2"]["value"] == pytest.approx(sk.r2_score(y, p))
    assert found["log_rmse"]["value"] == pytest.approx(own) and own < 8
    mlflow.set_tracking_uri(f"sqlite:///{place / 'home' / 'mlflow.db'}")
    served = mlflow.pyfunc.load_model(f"models:/{name}/1").predict(
        source[list("abc")].reset_index(drop=True)
    )["prediction"]
    if "train.refit=train_val" not in VARIANTS[name]:  # it serves other weights than it scored
        np.testing.assert_allclose(np.log(served), np.log(p), rtol=0, atol=1e-9)
    assert (served > 0).all()
    verified = bulkhead(place, "verify", f"models:/{name}/1")
    assert [r["name"] for r in verified["results"] if r["verdict"] == "fail"] == []
    if name in ("network", "blend"):
        assert bulkhead(place, "reproduce", f"models:/{name}/1", "--apply-diff")["identical"]


def test_folds_are_scored_with_the_metric_of_the_logarithm(place: Path) -> None:
    yaml = str(place / "dose.yaml")
    found = bulkhead(place, "run", yaml, "name=folds", "cv.folds=2", "train.epochs=2")
    values = [fold["metrics"]["log_rmse"]["value"] for fold in found["folds"]]
    assert found["metrics"]["log_rmse"]["mean"] == pytest.approx(sum(values) / 2)


def test_values_are_searched(place: Path) -> None:
    trials = ["search={trials: 2, concurrency: 1}", "train.epochs=3"]
    found = bulkhead(place, "run", str(place / "dose.yaml"), "name=searched", *trials)
    assert found["best"]["registered"]["registered"]
