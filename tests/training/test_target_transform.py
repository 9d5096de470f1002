"""A label that is learned on its logarithm: the same training as on the logarithm itself, and
predictions and metrics in the label's own units.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.errors import DataError
from schemas.records import RunSpec, Statistics, ValTable
from tests.distributed.layout_work import run_one
from tests.training.cases import write_weights
from tests.training.data.chain import declared, split_of, write_table
from tests.training.runs import keep_torch_settings
from training.boosting.tree_run import fit_ensembles
from training.data.arrays.shards import load_arrays, materialise
from training.data.fit.normalize import fit
from training.data.sources.source import fingerprint
from training.data.table.validate import validate
from training.distributed.parallel import Parallel
from training.evaluation.baselines import baseline_predictions
from training.models.shape import prior_scores
from training.objectives.bootstrap import intervals
from training.objectives.mean_prediction import combine, label_columns
from training.objectives.metrics import compute, predict, targets
from training.serving import serving
from training.serving.export import export_model
from training.serving.reference_network import reference_network, reference_scores

COLUMNS = {"id": "id", "y": "label", "a": "numeric", "b": "numeric"}
TRAIN = {"epochs": 2, "batch_size": 16, "threads": 1, "patience": 9}
FORWARD = {"log": math.log, "log1p": lambda y: math.log(1 + y)}
INVERSE = {"log": np.exp, "log1p": np.expm1}


def rows_of(transform: str, seed: int = 0, num_rows: int = 160) -> dict[str, list[Any]]:
    """Rows whose label spans many powers of ten; with log1p some labels are 0."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, num_rows))
    label = np.exp(4 * a + b + 0.2 * rng.normal(size=num_rows))
    if transform == "log1p":
        label[rng.random(num_rows) < 0.2] = 0.0
    return {
        "id": [f"r{i}" for i in range(num_rows)],
        "a": a.tolist(),
        "b": b.tolist(),
        "y": label.tolist(),
    }


def prepared(
    folder: Path, table: dict[str, list[Any]], task: dict[str, Any], **sections: Any
) -> tuple[Declaration, RunSpec]:
    """The run that the real functions prepare, also as `resolved.json` in the folder."""
    given_sections = {"model": {"kind": "mlp", "hidden": [8]}, "train": TRAIN} | sections
    source = write_table(folder / "t.parquet", table)
    declaration = declared(source, COLUMNS, {"kind": "regression"} | task, **given_sections)
    validated, split = split_of(declaration, folder / "out")
    statistics = fit(split.train, validated.spec, declaration)
    arrays = materialise(split, validated, statistics, declaration, folder / "arrays")
    run = RunSpec(
        run_id="run-1",
        name="built",
        declaration=declaration.model_dump(mode="json", by_alias=True),
        spec=validated.spec,
        statistics=statistics,
        arrays=arrays,
    )
    (folder / "resolved.json").write_text(run.model_dump_json())
    return declaration, run


def split_table(folder: Path) -> ValTable:
    """The validation rows that `prepared` wrote."""
    path = next((folder / "out").rglob("val.parquet"))
    return ValTable(file=file_ref(path), rows=pq.read_metadata(path).num_rows)


def both(folder: Path, transform: str, **sections: Any) -> list[tuple[Declaration, RunSpec]]:
    """The run with the transform, and the run on the transformed column without it."""
    table = rows_of(transform)
    by_hand = table | {"y": [FORWARD[transform](y) for y in table["y"]]}
    return [
        prepared(folder / "declared", table, {"transform": transform}, **sections),
        prepared(folder / "by_hand", by_hand, {}, **sections),
    ]


def bytes_of(run: RunSpec) -> dict[str, bytes]:
    sides = {side: load_arrays(run.arrays.side(side)) for side in ("train", "val", "test")}
    return {f"{s}/{name}": a.tobytes() for s, found in sides.items() for name, a in found.items()}


def fitted_label(statistics: Statistics) -> dict[str, Any]:
    kept = statistics.model_dump(exclude={"train_sha256", "target_transform"})
    return json.loads(json.dumps(kept))


@pytest.mark.req("M3")
@pytest.mark.parametrize("transform", ["log1p", pytest.param("log", marks=pytest.mark.long)])
def test_fit_and_arrays_are_those_of_the_logarithm_to_the_bit(
    tmp_path: Path, transform: str
) -> None:
    (_, ours), (_, theirs) = both(
        tmp_path, transform, loss={"kind": "quantile", "quantile": 0.8}, model={"kind": "realmlp"}
    )
    assert ours.statistics.target_transform == transform
    assert ours.statistics.label_quantile is not None and ours.statistics.label_low is not None
    assert fitted_label(ours.statistics) == fitted_label(theirs.statistics)
    assert bytes_of(ours) == bytes_of(theirs)


@pytest.mark.req("M3")
def test_training_is_that_of_the_logarithm_and_predictions_are_its_exponentials(
    tmp_path: Path,
) -> None:
    (declaration, ours), (plain, theirs) = both(tmp_path, "log")
    with keep_torch_settings():
        found, wanted = (
            run_one(Parallel(), tmp_path / name / "resolved.json", tmp_path / name / "run", [None])
            for name in ("declared", "by_hand")
        )
    assert found["weights"] == wanted["weights"]
    scores = np.linspace(-2, 2, 9)[:, None]
    np.testing.assert_allclose(
        predict(declaration, ours.statistics, scores),
        np.exp(predict(plain, theirs.statistics, scores)),
        rtol=1e-14,
    )
    assert prior_scores(declaration, ours.statistics) == prior_scores(plain, theirs.statistics)


@pytest.mark.req("M3")
@pytest.mark.long
@pytest.mark.parametrize("transform", ["log", "log1p"])
def test_trees_and_baselines_are_those_of_the_logarithm(tmp_path: Path, transform: str) -> None:
    baselines = {"baselines": ["constant", "linear", "boosting"]}
    (declaration, ours), (plain, theirs) = both(tmp_path, transform, evaluate=baselines)
    found, wanted = (
        baseline_predictions(d, run.statistics, run.arrays)
        for d, run in ((declaration, ours), (plain, theirs))
    )
    floor = 0.0 if transform == "log1p" else -math.inf
    for name, values in wanted.items():
        logs = np.maximum(values, floor)
        np.testing.assert_allclose(found[name], INVERSE[transform](logs), rtol=1e-9, atol=1e-12)
    boosting = {"model": {"kind": "boosting", "max_iter": 5}, "train": {}}
    pair = both(tmp_path / "trees", transform, **boosting)
    trees = [
        fit_ensembles(d, r.statistics, *(load_arrays(r.arrays.side(s)) for s in ("train", "val")))
        for d, r in pair
    ]
    assert repr(trees[0]) == repr(trees[1])


@pytest.mark.req("E1")
@pytest.mark.parametrize("transform", ["log", "log1p"])
def test_metrics_are_those_of_scikit_learn_in_the_label_s_units(
    tmp_path: Path, transform: str
) -> None:
    table = rows_of(transform)
    declaration, run = prepared(tmp_path, table, {"transform": transform})
    label = load_arrays(run.arrays.test)["label"]
    y = targets(declaration, run.statistics, label)
    known = np.array(table["y"])
    assert all(np.isclose(known, value, rtol=1e-5, atol=1e-5).any() for value in y)
    scores = (label + 0.3 * np.random.default_rng(0).normal(size=len(label)))[:, None]
    p = predict(declaration, run.statistics, scores)
    found = compute(declaration, run.statistics, scores, label)
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, p))
    assert found["r2"] == pytest.approx(sk.r2_score(y, p))
    own = {"log": "log_rmse", "log1p": "rmsle"}[transform]
    assert declaration.metric == own and not declaration.greater_is_better
    wanted = (
        sk.root_mean_squared_error(np.log(y), np.log(p))
        if transform == "log"
        else sk.root_mean_squared_log_error(y, p)
    )
    assert found[own] == pytest.approx(wanted)
    interval = intervals(declaration, p, y, resamples=50)[own]
    assert interval.low is not None and interval.high is not None
    assert interval.low < wanted < interval.high


@pytest.mark.req("R1")
@pytest.mark.parametrize("transform", ["log1p", pytest.param("log", marks=pytest.mark.long)])
def test_the_exported_program_gives_the_label_s_units(tmp_path: Path, transform: str) -> None:
    table = rows_of(transform)
    declaration, run = prepared(tmp_path, table, {"transform": transform})
    weights, stored = write_weights(tmp_path / "weights.pt", run, 0, 1), split_table(tmp_path)
    exported = export_model(run, weights, tmp_path / "model", stored)
    assert 0 <= exported.parity < 1e-6
    spec = serving.read_spec(exported.spec.path)
    raw = pd.read_parquet(stored.file.path)[["a", "b"]]
    found = serving.predict(spec, serving.load_program(exported.program.path, spec), raw)
    scores = reference_scores(reference_network(run, weights), run.arrays.val)
    wanted = predict(declaration, run.statistics, scores)
    np.testing.assert_allclose(found["prediction"], wanted, rtol=1e-9)
    assert (wanted >= 0).all() and np.ptp(np.log1p(wanted)) > 3


@pytest.mark.req("M4")
@settings(max_examples=30, deadline=None)
@given(
    transform=st.sampled_from(["log", "log1p"]),
    seed=st.integers(0, 999),
    members=st.integers(1, 4),
    center=st.floats(-3, 3),
    scale=st.floats(0.1, 5),
)
def test_the_mean_prediction_is_that_of_the_label_s_units(
    transform: str, seed: int, members: int, center: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    columns = {"y": "label", "*": "feature"}
    task = {"kind": "regression", "transform": transform}
    declaration = declared("t.parquet", columns, task, model={"kind": "mlp"})
    statistics = Statistics(
        train_sha256="", rows=9, numeric=(), categorical=(), tensor=(), target_center=center,
        target_scale=scale, target_transform=transform,
    )  # fmt: skip
    scores = rng.normal(size=(members, 6, 1))
    shares = rng.dirichlet(np.ones(members))
    mean = combine(
        label_columns(declaration, statistics), torch.from_numpy(scores), torch.from_numpy(shares)
    )
    each = [predict(declaration, statistics, s) for s in scores]
    np.testing.assert_allclose(
        predict(declaration, statistics, mean.numpy()), shares @ np.array(each), rtol=1e-9,
        atol=1e-12,
    )  # fmt: skip


@pytest.mark.req("R1")
@pytest.mark.parametrize("transform", ["log", "log1p"])
def test_far_scores_stay_finite_and_log1p_predicts_nothing_below_0(transform: str) -> None:
    columns = {"y": "label", "*": "feature"}
    task = {"kind": "regression", "transform": transform}
    declaration = declared("t.parquet", columns, task, model={"kind": "mlp"})
    statistics = Statistics(
        train_sha256="", rows=9, numeric=(), categorical=(), tensor=(), target_transform=transform
    )
    far = predict(declaration, statistics, np.array([[1e9], [-1e9]]))
    assert np.isfinite(far**2).all() and (far >= 0).all()


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.req("D4")
@pytest.mark.parametrize(
    ("transform", "label", "message"),
    [
        ("log", 0.0, r"expects labels above 0, got 1 others, first ids: r7 \(0\); use task.transf"),
        ("log", -2.0, r"r7 \(-2\); remove task.transform"),
        ("log1p", -2.0, r"expects labels of at least 0, got 1 others"),
    ],
)
def test_a_label_without_a_logarithm_is_refused_before_the_split(
    tmp_path: Path, transform: str, label: float, message: str
) -> None:
    table = rows_of(transform)
    table["y"][7] = label
    source = write_table(tmp_path / "t.parquet", table)
    declaration = declared(source, COLUMNS, {"kind": "regression", "transform": transform})
    with pytest.raises(DataError, match=message):
        validate(fingerprint(declaration.data), declaration, tmp_path / "out")


@pytest.mark.req("K2")
@pytest.mark.parametrize(
    ("task", "sections", "message"),
    [
        ({"kind": "binary"}, {}, "transform is for one regression label"),
        ({}, {"loss": {"kind": "poisson"}}, "loss poisson predicts the logarithm"),
        ({}, {"loss": {"kind": "tweedie"}}, "loss tweedie predicts the logarithm"),
        ({}, {"data": {"engine": "spark"}}, "spark cannot do task.transform"),
    ],
)
def test_a_transform_that_makes_no_sense_is_refused(
    task: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        declared("t.parquet", COLUMNS, {"kind": "regression", "transform": "log"} | task,
                 **sections)  # fmt: skip


@pytest.mark.req("K2")
def test_a_declaration_without_a_transform_keeps_its_digest_and_metrics() -> None:
    declaration = declared("t.parquet", COLUMNS, "regression")
    assert "transform" not in declaration.task.model_dump()
    assert declaration.metric == "rmse" and "log_rmse" not in declaration.metrics
