"""The one-batch overfit is no false alarm where rows can hardly be told apart, and still finds a
network that cannot learn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from schemas.records import CheckResult
from tests.training.toys import Arrays, declare, make_arrays, make_statistics, write_run
from training.models.build import build_model
from training.models.shape import model_shape
from training.objectives.losses import make_loss
from training.preflight.descent import directions, linear_loss
from training.preflight.overfit import overfit
from training.preflight.run import preflight
from training.preflight.subject import spread_rows


def one_feature(arrays: Arrays) -> None:
    arrays["numeric"][:, 1:], arrays["categorical"][:] = 0, 2


def two_values(arrays: Arrays) -> None:
    one_feature(arrays)
    arrays["numeric"][:, 0] = np.arange(len(arrays["numeric"])) % 2


def heavy_tail(arrays: Arrays) -> None:
    arrays["label"][:3] = 300.0


class Linear(nn.Module):
    """A linear model of a user's own; with `bound` its output is bounded, which no label learns
    from.
    """

    def __init__(self, bound: float = 0.0) -> None:
        super().__init__()
        self.layer, self.bound = nn.Linear(8, 1), bound

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        scores: Tensor = self.layer(torch.cat([batch["numeric"], batch["categorical"] / 3], dim=1))
        return self.bound * torch.tanh(scores) if self.bound else scores


def tried(
    task: str, model: dict[str, object] | nn.Module, change: Callable[[Arrays], None]
) -> CheckResult:
    arrays, declaration = (
        make_arrays(task, 200),
        declare(task, {"kind": "mlp"} if isinstance(model, nn.Module) else model),
    )
    change(arrays)
    statistics = make_statistics(task, arrays)
    torch.manual_seed(0)
    network = model if isinstance(model, nn.Module) else build_model(declaration, statistics)
    return overfit(
        network,
        declaration,
        statistics,
        model_shape(declaration, statistics),
        spread_rows(arrays, 32),
    )[0]


@pytest.mark.req("M4")
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("change", [one_feature, two_values], ids=lambda f: f.__name__)
def test_a_linear_model_that_does_what_it_can_is_sound(
    task: str, change: Callable[[Arrays], None]
) -> None:
    assert tried(task, {"kind": "linear"}, change).verdict == "pass"


def test_a_linear_model_learns_a_heavy_tailed_label() -> None:
    assert tried("regression", {"kind": "linear"}, heavy_tail).verdict == "pass"


@pytest.mark.parametrize(
    "change",
    [one_feature, two_values, lambda arrays: None],
    ids=["one_feature", "two_values", "plain"],
)
def test_a_linear_module_of_ones_own_is_at_most_a_warning(change: Callable[[Arrays], None]) -> None:
    assert tried("binary", Linear(), change).verdict in ("pass", "warn")


@pytest.mark.parametrize(
    "change",
    [one_feature, two_values, lambda arrays: None],
    ids=["one_feature", "two_values", "plain"],
)
def test_a_bounded_output_is_found_where_rows_hardly_differ_too(
    change: Callable[[Arrays], None],
) -> None:
    found = tried("binary", Linear(bound=0.1), change)
    assert found.verdict == "fail" and "One batch could not be overfit" in found.summary


def test_linear_scores_are_the_best_that_there_are() -> None:
    arrays = make_arrays("regression", 200)
    declaration = declare("regression", {"kind": "linear"})
    loss, probe = (
        make_loss(declaration, make_statistics("regression", arrays)),
        spread_rows(arrays, 32),
    )
    rows = directions(probe).double().numpy()
    residual = (
        probe.label.double().numpy()
        - rows @ np.linalg.lstsq(rows, probe.label.double().numpy(), rcond=None)[0]
    )
    assert linear_loss(loss, probe, 1) == pytest.approx(float(np.mean(residual**2)), rel=1e-3)


@pytest.mark.req("M4")
def test_an_absolute_error_whose_signs_cancel_is_no_dead_bias(tmp_path: Path) -> None:
    report = preflight(
        write_run(tmp_path, declare("regression", {"kind": "linear"}, loss={"kind": "mae"}))
    )
    assert next(r for r in report.checks.results if r.name == "gradients").verdict == "pass"
