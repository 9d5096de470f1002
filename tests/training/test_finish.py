"""A finished model: temperature and threshold of validation rows alone, in all that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import metrics as sk

from schemas.calibration_records import Coverage, thresholds_of
from schemas.config import Declaration
from schemas.digest import file_ref, sha256_file
from schemas.errors import IntegrityError
from schemas.members import members_of
from schemas.records import EvaluationReport, ExportedModel, RunSpec, TrainReport, digest_of
from schemas.seal import write_sealed
from tasks.finish import finish_model
from tests.training.cases import Case, champion_of, make_case, write_weights
from tests.training.label_cases import make_label_case
from tests.training.runs import keep_torch_settings, make_run
from tests.training.toys import declare, make_arrays, write_run
from training.checkpoint.state import model_digest
from training.data.arrays.shards import load_arrays
from training.data.split.unseen import trained_keys
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.evaluation.ensembling import Trained, combine_members
from training.evaluation.evaluate import evaluate
from training.evaluation.finish import finish
from training.launch.stop_signal import StopSignal
from training.models.build import build_model
from training.models.ensemble import Ensemble
from training.models.temperature import KEY, temperature_of
from training.objectives.losses import make_loss
from training.registry.compare_champion import challenge
from training.registry.ladder import claim_of, place_of
from training.report.choices import choice_blocks
from training.run.record import RESULT, SPEC
from training.run.result_files import FINAL, read_run
from training.serving import serving
from training.serving.export import export_model
from training.serving.reference_network import reference_network, reference_scores
from training.serving.signature import thresholds_of as served_thresholds

BOTH = {"bootstrap": 40, "calibrate": "temperature", "threshold": {"for": "f1"}}
LINEAR = {"kind": "linear"}


def report_of(run: RunSpec, weights: Path) -> TrainReport:
    """The report of a training that ended with these weights."""
    return TrainReport(
        run_id=run.run_id,
        status="finished",
        epochs=1,
        steps=1,
        best_step=1,
        best_metric=0.5,
        metric="auroc",
        seconds=1.0,
        world_size=1,
        num_parameters=1,
        best_checkpoint=file_ref(weights),
        model_sha256=model_digest(torch.load(weights, weights_only=True)),
        rows_per_second=1.0,
    )


def sharpened(folder: Path, run: RunSpec, factor: float = 6.0) -> Path:
    """Weights of a linear network that was trained a little and then says too much."""
    declaration = Declaration.model_validate(run.declaration)
    network, loss = (
        build_model(declaration, run.statistics),
        make_loss(declaration, run.statistics),
    )
    batch = {n: torch.from_numpy(a.copy()) for n, a in load_arrays(run.arrays.train).items()}
    label = batch.pop("label")
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        loss(network(batch), label).backward()
        optimizer.step()
    state = {name: value * factor for name, value in network.state_dict().items()}
    torch.save(state, folder / "weights.pt")
    return folder / "weights.pt"


def toy(folder: Path, task: str = "binary", evaluate: Any = BOTH, **sides: Any) -> RunSpec:
    folder.mkdir(exist_ok=True)
    return write_run(folder, declare(task, LINEAR, evaluate=evaluate), rows=200, sides=sides)


def corrupted(task: str, seed: int) -> dict[str, np.ndarray]:
    """Rows of a side with other features and labels."""
    arrays = make_arrays(task, 100, seed)
    return arrays | {"numeric": -3 * arrays["numeric"], "label": arrays["label"][::-1].copy()}


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_test_rows_change_nothing_and_validation_rows_do(tmp_path: Path, task: str) -> None:
    section = BOTH if task == "binary" else {"calibrate": "temperature"}
    plain = toy(tmp_path / "plain", task, section)
    weights = sharpened(tmp_path, plain)
    trained = report_of(plain, weights)

    def finished(name: str, **sides: Any) -> tuple[str, TrainReport]:
        run = toy(tmp_path / name, task, section, **sides)
        report = finish(run, trained, tmp_path / name)
        return sha256_file(report.best_checkpoint.path), report

    first, kept = finish(plain, trained, tmp_path / "plain"), tmp_path / "plain" / FINAL
    digest, other = finished("test", test=corrupted(task, 2))
    assert digest == sha256_file(kept / "model.pt")
    assert (other.calibration, other.threshold) == (first.calibration, first.threshold)
    digest, other = finished("val", val=corrupted(task, 1))
    assert other.calibration != first.calibration
    if task == "binary":
        assert other.threshold != first.threshold


def test_the_temperature_lowers_validation_log_loss_and_is_in_the_weights(tmp_path: Path) -> None:
    run = toy(tmp_path)
    weights = sharpened(tmp_path, run)
    report = finish(run, report_of(run, weights), tmp_path)
    (found,) = report.calibration
    assert found.kept and found.temperature > 1 and found.rows == 100
    assert found.after.log_loss < found.before.log_loss and found.after.ece < found.before.ece
    state = torch.load(report.best_checkpoint.path, weights_only=True)
    assert state[KEY].tolist() == [found.temperature]
    assert report.model_sha256 == model_digest(state)
    val = evaluate(run, report.best_checkpoint, "val", tmp_path / "e")
    assert val.metrics["log_loss"].value == pytest.approx(found.after.log_loss)
    assert val.calibration[0].before.log_loss == pytest.approx(found.before.log_loss)
    before = evaluate(run, weights, "val", tmp_path / "before")
    assert before.metrics["log_loss"].value == pytest.approx(found.before.log_loss)
    assert val.metrics["auroc"].value == before.metrics["auroc"].value


def test_a_temperature_that_gains_nothing_is_not_kept(tmp_path: Path) -> None:
    run = toy(tmp_path)
    weights = sharpened(tmp_path, run, 0.0)  # every score is 0
    trained = report_of(run, weights)
    report = finish(run, trained, tmp_path)
    assert [(c.temperature, c.kept) for c in report.calibration] == [(1.0, False)]
    assert report.best_checkpoint == trained.best_checkpoint
    assert report.model_sha256 == trained.model_sha256
    assert not (tmp_path / FINAL / "model.pt").exists()


def test_an_unchanged_end_is_taken_again_and_a_damaged_one_made_again(tmp_path: Path) -> None:
    run = toy(tmp_path)
    trained = report_of(run, sharpened(tmp_path, run))
    first, path = finish(run, trained, tmp_path), tmp_path / FINAL / "model.pt"
    content, written = path.read_bytes(), path.stat().st_mtime_ns
    assert finish(run, trained, tmp_path) == first and path.stat().st_mtime_ns == written
    for damage in (
        lambda: path.write_bytes(content[:-9]),
        path.unlink,
        (tmp_path / FINAL / RESULT).unlink,  # as a kill between the two leaves it
        lambda: (tmp_path / FINAL / RESULT).write_text("{}"),
    ):
        damage()
        assert finish(run, trained, tmp_path) == first and path.read_bytes() == content
    other = trained.model_copy(update={"steps": 2})
    assert finish(run, other, tmp_path).steps == 2


def test_a_run_is_read_with_its_final_weights(tmp_path: Path) -> None:
    run = toy(tmp_path)
    trained = report_of(run, sharpened(tmp_path, run))
    write_sealed(tmp_path / SPEC, run.model_dump_json())
    write_sealed(tmp_path / RESULT, trained.model_dump_json())
    with pytest.raises(IntegrityError, match=r"expected a record, found no file.*bulkhead resume"):
        read_run(tmp_path)
    report = finish(run, trained, tmp_path)
    assert read_run(tmp_path) == (run, report)
    write_sealed(tmp_path / RESULT, trained.model_copy(update={"steps": 9}).model_dump_json())
    with pytest.raises(IntegrityError, match="from another training"):
        read_run(tmp_path)


def test_without_a_declaration_nothing_is_made(tmp_path: Path) -> None:
    run = toy(tmp_path, evaluate={"bootstrap": 40})
    trained = report_of(run, sharpened(tmp_path, run))
    tracker: Any = None
    assert finish_model(run, trained, tmp_path, tracker) is trained
    assert not (tmp_path / FINAL).exists()
    report = evaluate(run, trained.best_checkpoint, "val", tmp_path / "e")
    for record in (trained, report):
        assert not {"calibration", "threshold", "thresholds"} & set(record.model_dump(mode="json"))


def test_a_declared_temperature_changes_no_trained_bit_also_in_mode_elastic(
    tmp_path: Path,
) -> None:
    found = []
    for name, section in (("plain", {}), ("declared", BOTH)):
        run = make_run(
            tmp_path / name,
            train={"epochs": 1, "batch_size": 16, "mode": "elastic", "logical_shards": 4},
            evaluate=section,
        )
        with keep_torch_settings():
            trained = train(run, tmp_path / name, Parallel(), StopSignal())
        found.append((trained.model_sha256, trained.best_metric))
    assert found[0] == found[1]


class Chain(NamedTuple):
    """A case from weights to a served model."""

    case: Case
    trained: TrainReport
    evaluated: EvaluationReport
    exported: ExportedModel
    served: pd.DataFrame


def chain(folder: Path, case: Case, trained: TrainReport, **changes: Any) -> Chain:
    finished = finish(case.run, trained, folder).model_copy(update=changes)
    thresholds = thresholds_of(finished.threshold)
    evaluated = evaluate(
        case.run, finished.best_checkpoint, "test", folder / "evaluation", thresholds
    )
    exported = export_model(
        case.run, finished.best_checkpoint.file, folder / "model", case.split.val, thresholds
    )
    model = serving.RawRows()
    model.load({"program": exported.program.path, "spec": exported.spec.path})
    return Chain(case, finished, evaluated, exported, model.predict(None, case.raw["test"]))


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    folder = tmp_path_factory.mktemp("clinic")
    case = make_case(
        folder, model=LINEAR, ignored=("scan",), steps=60, evaluate=BOTH | {"baselines": ["linear"]}
    )
    return chain(folder, case, report_of(case.run, case.weights))


def test_the_served_class_is_the_evaluated_class(clinic: Chain) -> None:
    (choice,) = clinic.trained.threshold
    assert choice.value != 0.5 and choice.score > choice.at_half  # type: ignore[operator]
    spec = serving.read_spec(clinic.exported.spec.path)
    assert served_thresholds(spec) == clinic.evaluated.thresholds == {"y": choice.value}
    found = pq.read_table(clinic.evaluated.predictions.path).to_pandas()
    assert found["prediction"].tolist() == clinic.served["prediction"].tolist()
    np.testing.assert_allclose(found["probability_yes"], clinic.served["probability_yes"], 0, 1e-6)
    by_hand = np.where(found["probability_yes"] > choice.value, "yes", "no")
    assert found["prediction"].tolist() == by_hand.tolist()
    assert by_hand.tolist() != np.where(found["probability_yes"] > 0.5, "yes", "no").tolist()
    f1 = sk.f1_score(found["label"], found["prediction"], pos_label="yes")
    assert clinic.evaluated.metrics["f1"].value == pytest.approx(f1)
    interval = clinic.evaluated.metrics["f1"]
    assert interval.low is not None and interval.low <= f1 <= interval.high  # type: ignore[operator]


def test_a_spec_without_a_threshold_decides_at_a_half(clinic: Chain) -> None:
    spec = serving.read_spec(clinic.exported.spec.path)
    program = serving.load_program(clinic.exported.program.path, spec)
    del spec["threshold"]
    found = serving.predict(spec, program, clinic.case.raw["test"])
    half = np.where(found["probability_yes"] > 0.5, "yes", "no")
    assert found["prediction"].tolist() == half.tolist()


def test_champion_and_challenger_decide_by_their_own_thresholds(clinic: Chain) -> None:
    case = clinic.case
    metric = case.declaration.register_.model_copy(update={"metric": "f1"})
    declaration = case.declaration.model_copy(update={"register_": metric})
    keys = trained_keys([case.split.train, case.split.val])
    champion = champion_of(case, clinic.exported, keys)
    given = (declaration, case.run, case.split.test)
    program = clinic.exported.program.sha256
    assert challenge(*given, clinic.evaluated, program, champion).identical
    moved = clinic.evaluated.model_copy(update={"thresholds": {"y": 0.5}})
    found = challenge(*given, moved, program, champion)
    assert not found.identical
    frame = pq.read_table(clinic.evaluated.predictions.path).to_pandas()
    half = np.where(frame["probability_yes"] > 0.5, "yes", "no")
    ours = sk.f1_score(frame["label"], half, pos_label="yes")
    theirs = sk.f1_score(frame["label"], frame["prediction"], pos_label="yes")
    assert found.challenger == pytest.approx(ours) and found.champion == pytest.approx(theirs)
    assert found.difference is not None
    assert found.difference.value == pytest.approx(ours - theirs)


def test_intervals_declared_for_the_champions_program_are_put_to_use(clinic: Chain) -> None:
    case = clinic.case
    champion = champion_of(case, clinic.exported, trained_keys([case.split.train, case.split.val]))
    given = (case.declaration, case.run, case.split.test)
    program = clinic.exported.program.sha256
    held = Coverage(label="y", declared=0.9, seen=0.9, size=1.0, rows=100)
    with_intervals = clinic.evaluated.model_copy(update={"coverage": (held,)})
    found = challenge(*given, with_intervals, program, champion)
    assert not found.identical and found.difference is not None and found.difference.value == 0
    place = place_of(case.declaration, found)
    assert place.replaces and "intervals are new" in place.condition.summary
    claim = claim_of(case.declaration, with_intervals, found)
    assert claim is not None and claim.value == found.champion  # it does not move
    other = challenge(*given, with_intervals, "another program", champion)
    assert not place_of(case.declaration, other).replaces  # equal, and no reason to move
    assert challenge(*given, clinic.evaluated, program, champion).identical


def test_the_report_shows_both(clinic: Chain) -> None:
    blocks = choice_blocks(clinic.trained, clinic.evaluated)
    assert [getattr(b, "text", "") for b in blocks if b.block == "heading"] == [
        "Calibration",
        "Decision threshold",
    ]
    plain = clinic.trained.model_copy(update={"calibration": (), "threshold": ()})
    assert choice_blocks(plain, clinic.evaluated) == []


def test_an_ensemble_has_one_temperature_of_its_mean_and_a_threshold(tmp_path: Path) -> None:
    sections = {"evaluate": BOTH | {"baselines": ["constant"]}, "ensemble": {"members": 2}}
    case = make_case(tmp_path, model=LINEAR, ignored=("scan",), **sections)
    members = []
    for number, declared in enumerate(members_of(case.declaration), start=1):
        tree = declared.model_dump(mode="json", by_alias=True)
        spec = case.run.model_copy(update={"declaration": tree})
        weights = write_weights(tmp_path / f"{number}.pt", spec, steps=60, seed=number)
        state = torch.load(weights, weights_only=True)
        torch.save({name: 6 * value for name, value in state.items()}, weights)
        members.append(Trained(len(members) + 1, spec, report_of(spec, weights)))
    whole, trained = combine_members(case.run, members, tmp_path / "ensemble")
    found = chain(tmp_path, case._replace(run=whole), trained)
    (calibration,), (choice,) = found.trained.calibration, found.trained.threshold
    assert calibration.kept and calibration.temperature > 1 and choice.value != 0.5
    network = reference_network(whole, found.trained.best_checkpoint.file)
    assert isinstance(network, Ensemble) and temperature_of(network) is not None
    assert [temperature_of(member) for member in network.members] == [None, None]
    plain = reference_network(whole, trained.best_checkpoint.file)
    before, after = (reference_scores(n, whole.arrays.test) for n in (plain, network))
    np.testing.assert_allclose(after, before / calibration.temperature, rtol=1e-12)
    rows = pq.read_table(found.evaluated.predictions.path).to_pandas()
    assert rows["prediction"].tolist() == found.served["prediction"].tolist()
    np.testing.assert_allclose(rows["probability_yes"], found.served["probability_yes"], 0, 1e-6)
    log_loss = sk.log_loss(rows["label"] == "yes", rows["probability_yes"])
    assert found.evaluated.metrics["log_loss"].value == pytest.approx(log_loss)
    assert served_thresholds(serving.read_spec(found.exported.spec.path)) == {"y": choice.value}


def test_each_of_several_labels_has_its_own(tmp_path: Path) -> None:
    case = make_label_case(
        tmp_path / "case",
        "multitask",
        model=LINEAR,
        evaluate={
            "bootstrap": 40,
            "baselines": ["constant"],
            "calibrate": "temperature",
            "threshold": {"for": "balanced_accuracy"},
        },
    )
    trained = report_of(case.run, sharpened(tmp_path, case.run))
    finished = finish(case.run, trained, tmp_path)
    kinds = {label.name: label.kind for label in case.run.statistics.labels}
    assert {c.label for c in finished.calibration} == {n for n in kinds if kinds[n] != "regression"}
    assert {c.label for c in finished.threshold} == {n for n in kinds if kinds[n] == "binary"}
    assert any(c.kept for c in finished.calibration)
    thresholds = thresholds_of(finished.threshold)
    evaluated = evaluate(case.run, finished.best_checkpoint, "test", tmp_path / "e", thresholds)
    found = pq.read_table(evaluated.predictions.path).to_pandas()
    exported = export_model(
        case.run, finished.best_checkpoint.file, tmp_path / "model", case.split.val, thresholds
    )
    model = serving.RawRows()
    model.load({"program": exported.program.path, "spec": exported.spec.path})
    assert served_thresholds(model.spec) == thresholds
    table = pq.read_table(case.split.test.file.path).to_pandas()
    served = model.predict(None, table.set_index("__id").loc[found["__id"]].reset_index())
    for label in case.run.statistics.labels:
        column = f"prediction_{label.name}"
        if label.kind == "regression":
            np.testing.assert_allclose(found[column], served[column], rtol=1e-6)
            continue
        assert found[column].tolist() == served[column].tolist()
        if label.kind == "binary":
            known = found[f"label_{label.name}"].notna()
            value = sk.balanced_accuracy_score(
                found.loc[known, f"label_{label.name}"].astype(str),
                found.loc[known, column].astype(str),
            )
            metric = evaluated.metrics[f"{label.name}/balanced_accuracy"]
            assert metric.value == pytest.approx(value)
    assert digest_of(finished) != digest_of(trained)
