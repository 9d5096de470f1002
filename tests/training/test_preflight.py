"""Preflight lets sound networks through quickly and names every planted mistake."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schemas.errors import PreflightError
from schemas.records import CheckResult, PreflightReport
from tests.training import modules
from tests.training.toys import CLASSES, KINDS, declare, make_arrays, make_toy, write_run
from training.models.build import Network, build_model
from training.models.shape import model_shape
from training.objectives.losses import make_loss
from training.preflight.descent import constant_loss
from training.preflight.run import inspect, preflight, require_passed
from training.preflight.subject import first_rows, spread_rows
from training.preflight.verdict import judged_loss


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")


def report_on(
    task: str, model: dict[str, Any], rows: int = 300, **sections: Any
) -> PreflightReport:
    toy = make_toy(task, model, rows=rows, **sections)
    network = build_model(toy.declaration, toy.statistics)
    return inspect(
        toy.declaration,
        toy.statistics,
        network,
        first_rows(toy.arrays, 256),
        spread_rows(toy.arrays, 32),
    )


def report_on_module(module: str, task: str = "binary", **sections: Any) -> PreflightReport:
    """A report on a user's module, on numeric columns alone."""
    arrays = {name: a for name, a in make_arrays(task, 300).items() if name != "categorical"}
    toy = make_toy(task, {"kind": "custom", "path": f"tests.training.modules:{module}"}, **sections)
    statistics = toy.statistics.model_copy(update={"categorical": ()})
    network = build_model(toy.declaration, statistics)
    return inspect(
        toy.declaration, statistics, network, first_rows(arrays, 256), spread_rows(arrays, 32)
    )


def verdicts(report: PreflightReport) -> dict[str, str]:
    return {r.name: r.verdict for r in report.checks.results}


def found(report: PreflightReport, name: str) -> CheckResult:
    return next(r for r in report.checks.results if r.name == name)


@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_built_in_models_pass(task: str, kind: str) -> None:
    report = report_on(task, {"kind": kind})
    require_passed(report)
    assert set(verdicts(report).values()) == {"pass"}, [
        r.summary for r in report.checks.results if r.verdict != "pass"
    ]
    goal = 0.02 * float(found(report, "overfit").figures["constant_loss"])  # type: ignore[arg-type]
    assert report.overfit_losses[-1] <= goal < report.overfit_losses[0]
    assert report.overfit_steps == len(report.overfit_losses)
    assert report.expected_loss is not None and report.initial_loss == pytest.approx(
        report.expected_loss, rel=0.15
    )


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    "section",
    [
        {"class_weights": "balanced"},
        {"label_smoothing": 0.2},
        {"class_weights": "balanced", "label_smoothing": 0.1},
    ],
)
def test_declared_weights_and_smoothing_do_not_stand_in_the_way(section: dict[str, Any]) -> None:
    require_passed(report_on("multiclass", {"kind": "mlp", "dropout": 0.5}, loss=section))


@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", ["mae", "huber"])
def test_other_regression_losses_pass(kind: str) -> None:
    require_passed(report_on("regression", {"kind": "mlp"}, loss={"kind": kind}))


@pytest.mark.req("M4")
@pytest.mark.parametrize("module", ["Sound", "ZeroInitialised"])
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_sound_modules_of_a_user_pass(task: str, module: str) -> None:
    require_passed(report_on_module(module, task))


@pytest.mark.req("M4")
def test_global_randomness_and_the_network_are_left_as_they_were() -> None:
    toy = make_toy("binary", {"kind": "mlp"}, rows=100)
    network = build_model(toy.declaration, toy.statistics)
    weights, state, modes = (
        {n: p.clone() for n, p in network.state_dict().items()},
        torch.get_rng_state(),
        [m.training for m in network.modules()],
    )
    first, second = (
        inspect(
            toy.declaration,
            toy.statistics,
            network,
            first_rows(toy.arrays, 64),
            spread_rows(toy.arrays, 32),
        )
        for _ in range(2)
    )
    assert first.model_copy(update={"seconds": 0.0}) == second.model_copy(update={"seconds": 0.0})
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in network.modules()] == modes
    assert all(torch.equal(p, weights[n]) for n, p in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


@pytest.mark.req("M4")
@pytest.mark.parametrize("rate", [1e-3, 30.0])
def test_with_a_second_core_the_report_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    run = write_run(
        tmp_path, declare("multiclass", {"kind": "mlp"}, optimizer={"kind": "adamw", "lr": rate})
    )
    threads, reports = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for cores in ({0, 1}, {0}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        reports.append([r for r in preflight(run).checks.results if r.name != "cost"])
    torch.set_num_threads(threads)
    assert reports[0] == reports[1]
    assert [
        r.verdict for r in reports[0] if r.name in ("export", "rates", "gradcheck", "resume")
    ] == ["pass", "pass" if rate < 1 else "fail", "pass", "pass"]


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("hidden", "rows", "rate"), [([64], 32, 1e-3), ([600, 600], 16, 1e-3), ([600, 600], 16, 30.0)]
)
def test_a_large_network_is_tried_on_fewer_rows_and_a_rate_that_is_too_high_is_seen_all_the_same(
    tmp_path: Path, hidden: list[int], rows: int, rate: float
) -> None:
    run = write_run(
        tmp_path,
        declare(
            "binary",
            {"kind": "mlp", "hidden": hidden},
            optimizer={"kind": "adamw", "lr": rate, "weight_decay": 0.0},
        ),
    )
    report = preflight(run)
    assert (
        found(report, "overfit").figures["rows"] == rows
        and found(report, "overfit").verdict == "pass"
    )
    assert (found(report, "rates").verdict == "fail") == (rate > 1), found(report, "rates").summary


# ------------------------------------------------------------------------------------- planted
# faults


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("module", "task", "check", "message"),
    [
        (
            "Detached",
            "binary",
            "gradients",
            (
                r"2 of 4 trainable parameters are not reached.*body\.hidden\.weight \(unused in"
                r" forward, or cut off.*remove \.detach\(\)"
            ),
        ),
        ("Unused", "binary", "gradients", r"2 of 6 .*body\.forgotten\.weight"),
        ("Dead", "binary", "gradients", r"body\.hidden\.weight \(gets a gradient of exactly 0\)"),
        ("NoGradient", "binary", "gradients", r"the loss has no gradient at all.*torch\.no_grad"),
        ("Frozen", "binary", "gradients", r"no parameter is trainable.*requires_grad"),
        (
            "RootAtZero",
            "regression",
            "gradients",
            r"the gradient of body\.hidden\.\w+ is not finite.*sqrt or log at 0",
        ),
        (
            "Explosive",
            "binary",
            "extremes",
            r"not finite for inputs of \+10 standard deviations.*normalize\.clip",
        ),
        (
            "Mixing",
            "binary",
            "independence",
            r"moved the scores of others.*rows of a batch mix.*over dim 0",
        ),
        ("Company", "binary", "independence", r"a row scored alone differs by"),
        ("Noisy", "binary", "repeatable", r"two passes in eval mode differ.*self\.training"),
        ("Loud", "binary", "initial_loss", r"scores start too large.*small weights"),
        ("Loud", "regression", "initial_loss", r"scores start too large"),
        (
            "Sigmoid",
            "binary",
            "overfit",
            r"All scores lie between 0 and 1: a sigmoid in the model.*return log odds",
        ),
        ("Softmax", "multiclass", "overfit", r"add up to 1: a softmax in the model.*return logits"),
        (
            "Positive",
            "regression",
            "overfit",
            r"No score is below 0 though labels are.*plain linear layer",
        ),
        ("Bounded", "regression", "overfit", r"could not be overfit: 32 rows.*bounded"),
        (
            "Deaf",
            "binary",
            "overfit",
            r"All rows get the same scores: the inputs do not reach the output",
        ),
    ],
)
def test_a_planted_mistake_is_named_with_its_remedy(
    module: str, task: str, check: str, message: str
) -> None:
    report = report_on_module(module, task)
    assert verdicts(report)[check] == "fail"
    with pytest.raises(
        PreflightError, match=rf"(?s)preflight failed, nothing was trained:.*{check}: .*{message}"
    ):
        require_passed(report)


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "TooWide",
            r"forward: batch of 32: the model must return raw scores \[B, 1\].*got \[32, 2\]",
        ),
        ("Squeezed", r"forward: batch of 32: .*got \[32\]"),
        ("Raising", r"forward raised RuntimeError: shapes cannot be multiplied"),
        ("NotFinite", r"forward: scores of \d+ of 32 rows are not finite.*look for log"),
    ],
)
def test_a_forward_pass_that_cannot_be_run_stops_at_once(module: str, message: str) -> None:
    with pytest.raises(PreflightError, match=message):
        report_on_module(module)


@pytest.mark.req("M4")
def test_the_first_module_that_is_not_finite_is_named() -> None:
    toy = make_toy("binary", {"kind": "mlp"}, rows=100)
    network = build_model(toy.declaration, toy.statistics)
    with torch.no_grad():
        network.body.hidden[3].weight[0, 0] = float("nan")
    with pytest.raises(
        PreflightError,
        match=r"not finite with the initial weights \(first in body\.hidden\.3, Linear\)",
    ):
        inspect(
            toy.declaration,
            toy.statistics,
            network,
            first_rows(toy.arrays, 64),
            spread_rows(toy.arrays, 32),
        )


@pytest.mark.req("M4")
def test_batch_norm_is_a_warning_on_several_ranks() -> None:
    assert found(report_on_module("BatchNormed"), "train_eval").verdict == "pass"
    report = report_on_module("BatchNormed", train={"ranks": 2})
    require_passed(report)
    result = found(report, "train_eval")
    assert result.verdict == "warn"
    assert "body.norm" in result.summary
    assert "group or layer norm" in result.remedy


@pytest.mark.req("M4")
def test_a_network_that_knows_the_labels_is_suspect() -> None:
    arrays = {name: a for name, a in make_arrays("binary", 300).items() if name != "categorical"}
    arrays["numeric"][:, 0] = arrays["label"] * 2 - 1
    toy = make_toy("binary", {"kind": "custom", "path": "tests.training.modules:Sound"})
    statistics = toy.statistics.model_copy(update={"categorical": ()})
    shape = model_shape(toy.declaration, statistics)
    body = modules.Sound(shape)
    with torch.no_grad():
        body.hidden.weight.zero_()
        body.hidden.weight[0, 0], body.hidden.weight[1, 0] = 5.0, -5.0
        body.head.weight.zero_()
        body.head.weight[0, :2] = torch.tensor([1.0, -1.0])
    report = inspect(
        toy.declaration,
        statistics,
        Network(shape, statistics, body),
        first_rows(arrays, 256),
        spread_rows(arrays, 32),
    )
    result = found(report, "initial_loss")
    assert result.verdict == "fail"
    assert "knows the labels before training" in result.summary


@pytest.mark.req("M4")
def test_a_small_network_passes_with_a_warning_at_most() -> None:
    rng = np.random.default_rng(0)
    arrays = {"numeric": rng.normal(size=(200, 1)).astype(np.float32)}
    arrays["label"] = (arrays["numeric"][:, 0] + rng.normal(size=200)).astype(np.float32)
    toy = make_toy("regression", {"kind": "mlp", "hidden": [3], "numeric_embedding": "none"})
    statistics = toy.statistics.model_copy(
        update={"categorical": (), "numeric": toy.statistics.numeric[:1]}
    )
    report = inspect(
        toy.declaration,
        statistics,
        build_model(toy.declaration, statistics),
        first_rows(arrays, 64),
        spread_rows(arrays, 32),
    )
    require_passed(report)
    result = found(report, "overfit")
    assert result.verdict == "warn"
    assert "32 rows were not overfit: the network is small" in result.summary


@pytest.mark.req("M4")
@pytest.mark.parametrize("task", sorted(CLASSES))
def test_the_constant_that_overfitting_is_held_against_is_the_best_one(task: str) -> None:
    toy = make_toy(task, rows=200)
    loss, label = make_loss(toy.declaration, toy.statistics), toy.batch(200)[1]
    outputs = model_shape(toy.declaration, toy.statistics).outputs
    scores = torch.zeros(1, outputs, requires_grad=True)
    optimizer = torch.optim.LBFGS([scores], max_iter=100)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss.per_row(scores.expand(200, -1), label).mean()
        value.backward()
        return value

    optimizer.step(closure)
    assert constant_loss(loss, label, outputs) == pytest.approx(float(closure().detach()), rel=1e-4)


# -------------------------------------------------------------------------------------- whole runs


@pytest.mark.req("M4")
def test_a_sound_run_passes_from_its_files(tmp_path: Path) -> None:
    report = preflight(write_run(tmp_path, declare("multiclass", {"kind": "mlp"}), weight=True))
    require_passed(report)
    assert [r.name for r in report.checks.results][:2] == ["labels", "forward"]
    assert report.num_parameters == report.num_trainable > 0
    assert PreflightReport.model_validate_json(report.model_dump_json()) == report


def off_by_one(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**arrays, "label": arrays["label"] + 1}


@pytest.mark.req("M4")
@pytest.mark.parametrize("side", ["train", "val"])
def test_labels_that_count_from_one_are_named(tmp_path: Path, side: str) -> None:
    arrays = make_arrays("multiclass", 100)
    run = write_run(
        tmp_path, declare("multiclass", {"kind": "mlp"}), sides={side: off_by_one(arrays)}
    )
    with pytest.raises(
        PreflightError,
        match=(
            rf"labels: {side}: expected class indices 0 to 2 \(a, b, c\), found 3 in \d+ rows .*off"
            r" by one"
        ),
    ):
        preflight(run)


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": np.full(100, np.nan, np.float32)},
            r"train: 100 labels are not finite \(first rows: 0, 1, 2, 3, 4, …\)",
        ),
        (
            {"label": np.ones(100, np.float32)},
            r"train: all 100 labels are 1\.0; there is nothing to learn",
        ),
        (
            {"weight": np.full(100, -1, np.float32)},
            r"train: weights must be finite, at least 0, and not all 0",
        ),
        (
            {"numeric": np.ones((100, 6), np.float32), "categorical": np.ones((100, 2), np.int64)},
            r"all of the 100 train rows looked at have the same inputs",
        ),
    ],
)
def test_labels_weights_and_inputs_that_teach_nothing_are_refused(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    run = write_run(
        tmp_path,
        declare("regression", {"kind": "mlp"}),
        sides={"train": {**make_arrays("regression", 100), **change}},
    )
    with pytest.raises(PreflightError, match=message):
        preflight(run)


@pytest.mark.req("M4")
@pytest.mark.parametrize(("deviation", "verdict"), [(1.4, "pass"), (2.0, "warn"), (3.0, "fail")])
def test_scores_may_begin_as_large_as_the_labels(deviation: float, verdict: str) -> None:
    noise = 3.25, 7.25  # of squared errors from labels of deviation 1
    found = judged_loss(
        1 + deviation**2,
        "1",
        {"base_rate": 1.0},
        ("too large", "smaller"),
        ("known", "look"),
        noise,
    )
    assert found.verdict == verdict
