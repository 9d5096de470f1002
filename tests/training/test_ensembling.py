"""Members combined: greedy weights, the ensemble's file, its record; without any test rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.digest import file_ref
from schemas.errors import CheckpointError, IntegrityError
from schemas.load import declare
from schemas.members import members_of
from schemas.records import RunSpec, TrainReport
from tests.training.runs import declaration_tree, make_run, statistics
from training.checkpoint.state import model_digest
from training.evaluation.ensembling import (
    Rows,
    Trained,
    bagged_weights,
    combine_members,
    greedy_shares,
    member_spread,
    temperatures,
)
from training.models.build import build_model
from training.models.ensemble import Ensemble
from training.objectives.losses import make_loss
from training.objectives.mean_prediction import combine, label_columns
from training.objectives.metrics import compute, predict
from training.serving.reference_network import read_state, reference_network, reference_scores

AUTO = {"kind": "auto", "candidates": ["linear", {"kind": "mlp", "hidden": [8]}, "linear"]}
TASKS = ("binary", "multiclass", "regression")


def judged(task: str, seed: int, rows: int = 80) -> tuple[Any, Any, np.ndarray, Rows]:
    """Loss, columns, scores of three members (useful, useful otherwise, noise), and their rows."""
    declaration, stats = declare(declaration_tree(task)), statistics(task)
    rng = np.random.default_rng(seed)
    width = 3 if task == "multiclass" else 1
    truth = rng.normal(size=(rows, width))
    label = {
        "binary": (truth[:, 0] > 0).astype(np.int64),
        "multiclass": truth.argmax(axis=1),
        "regression": truth[:, 0].astype(np.float32),
    }[task]
    noises = rng.normal(size=(3, rows, width))
    scores = np.stack([truth + noises[0], truth + noises[1], 5 * noises[2]])
    weight = rng.uniform(0.5, 2.0, rows).astype(np.float32)
    return (
        make_loss(declaration, stats),
        label_columns(declaration, stats),
        scores,
        Rows(label, weight),
    )


def loss_of(loss: Any, columns: Any, scores: np.ndarray, rows: Rows, shares: list[int]) -> float:
    assert rows.weight is not None
    weights = torch.tensor(shares, dtype=torch.float64) / sum(shares)
    blend = combine(columns, torch.from_numpy(scores), weights)
    return float(loss(blend, torch.from_numpy(rows.label), torch.from_numpy(rows.weight)))


@settings(max_examples=15)
@given(task=st.sampled_from(TASKS), seed=st.integers(0, 10_000))
def test_the_blend_is_never_worse_than_the_best_member_on_the_rows_that_chose_it(
    task: str, seed: int
) -> None:
    found = judged(task, seed)
    shares = greedy_shares(*found)
    singles = [loss_of(*found, [int(i == n) for i in range(3)]) for n in range(3)]  # type: ignore[arg-type]
    assert 1 <= sum(shares) <= 25 and loss_of(*found, shares) <= min(singles) + 1e-15
    assert greedy_shares(*found) == shares, "the same rows choose the same"


def test_two_good_members_share_and_noise_is_left_out() -> None:
    for task in TASKS:
        shares = greedy_shares(*judged(task, 0, 2000))
        assert min(shares[:2]) > 0 and shares[2] == 0, (task, shares)


def test_few_rows_draw_the_weights_of_kept_members_together(tmp_path: Path) -> None:
    """A member that no resample chooses has weight 0 all the same."""
    apart = []
    for rows in (60, 6_000):
        run = make_run(tmp_path / str(rows), rows=(40, rows))
        _, _, scores, found = judged("binary", 0, rows)
        scores[1] += 0.7 * scores[2]
        weights = bagged_weights(declare(run.declaration), run, scores, found)
        assert sum(weights) == pytest.approx(1) and (weights[2] == 0 or rows == 60)
        apart.append(weights[0] - weights[1])
    assert 0 < apart[0] < 0.3 < apart[1]


def test_a_blend_that_is_no_better_than_its_first_member_is_that_member() -> None:
    loss, columns, scores, rows = judged("binary", 1)
    twins = np.stack([scores[2], scores[0], scores[0]])
    assert greedy_shares(loss, columns, twins, rows) == [0, 1, 0], "the earliest at a tie"


def trained_members(folder: Path, run: RunSpec, numbers: tuple[int, ...]) -> list[Trained]:
    """Members with random weights in files, as training leaves them."""
    declared, found = members_of(declare(run.declaration)), []
    for number in numbers:
        declaration = declared[number - 1]
        network = build_model(declaration, run.statistics)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.manual_seed(number))
        path = folder / f"{number}.pt"
        torch.save({"model": network.state_dict()}, path)
        spec = run.model_copy(
            update={"declaration": declaration.model_dump(mode="json", by_alias=True)}
        )
        found.append(Trained(number, spec, _report(run, number, path, network)))
    return found


def _report(run: RunSpec, number: int, path: Path, network: torch.nn.Module) -> TrainReport:
    return TrainReport(
        run_id=f"{run.run_id}-member-{number:02d}",
        status="finished" if number == 1 else "stopped_early",
        epochs=10 + number,
        steps=100,
        best_step=10 * number,
        best_metric=0.5,
        metric="auroc",
        seconds=2.0,
        world_size=1,
        num_parameters=sum(p.numel() for p in network.parameters()),
        best_checkpoint=file_ref(path),
        model_sha256=model_digest(network.state_dict()),
        rows_per_second=50.0,
    )


def without_test_rows(run: RunSpec) -> RunSpec:
    """The run after its test arrays are gone: whoever opens them fails."""
    for ref in (*run.arrays.test.arrays.values(), run.arrays.test.ids):
        ref.file.unlink()
    return run


@pytest.mark.parametrize("task", TASKS)
def test_the_file_holds_the_mean_of_the_members(tmp_path: Path, task: str) -> None:
    run = make_run(tmp_path, task=task, ensemble={"members": 2})
    run = without_test_rows(run)
    metric = {"regression": "rmse", "multiclass": "macro_f1"}.get(task, "auroc")
    members = [
        m._replace(
            report=m.report.model_copy(update={"metric": metric, "promise": f"of {m.number}"})
        )
        for m in trained_members(tmp_path, run, (1, 2))
    ]
    whole, report = combine_members(run, members, tmp_path / "a")
    network = reference_network(whole, report.best_checkpoint.file)
    assert isinstance(network, Ensemble) and whole.members == (1, 2)
    declaration, stats, val = declare(run.declaration), run.statistics, run.arrays.val
    each = [
        predict(
            declaration,
            stats,
            reference_scores(reference_network(m.spec, m.report.best_checkpoint.file), val),
        )
        for m in members
    ]
    scores = reference_scores(network, val)
    found = predict(declaration, stats, scores)
    np.testing.assert_allclose(found, (each[0] + each[1]) / 2, rtol=1e-12, atol=1e-12)
    wide = [p.reshape(val.rows, -1) for p in each]
    spread = member_spread(network, declaration, stats, val)
    assert spread is not None
    np.testing.assert_allclose(spread, np.abs(wide[0] - wide[1]).max(axis=1) / 2, atol=1e-12)
    assert member_spread(network.members[0], declaration, stats, val) is None
    data = {name: np.load(ref.path) for name, ref in val.arrays.items()}
    metrics = compute(declaration, stats, scores, data["label"], data["weight"])
    assert report.best_metric == metrics[metric]
    assert report.model_sha256 == model_digest(dict(read_state(report.best_checkpoint.file)))
    assert [m.weight for m in report.members] == [0.5, 0.5] and report.promise == "of 1; of 2"
    assert (report.status, report.epochs, report.steps, report.best_step) == (
        "finished",
        12,
        200,
        20,
    )
    assert (report.run_id, report.seconds, report.rows_per_second) == (run.run_id, 4.0, 50.0)
    again = combine_members(run, members, tmp_path / "b")[1]
    assert again.best_checkpoint.sha256 == report.best_checkpoint.sha256, "byte-identical"


def test_a_candidate_of_weight_zero_is_not_in_the_file_nor_one_that_did_not_run(
    tmp_path: Path,
) -> None:
    run = without_test_rows(make_run(tmp_path, task="regression", model=AUTO))
    members = trained_members(tmp_path, run, (1, 2))
    noisy = torch.load(members[0].report.best_checkpoint.path, weights_only=True)["model"]
    torch.save({"model": {n: 100 * t for n, t in noisy.items()}}, tmp_path / "1.pt")
    bad = members[0].report.model_copy(update={"best_checkpoint": file_ref(tmp_path / "1.pt")})
    whole, report = combine_members(
        run, [members[0]._replace(report=bad), members[1]], tmp_path / "out"
    )
    assert whole.members == (2,) and [m.weight for m in report.members] == [0.0, 1.0]
    network = reference_network(whole, report.best_checkpoint.file)
    assert isinstance(network, Ensemble) and len(network.members) == 1
    assert RunSpec.model_validate_json(whole.model_dump_json()) == whole
    assert [m.kind for m in report.members] == ["linear", "mlp"]


def test_changed_weights_and_another_choice_of_members_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, model=AUTO)
    members = trained_members(tmp_path, run, (1, 2, 3))
    whole, report = combine_members(run, members, tmp_path / "out")
    others = whole.model_copy(update={"members": (3, 2, 1, *whole.members)})
    with pytest.raises(CheckpointError, match="expected the weights of the declared network"):
        reference_network(others, report.best_checkpoint.file)
    with (tmp_path / "2.pt").open("ab") as file:
        file.write(b"x")
    with pytest.raises(IntegrityError, match=r"2\.pt"):
        combine_members(run, members, tmp_path / "again")
    assert not (tmp_path / "again" / "model.pt").exists()


def test_records_of_one_network_have_no_trace_of_members(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = tmp_path / "1.pt"
    network = build_model(declare(run.declaration), run.statistics)
    torch.save(network.state_dict(), path)
    report = _report(run, 1, path, network)
    assert "members" not in run.model_dump_json() + report.model_dump_json()
    assert "ensemble" not in run.declaration


def test_a_member_that_is_too_sure_gets_a_temperature() -> None:
    for task in ("binary", "multiclass"):
        _, _, scores, rows = judged(task, 0)
        declaration = declare(declaration_tree(task))
        plain, sure = (temperatures(declaration, [scores[0] * k], rows)[0] for k in (1, 10))
        assert sure == pytest.approx(10 * plain, rel=1e-5)
    declaration = declare(declaration_tree("regression"))
    assert temperatures(declaration, list(scores), rows) == [1.0, 1.0, 1.0]
