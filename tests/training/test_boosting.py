"""Boosted trees as arrays: equal to scikit-learn's predictions, fitted on train and validation rows
alone, repeatable to the bit, and refused where they are damaged.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.digest import file_ref
from schemas.errors import (
    CheckpointError,
    ConfigError,
    IntegrityError,
    LeaseError,
    TrainingError,
)
from schemas.load import declare
from schemas.records import CategoryStats, Interval, NumericStats, RunSpec, Statistics
from tests.training.label_cases import make_label_case
from tests.training.runs import make_run
from tests.training.toys import make_arrays, make_statistics
from training.boosting.__main__ import main
from training.boosting.tree_arrays import staged_scores
from training.boosting.tree_fit import TreeRows, fit_boosting
from training.boosting.tree_inputs import matrix, native_columns
from training.boosting.tree_run import fit_ensembles, fit_trees, network_of, require_same_scores
from training.data.arrays.shards import load_arrays
from training.evaluation.baselines import baseline_predictions, verdict
from training.launch.torchrun import failure, start, stop
from training.models.build import build_model, count_parameters
from training.models.trees import NAN_LEFT, Trees, count_trees
from training.preflight.run import preflight
from training.preflight.tree_checks import check_trees
from training.run.lease import Lease
from training.serving.export import Program
from training.serving.exported_program import save_program
from training.serving.program_reader import read_program
from training.serving.reference_network import (
    blank_batch,
    in_double,
    reference_network,
    reference_scores,
)

CLASSES: dict[str, tuple[Any, ...]] = {
    "binary": (False, True),
    "multiclass": ("a", "b", "c"),
    "regression": (),
}
TASKS = sorted(CLASSES)
VALUES = 6  # of a categorical column
QUICK = {"kind": "boosting", "max_iter": 8, "min_samples_leaf": 3, "patience": 4}


def declared(task: str, **model: Any) -> Any:
    return declare(
        {
            "name": "toy",
            "data": {"uri": "toy.parquet", "columns": {"y": "label", "*": "feature"}},
            "task": {"kind": task},
            "split": {"kind": "random"},
            "model": QUICK | model,
        }
    )


def statistics_of(task: str, numeric: int, columns: int, counts: np.ndarray) -> Statistics:
    categories = [
        CategoryStats(name=f"c{i}", values=tuple("abcdef"), counts=(1,) * VALUES, nulls=1)
        for i in range(columns)
    ]
    return Statistics(
        train_sha256="0" * 64,
        rows=int(counts.sum()) or 1,
        numeric=tuple(NumericStats(name=f"x{i}", method="standard") for i in range(numeric)),
        categorical=tuple(categories),
        tensor=(),
        classes=CLASSES[task],
        class_counts=tuple(int(c) for c in counts),
        class_weights=(1.0,) * len(CLASSES[task]),
    )


def table(rng: np.random.Generator, task: str, rows: int, codes: int) -> dict[str, np.ndarray]:
    """Numbers with many ties, nulls (NaN), and categories of which train has only some."""
    numeric = rng.integers(-3, 4, (rows, 3)).astype(np.float32) / np.float32(3)
    numeric[rng.random((rows, 3)) < 0.15] = np.nan
    categorical = rng.integers(0, codes, (rows, 2))
    signal = np.nan_to_num(numeric[:, 0]) + (categorical[:, 0] % 2) + 0.5 * rng.normal(size=rows)
    label = {
        "binary": (signal > 0.5).astype(np.int64),
        "multiclass": np.digitize(signal, [0.0, 0.8]).astype(np.int64),
        "regression": signal.astype(np.float32),
    }[task]
    return {"numeric": numeric, "categorical": categorical.astype(np.int64), "label": label}


def batch_of(arrays: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    numeric = torch.from_numpy(arrays["numeric"]).to(dtype)
    return {"numeric": numeric, "categorical": torch.from_numpy(arrays["categorical"])}


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), rows=st.integers(12, 150))
def test_trees_as_arrays_score_like_scikit_learn(task: str, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    train = table(rng, task, rows, VALUES)  # codes 6 and 7 are never seen in train
    if len(np.unique(train["label"])) < 2:
        train["label"][0] = 1 - train["label"][0]
    served = table(rng, task, 200, VALUES + 2)
    counts = np.bincount(train["label"], minlength=len(CLASSES[task])) if CLASSES[task] else None
    stats = statistics_of(task, 3, 2, np.zeros(0) if counts is None else counts)
    declaration = declared(task)
    ensembles = fit_ensembles(declaration, stats, train, train)
    network = network_of(declaration, stats, ensembles)
    assert count_trees(network) > 0 and count_parameters(network) == (0, 0)
    assert require_same_scores(network, stats, ensembles, served) < 1e-9
    with torch.inference_mode():
        single = network(batch_of(served, torch.float32))
        double = in_double(network, stats)(batch_of(served, torch.float64))
    assert torch.equal(single, double)
    # and as probabilities or values of a whole model, where every iteration is kept
    model = ensembles[0].model
    whole = dataclasses.replace(ensembles[0], iterations=model.n_iter_)
    program = Program(in_double(network_of(declaration, stats, [whole]), stats), stats, task)
    program.columns = None  # scaling is not what is tested here
    with torch.inference_mode():
        found = program(batch_of(served, torch.float32)).numpy()
    features = matrix(stats, served)
    expected = model.predict(features) if task == "regression" else model.predict_proba(features)
    present = slice(None) if task == "regression" else model.classes_
    assert np.abs(found[..., present] - expected).max() < 1e-6


def test_a_class_that_train_lacks_has_no_probability() -> None:
    rng = np.random.default_rng(0)
    train = table(rng, "multiclass", 120, VALUES)
    train["label"] = np.where(train["label"] == 1, 2, train["label"])
    stats = statistics_of("multiclass", 3, 2, np.array([60, 0, 60]))
    ensembles = fit_ensembles(declared("multiclass"), stats, train, train)
    network = network_of(declared("multiclass"), stats, ensembles)
    with torch.inference_mode():
        odds = network(batch_of(train, torch.float32)).softmax(1).numpy()
    assert odds[:, 1].max() < 1e-15
    expected = ensembles[0].model
    kept = dataclasses.replace(ensembles[0], iterations=expected.n_iter_)
    with torch.inference_mode():
        odds = network_of(declared("multiclass"), stats, [kept])(batch_of(train, torch.float32))
    probabilities = expected.predict_proba(matrix(stats, train))
    assert np.abs(odds.softmax(1).numpy()[:, [0, 2]] - probabilities).max() < 1e-6


@pytest.mark.parametrize("task", TASKS)
def test_the_exported_program_equals_the_trees(tmp_path: Path, task: str) -> None:
    arrays = make_arrays(task, 150, tensor=True, weight=True)
    stats = make_statistics(task, arrays)
    declaration = declared(task)
    network = in_double(
        network_of(declaration, stats, fit_ensembles(declaration, stats, arrays, arrays)), stats
    )
    program = Program(network, stats, task).eval()
    example = blank_batch(stats, torch.float64, width=len(stats.numeric))
    save_program(program, example, tmp_path / "program.pt2")
    read = read_program(tmp_path / "program.pt2")
    for rows in (1, 3, 40):
        batch = {
            "numeric": torch.from_numpy(arrays["numeric"][:rows, :5]).double(),
            "categorical": torch.from_numpy(arrays["categorical"][:rows]),
            "tensor_picture": torch.from_numpy(arrays["tensor_picture"][:rows]),
        }
        with torch.inference_mode():
            assert torch.equal(read(batch), program(batch))


def test_without_a_fit_the_scores_are_the_base_rate() -> None:
    stats = statistics_of("binary", 3, 2, np.array([30, 10]))
    network = build_model(declared("binary"), stats)
    arrays = table(np.random.default_rng(0), "binary", 5, VALUES)
    scores = network(batch_of(arrays, torch.float32))
    assert scores.shape == (5, 1) and torch.allclose(scores, torch.tensor(np.log(1 / 3)))


def test_class_weights_and_sample_weights_reach_the_fit() -> None:
    rng = np.random.default_rng(0)
    train = table(rng, "binary", 200, VALUES)
    train["weight"] = rng.uniform(0.5, 2, 200).astype(np.float32)
    counts = np.bincount(train["label"])
    stats = statistics_of("binary", 3, 2, counts)
    declaration = declared("binary").model_copy(
        update={"loss": declared("binary").loss.model_copy(update={"pos_weight": 3.0})}
    )
    found = fit_ensembles(declaration, stats, train, train)[0].model
    weight = train["weight"] * np.where(train["label"] == 1, 3.0, 1.0)
    rows = TreeRows(matrix(stats, train), train["label"], weight.astype(np.float64))
    expected = fit_boosting(
        rows,
        rows,
        native_columns(stats, 255),
        False,
        max_iter=8,
        min_samples_leaf=3,
        n_iter_no_change=4,
        random_state=0,
    )
    assert np.array_equal(found.predict_proba(rows.features), expected.predict_proba(rows.features))


# -------------------------------------------------------------------------------------- whole runs


def run_in(folder: Path, task: str = "binary", **model: Any) -> tuple[RunSpec, Path]:
    spec = make_run(folder, rows=(120, 60), task=task, model=QUICK | model)
    return spec, folder


def test_a_run_leaves_what_a_training_leaves_and_is_not_fitted_twice(tmp_path: Path) -> None:
    spec, folder = run_in(tmp_path)
    report = fit_trees(spec, folder)
    assert report.status in ("finished", "stopped_early") and report.steps <= 8
    assert report.num_parameters == 0 and report.world_size == 1
    assert {"config.yaml", "metrics.jsonl", "result.json", "checkpoints"} <= {
        p.name for p in folder.iterdir()
    }
    weights = Path(report.best_checkpoint.path)
    scores = reference_scores(reference_network(spec, weights), spec.arrays.val)
    assert scores.shape == (60, 1) and np.isfinite(scores).all()
    lines = (folder / "metrics.jsonl").read_text()
    assert fit_trees(spec, folder) == report, "finished: its report, without a fit"
    assert (folder / "metrics.jsonl").read_text() == lines


def test_a_repeated_fit_and_one_that_was_cut_off_give_the_same_bytes(tmp_path: Path) -> None:
    spec, folder = run_in(tmp_path / "a")
    first = fit_trees(spec, folder)
    (folder / "result.json").unlink()
    (folder / "metrics.jsonl").write_text('{"kind": "evaluation", "step": 3, "ep')
    again = fit_trees(spec, folder)
    assert again.model_sha256 == first.model_sha256
    assert again.best_checkpoint.sha256 == first.best_checkpoint.sha256
    other = fit_trees(*run_in(tmp_path / "b"))
    assert other.model_sha256 == first.model_sha256


def test_other_test_rows_leave_the_trees_byte_identical(tmp_path: Path) -> None:
    spec, folder = run_in(tmp_path / "a")
    first = fit_trees(spec, folder)
    changed, other = run_in(tmp_path / "b")
    for ref in changed.arrays.test.arrays.values():
        Path(ref.path).write_bytes(b"not an array")  # nothing reads it, not even its digest
    changed = changed.model_copy(
        update={"arrays": changed.arrays.model_copy(update={"sha256": "1" * 64})}
    )
    assert fit_trees(changed, other).model_sha256 == first.model_sha256


def test_another_process_may_not_write_to_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, folder = run_in(tmp_path)
    monkeypatch.setattr(Lease.take, "__defaults__", (0.0,))
    holder = Lease(folder)
    holder.take(lambda: False)
    with pytest.raises(LeaseError, match="is still writing to this run directory"):
        fit_trees(spec, folder)
    holder.release()
    assert fit_trees(spec, folder).steps > 0


def test_the_program_fits_the_run_of_its_arguments(tmp_path: Path) -> None:
    _, folder = run_in(tmp_path)
    assert main(["--config", str(folder / "resolved.json"), "--run-dir", str(folder)]) == 0
    assert (folder / "result.json").is_file()


@pytest.mark.long
def test_the_launcher_starts_its_program_stops_it_and_reads_its_cause(tmp_path: Path) -> None:
    spec, folder = run_in(tmp_path, max_iter=100_000, patience=100_000, learning_rate=1e-6)
    train = declare(spec.declaration).train
    process = start(folder, train, kind="boosting")
    deadline = time.monotonic() + 60
    while not (folder / "config.yaml").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    stop(process)
    assert process.returncode == -signal.SIGTERM, "it ends at once, nothing is half-written"
    assert not (folder / "result.json").exists() and not (folder / "checkpoints").exists()
    Path(spec.arrays.val.arrays["label"].path).write_bytes(b"damaged")
    process = start(folder, train, kind="boosting")
    code = process.wait(60)
    assert isinstance(failure(folder, code), IntegrityError)


def test_trees_that_do_not_score_like_scikit_learn_are_refused(tmp_path: Path) -> None:
    spec, _ = run_in(tmp_path)
    declaration = declare(spec.declaration)
    train = {name: np.load(ref.path) for name, ref in spec.arrays.train.arrays.items()}
    ensembles = fit_ensembles(declaration, spec.statistics, train, train)
    network = network_of(declaration, spec.statistics, ensembles)
    require_same_scores(network, spec.statistics, ensembles, train)
    network.get_submodule("body").get_buffer("value")[:] += 1e-3
    with pytest.raises(TrainingError, match="differ from scikit-learn's predictions"):
        require_same_scores(network, spec.statistics, ensembles, train)


@pytest.mark.parametrize("task", ["multilabel", "multitask"])
def test_several_labels_have_an_ensemble_each(tmp_path: Path, task: str) -> None:
    case = make_label_case(tmp_path, task, model=QUICK)
    train, val = (load_arrays(case.run.arrays.side(side)) for side in ("train", "val"))
    ensembles = fit_ensembles(case.declaration, case.run.statistics, train, val)
    assert len(ensembles) == 3
    report = fit_trees(case.run, tmp_path / "run")
    network = reference_network(case.run, Path(report.best_checkpoint.path))
    found = reference_scores(network, case.run.arrays.val)
    features = matrix(case.run.statistics, val)
    expected = [staged_scores(e, features, [e.iterations])[0] for e in ensembles]
    assert np.abs(found - np.concatenate(expected, axis=1)).max() < 1e-9


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"train": {"ranks": 2}}, "fitted in one process, got train.ranks 2"),
        ({"train": {"parallel": "fsdp"}}, "train.parallel fsdp"),
        ({"loss": {"kind": "huber"}, "task": {"kind": "regression"}}, "loss.kind 'huber'"),
        (
            {"loss": {"label_smoothing": 0.1}, "task": {"kind": "multiclass"}},
            "no loss.label_smoothing, got 0.1",
        ),
    ],
)
def test_a_setting_that_trees_cannot_follow_is_refused_at_load(
    sections: dict[str, Any], message: str
) -> None:
    tree = declared("binary").model_dump(mode="json", by_alias=True, exclude_unset=True)
    with pytest.raises(ConfigError, match=message):
        declare(tree | sections)
    sound = tree | sections | {"model": {"kind": "linear"}}
    assert declare(sound).model.kind == "linear"


def test_boosting_is_no_baseline_of_itself(tmp_path: Path) -> None:
    spec, _ = run_in(tmp_path)
    declaration = declare(spec.declaration)
    assert declaration.evaluate.baselines == ("constant", "linear")
    given = declaration.evaluate.model_copy(update={"baselines": ("boosting",)})
    both = declaration.model_copy(update={"evaluate": given})
    found = baseline_predictions(both, spec.statistics, spec.arrays)
    assert list(found) == ["constant"]
    metrics = {"auroc": Interval(value=0.9, low=0.85, high=0.95)}
    _, sentence = verdict(declaration, metrics, {"constant": {"auroc": 0.5}})
    assert sentence.startswith("Gradient boosting's AUROC 0.9") and "network" not in sentence


def test_preflight_tries_a_few_trees(tmp_path: Path) -> None:
    spec, _ = run_in(tmp_path)
    report = preflight(spec)
    assert report.checks.failed == () and report.num_parameters == 0
    names = [r.name for r in report.checks.results]
    assert {"labels", "forward", "initial_loss", "trees", "export", "independence"} <= set(names)
    assert {r.verdict for r in report.checks.results} == {"pass"}
    declaration = declare(spec.declaration)
    train = {name: np.load(ref.path) for name, ref in spec.arrays.train.arrays.items()}
    ensembles = fit_ensembles(declaration, spec.statistics, train, train)
    other = network_of(declaration, spec.statistics, ensembles)
    other.get_submodule("body").get_buffer("constant")[:] += 1
    planted = check_trees(other, spec.statistics, ensembles, train)
    assert planted.verdict == "fail" and "differ from scikit-learn" in planted.summary


# ----------------------------------------------------------------------------------- planted faults


def damage(name: str, state: dict[str, torch.Tensor]) -> None:
    """Plant one fault in the state of trees."""
    trees = {key.removeprefix("body."): value for key, value in state.items()}
    if name == "a cycle":
        trees["below"][0] = 0
    elif name == "a child behind the end":
        trees["below"][1] = len(trees["feature"])
    elif name == "a column that is not there":
        trees["feature"][0] = 99
    elif name == "a leaf that is not finite":
        trees["value"][0] = float("nan")
    elif name == "a threshold that is no number":
        trees["threshold"][0] = float("nan")
    elif name == "slots of a number":
        trees["table"][0] = 0
        state["body.goes_left"] = torch.zeros(3, dtype=torch.bool)
    elif name == "another type":
        state["body.threshold"] = trees["threshold"].float()
    elif name == "a buffer less":
        del state["body.value"]
    elif name == "a shorter buffer":
        state["body.value"] = trees["value"][:-1].clone()
    else:
        trees["roots"][0] = -1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a cycle", "a child must stand behind its parent"),
        ("a child behind the end", "below must lie between"),
        ("a column that is not there", "feature must lie between"),
        ("a leaf that is not finite", "must be finite"),
        ("a threshold that is no number", "must be numbers"),
        ("slots of a number", "a slot for each code"),
        ("another type", "threshold must be torch.float64"),
        ("a buffer less", "value must be torch.float64 with one axis, got None"),
        ("a shorter buffer", "value must have"),
        ("a negative root", "roots must lie between"),
    ],
)
def test_damaged_trees_are_refused_by_name(tmp_path: Path, name: str, message: str) -> None:
    spec, folder = run_in(tmp_path)
    weights = Path(fit_trees(spec, folder).best_checkpoint.path)
    assert count_trees(reference_network(spec, weights)) > 0
    state = torch.load(weights, weights_only=True)
    damage(name, state)
    torch.save(state, tmp_path / "damaged.pt")
    with pytest.raises(CheckpointError, match="expected the weights of the declared network"):
        reference_network(spec, tmp_path / "damaged.pt")
    network = build_model(declare(spec.declaration), spec.statistics)
    with pytest.raises(RuntimeError, match=message):
        network.load_state_dict(state)


def test_a_truncated_weights_file_is_refused(tmp_path: Path) -> None:
    spec, folder = run_in(tmp_path)
    report = fit_trees(spec, folder)
    weights = Path(report.best_checkpoint.path)
    weights.write_bytes(weights.read_bytes()[:-200])
    with pytest.raises(CheckpointError, match="expected the weights of the declared network"):
        reference_network(spec, weights)
    assert file_ref(weights).sha256 != report.best_checkpoint.sha256
    assert fit_trees(spec, folder).model_sha256 == report.model_sha256, "it is fitted again"


def test_a_missing_number_goes_where_the_fit_sent_it() -> None:
    """One split at 0.5 with missing values to the left, by hand."""
    stats = statistics_of("regression", 1, 0, np.zeros(0))
    network = build_model(declared("regression"), stats)
    state = {
        "constant": torch.zeros(1, dtype=torch.float64),
        "roots": torch.tensor([0]),
        "column": torch.tensor([0]),
        "feature": torch.tensor([0, 0, 0]),
        "threshold": torch.tensor([0.5, 0.0, 0.0], dtype=torch.float64),
        "table": torch.tensor([NAN_LEFT, -1, -1]),
        "below": torch.tensor([1, 2, 1, 1, 2, 2]),
        "value": torch.tensor([0.0, -1.0, 1.0], dtype=torch.float64),
        "goes_left": torch.zeros(0, dtype=torch.bool),
    }
    network.load_state_dict({f"body.{name}": value for name, value in state.items()})
    rows = torch.tensor([[0.5], [0.5000001], [float("nan")], [float("inf")]])
    assert network({"numeric": rows}).ravel().tolist() == [-1.0, 1.0, -1.0, 1.0]
    body = network.get_submodule("body")
    assert isinstance(body, Trees) and body.depths == (1,)


def test_another_kind_of_model_is_not_fitted_here(tmp_path: Path) -> None:
    spec = make_run(tmp_path, rows=(60, 30))
    with pytest.raises(TrainingError, match=r"expected model\.kind boosting, got 'mlp'"):
        fit_trees(spec, tmp_path)
    assert not (tmp_path / "config.yaml").exists()
