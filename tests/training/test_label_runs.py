"""Tasks of several labels from the table to the served model and the report: one run of each kind,
looked at from all sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn import metrics as sk

from schemas.digest import file_ref
from schemas.records import EvaluationReport, ExportedModel, PreflightReport, RunSpec, TrainReport
from tests.training.label_cases import LabelCase, make_label_case
from tests.training.runs import keep_torch_settings
from training.data.arrays.shards import load_arrays
from training.data.split.unseen import trained_keys
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.evaluation.evaluate import evaluate
from training.launch.stop_signal import StopSignal
from training.objectives.metrics import compute
from training.preflight.run import preflight, require_passed
from training.registry.compare_champion import challenge
from training.registry.registry import LoadedModel
from training.report.headline import ReportInputs
from training.report.page import write_report
from training.serving import serving
from training.serving.export import export_model
from training.serving.reference_network import reference_network, reference_scores
from training.serving.signature import input_example, signature

TASKS = ("multilabel", "multitask")


class Done(NamedTuple):
    """A case with what each step of a run made of it."""

    case: LabelCase
    folder: Path
    preflight: PreflightReport
    trained: TrainReport
    evaluated: EvaluationReport
    exported: ExportedModel
    model: serving.RawRows


def run_through(folder: Path, task: str) -> Done:
    case = make_label_case(
        folder / "case",
        task,
        train={"epochs": 4, "batch_size": 64},
        optimizer={"kind": "adamw", "lr": 0.01},
    )
    checked = preflight(case.run)
    require_passed(checked)
    with keep_torch_settings():
        trained = train(case.run, folder / "run", Parallel(), StopSignal())
    evaluated = evaluate(case.run, trained.best_checkpoint, "test", folder / "evaluation")
    exported = export_model(
        case.run, trained.best_checkpoint.file, folder / "model", case.split.val
    )
    model = serving.RawRows()
    model.load({"program": exported.program.path, "spec": exported.spec.path})
    return Done(case, folder, checked, trained, evaluated, exported, model)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Done]]:
    yield {task: run_through(tmp_path_factory.mktemp(task), task) for task in TASKS}


@pytest.mark.req("M4")
@pytest.mark.parametrize("task", TASKS)
def test_preflight_says_how_many_labels_are_masked_and_starts_at_the_base_rate(
    done: dict[str, Done], task: str
) -> None:
    checks = {r.name: r for r in done[task].preflight.checks.results}
    labels = done[task].case.run.statistics.labels
    assert (
        checks["labels"].verdict == "pass"
        and f"{sum(f.known for f in labels):,} are" in checks["labels"].summary
    )
    assert checks["initial_loss"].verdict == "pass" and checks["overfit"].verdict == "pass"
    assert done[task].preflight.initial_loss == pytest.approx(
        done[task].preflight.expected_loss, rel=0.15
    )


@pytest.mark.req("R1")
@pytest.mark.req("R4")
@pytest.mark.parametrize("task", TASKS)
def test_the_served_model_gives_the_evaluated_numbers_from_raw_rows(
    done: dict[str, Done], task: str
) -> None:
    one = done[task]
    scored = pq.read_table(one.evaluated.predictions.path).to_pandas().set_index("__id")
    raw = one.case.raw.set_index("row").loc[scored.index].reset_index()
    served = one.model.predict(None, raw[["ward", "x3", "x2", "x1", "x0"]])
    assert list(served.columns) == [
        c for c in scored.columns if c.startswith(("prediction_", "probability_"))
    ]
    expected = {
        "multilabel": [
            n
            for label in ("toxic", "late", "rare")
            for n in (f"prediction_{label}", f"probability_{label}")
        ],
        "multitask": [
            *("prediction_toxic", "probability_toxic", "prediction_stage"),
            *(
                "probability_stage_1",
                "probability_stage_2",
                "probability_stage_3",
                "prediction_dose",
            ),
        ],
    }[task]
    assert (
        list(served.columns)
        == expected
        == [c.name for c in signature(one.model.spec).outputs.inputs]
        == serving.output_columns(one.model.spec)
    )
    for name in expected:
        if name.startswith("probability") or name == "prediction_dose":
            np.testing.assert_allclose(served[name], scored[name], rtol=0, atol=1e-9)
        else:
            assert served[name].tolist() == scored[name].tolist()
    assert (
        served["prediction_toxic"].tolist()
        == np.where(served["probability_toxic"] > 0.5, "yes", "no").tolist()
    )
    assert (
        len(one.model.predict(None, raw.iloc[:0])) == 0
        and len(one.model.predict(None, input_example(one.model.spec))) == 2
    )
    types = {c.name: c.type.name for c in signature(one.model.spec).outputs.inputs}
    assert types["prediction_toxic"] == "string" and types[expected[-1]] == "double"
    with pytest.raises(ValueError, match="missing columns: 'x2'"):
        one.model.predict(None, raw.drop(columns="x2"))


@pytest.mark.req("T9")
@pytest.mark.parametrize("task", TASKS)
def test_the_evaluation_follows_from_the_predictions_on_disk(
    done: dict[str, Done], task: str
) -> None:
    report = done[task].evaluated
    table = pq.read_table(report.predictions.path).to_pandas()
    known = table[table["label_toxic"].notna()]
    auroc = sk.roc_auc_score(known["label_toxic"] == "yes", known["probability_toxic"])
    row = next(r for r in report.by_label if r["label"] == "toxic")
    assert (
        row["known"] == len(known)
        and row["positive"] == pytest.approx((known["label_toxic"] == "yes").mean())
        and row["value"] == pytest.approx(auroc)
    )
    assert (
        row["low"] <= row["value"] <= row["high"]
        and row["baseline constant"] == 0.5
        and row["baseline linear"] > 0.6
    )
    assert (
        report.base_rate["toxic"] == pytest.approx(row["positive"])
        and report.has_skill
        and report.label_note == ""
    )
    if task == "multilabel":
        assert report.metrics["macro_auroc"].value == pytest.approx(
            np.mean([r["value"] for r in report.by_label])
        )
        assert report.baselines["constant"]["macro_auroc"] == 0.5
    else:
        dose = table[table["label_dose"].notna()]
        assert report.metrics["dose/rmse"].value == pytest.approx(
            sk.root_mean_squared_error(dose["label_dose"], dose["prediction_dose"])
        )
        assert report.metrics["toxic/auroc"].value == pytest.approx(auroc)
        assert (
            report.baselines["constant"]["unexplained"]
            > 1
            > report.baselines["linear"]["unexplained"]
            > 0
        )
        assert (
            report.base_rate["dose, mean"] == pytest.approx(dose["label_dose"].mean())
            and "stage = 2" in report.base_rate
        )


@pytest.mark.req("T10")
@pytest.mark.parametrize("task", TASKS)
def test_the_metric_of_training_is_that_of_evaluation_on_the_same_rows(
    done: dict[str, Done], task: str
) -> None:
    one = done[task]
    assert one.trained.metric == one.case.declaration.metric
    network, val = (
        reference_network(one.case.run, one.trained.best_checkpoint.file),
        one.case.run.arrays.val,
    )
    arrays = load_arrays(val)
    found = compute(
        one.case.declaration,
        one.case.run.statistics,
        reference_scores(network, val),
        arrays["label"],
    )
    assert found[one.trained.metric] == pytest.approx(one.trained.best_metric, rel=1e-5)


@pytest.mark.req("T12")
@pytest.mark.parametrize("task", TASKS)
def test_nothing_that_could_stand_under_an_unknown_label_changes_a_bit_of_training(
    done: dict[str, Done], task: str, tmp_path: Path
) -> None:
    """Any bit pattern that is no number; what the source writes for unknown is looked at in
    data/test_labels.py.
    """
    one = done[task]
    written = tmp_path / "label.npy"
    label = np.load(one.case.run.arrays.train.arrays["label"].path)
    payload = np.isnan(label)
    label.view(np.uint32)[payload] = np.random.default_rng(0).integers(
        0x7FC00001, 0x7FFFFFFF, payload.sum(), dtype=np.uint32
    )
    assert (
        np.isnan(label[payload]).all()
        and (label.view(np.uint32)[payload] != np.float32(np.nan).view(np.uint32)).any()
    )
    np.save(written, label)
    arrays = one.case.run.arrays
    side = arrays.train.model_copy(
        update={"arrays": arrays.train.arrays | {"label": file_ref(written)}}
    )
    other: RunSpec = one.case.run.model_copy(
        update={"arrays": arrays.model_copy(update={"train": side})}
    )
    with keep_torch_settings():
        again = train(other, tmp_path / "run", Parallel(), StopSignal())
    assert (
        again.model_sha256 == one.trained.model_sha256
        and again.best_metric == one.trained.best_metric
    )


@pytest.mark.req("R2")
@pytest.mark.parametrize("task", TASKS)
def test_the_champion_is_compared_over_all_labels(done: dict[str, Done], task: str) -> None:
    one = done[task]
    keys = trained_keys([one.case.split.train, one.case.split.val])

    def compared(**spec: Any) -> Any:
        champion = LoadedModel(
            name="m",
            version="1",
            uri="models:/m/1",
            spec=one.model.spec | spec,
            evidence=None,
            trained_on=keys,
            model=one.model,
        )
        return challenge(
            one.case.declaration,
            one.case.run,
            one.case.split.test,
            one.evaluated,
            "another",
            champion,
        )

    found = compared()
    assert (
        found.problem == ""
        and found.metric == one.case.declaration.metric
        and found.rows == one.case.split.test.rows
    )
    assert (
        found.challenger
        == pytest.approx(found.champion, abs=1e-9)
        == pytest.approx(one.evaluated.metrics[found.metric].value)
    )
    labels = [
        {**label, "classes": ["other"]} if label["name"] == "toxic" else label
        for label in one.model.spec["labels"]
    ]
    assert compared(labels=labels).problem == "its label 'toxic' has other classes, or is none"
    assert compared(label="toxic").problem.startswith("it predicts 'toxic', not ")


@pytest.mark.req("P8")
@pytest.mark.parametrize("task", TASKS)
def test_the_report_has_a_row_for_each_label(done: dict[str, Done], task: str) -> None:
    one = done[task]
    inputs = ReportInputs(
        run_id="r",
        declaration=one.case.declaration,
        prepared=one.case.prepared,
        preflight=one.preflight,
        train=one.trained,
        metrics_path=one.folder / "run" / "metrics.jsonl",
        test=one.evaluated,
    )
    text = write_report(inputs, one.folder / "report.html").file.read_text()
    for label in one.case.validated.spec.labels:
        assert text.count(f">{label}<") >= 3, (
            f"{label} stands in the tables of metrics, split and statistics"
        )
    known = {row["label"]: row["known"] for row in one.evaluated.by_label}
    assert all(f">{count}<" in text for count in known.values())
    assert (
        "Known labels" in text
        and "by label, from" in text
        and ("Ignored values" in text) == (task == "multitask")
    )
