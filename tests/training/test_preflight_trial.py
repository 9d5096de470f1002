"""What preflight estimates and how it judges rates; the networks that its trial catches stand in
tests/zoo.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from schemas.load import declare
from schemas.recipes import has_recipe_rates
from schemas.records import CheckResult
from tests.subset import some
from tests.training.toys import KINDS, make_toy
from training.data.engine import in_memory
from training.preflight import first_steps as preflight_trial
from training.preflight.first_steps import (
    _saved_bytes,
    check_cost,
    first_steps,
    judge_cost,
    judge_rates,
    make_trial,
)
from training.preflight.gradient_checks import check_slopes


def tried(kind: str, **sections: Any) -> dict[str, CheckResult]:
    toy = make_toy("binary", {"kind": kind}, rows=300, **sections)
    trial = make_trial(toy.declaration, toy.statistics, toy.arrays)
    return {name: check() for name, check in first_steps(trial).items()} | {
        "cost": check_cost(trial)
    }


@pytest.mark.req("M4")
@pytest.mark.parametrize("kind", some(KINDS, 3))
def test_built_in_models_can_be_trained_resumed_and_exported(kind: str) -> None:
    found = tried(kind)
    assert {name: r.summary for name, r in found.items() if r.verdict != "pass"} == {}
    assert list(found) == ["export", "rates", "gradcheck", "resume", "cost"]
    assert float(found["cost"].figures["seconds"] or 0) > 0


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("losses", "share", "verdict", "words"),
    [
        ([1.0, 0.5], 1.0, "pass", "loss 1 → 0.5"),
        ([1.0, 1.9], 1.0, "pass", "loss 1 → 1.9"),
        ([1.0, 5.0], 1.0, "warn", "the rate is too high"),
        ([1.0, 50.0], 1.0, "fail", "the rate is too high"),
        ([1.0, float("nan")], 1.0, "fail", "the rate is too high"),
        ([1.0, 0.9999], 1e-5, "warn", "could move by 1e-05 of their size"),
    ],
)
def test_a_rate_is_judged_by_where_it_drives_the_loss_and_the_weights(
    losses: list[float], share: float, verdict: str, words: str
) -> None:
    result = judge_rates(losses, 0.1, {"decay": share, "": share})
    assert result.verdict == verdict and words in result.summary


def test_published_rates_fail_only_where_the_loss_is_lost() -> None:
    moves = {"": 0.4}
    assert judge_rates([0.7, 33.0], 1.2, moves).verdict == "fail"
    assert judge_rates([0.7, 33.0], 1.2, moves, is_recipe=True).verdict == "pass"
    assert judge_rates([0.7, math.inf], 1.2, moves, is_recipe=True).verdict == "fail"
    tree: dict[str, Any] = {
        "name": "t",
        "data": {"uri": "t.csv", "columns": {"y": "label"}},
        "task": {"kind": "regression"},
        "split": {"kind": "random"},
        "model": {"kind": "realmlp"},
    }
    assert has_recipe_rates(declare(tree))
    assert not has_recipe_rates(declare(tree | {"optimizer": {"lr": 0.5}}))
    assert not has_recipe_rates(declare(tree | {"model": {"kind": "mlp"}}))


def test_a_group_that_stays_where_it_is_is_named_beside_others_that_move() -> None:
    result = judge_rates([1.0, 0.5], 0.1, {"body/decay": 0.5, "head/decay": 1e-9, "": 0.4})
    assert (
        result.verdict == "warn"
        and "the rates of 1 group (head/decay) are so low" in result.summary
    )
    assert (
        judge_rates([1.0, 0.5], 0.1, {"body/decay": 0.5, "head/decay": 1e-3, "": 0.4}).verdict
        == "pass"
    )


def test_bytes_kept_for_the_backward_pass_are_counted_once_and_without_weights() -> None:
    network = nn.Sequential(nn.Linear(10, 100), nn.Sigmoid(), nn.Linear(100, 1))
    inputs = torch.zeros(7, 10)
    with _saved_bytes(network) as saved:
        network(inputs).sum().backward()
    # the input of the first layer, and the sigmoid's output, which the second layer's input is
    assert saved.total == 4 * (7 * 10 + 7 * 100)


@pytest.mark.req("M4")
def test_memory_that_is_not_there_is_told_before_the_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declaration = make_toy("binary", {"kind": "mlp"}, train={"ranks": 2}).declaration
    monkeypatch.setattr(preflight_trial, "_free_bytes", lambda on_cpu: 3e9)
    assert judge_cost(declaration, 100.0, 1e9).verdict == "pass"
    result = judge_cost(declaration, 100.0, 1.5e9)
    assert (result.verdict, result.summary.split(".", 1)[1]) == (
        "warn",
        " 2 ranks here need 3.0 GB, 3.0 GB are free.",
    )
    assert "micro_batch_size" in result.remedy


def test_memory_of_the_page_cache_counts_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 8000 kB\n")
    monkeypatch.setattr(in_memory, "MEMINFO", meminfo)
    assert preflight_trial._free_bytes(True) == 8000 * 1024
    meminfo.unlink()
    assert preflight_trial._free_bytes(True) > 0


@pytest.mark.req("M4")
def test_less_memory_is_expected_of_smaller_micro_batches_and_of_sharding() -> None:
    def needed(**train: Any) -> float:
        return float(
            tried("resmlp", train={"batch_size": 256, **train})["cost"].figures["bytes_a_rank"] or 0
        )

    whole = needed()
    assert needed(micro_batch_size=16) < whole
    assert needed(ranks=2, parallel="fsdp") < needed(ranks=2) < whole + 1e6


class Bent(nn.Module):
    """A sum of rows that bends where its weight is smaller by `near`; the gradient sees a share of
    the way to the loss.
    """

    def __init__(self, near: float, share: float) -> None:
        super().__init__()
        self.weight, self.near, self.share = (
            nn.Parameter(torch.ones(1, dtype=torch.float64)),
            near,
            share,
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weight = self.weight.detach() * (1 - self.share) + self.weight * self.share
        return torch.relu(weight - 1 + self.near) * rows.sum()


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("near", "share", "verdict", "words"),
    [
        (1e-6, 1.0, "pass", "is the slope of the loss, by finite differences"),
        (1.0, 0.5, "warn", "is cut out of the graph"),
    ],
)
def test_a_bend_close_by_is_no_wrong_gradient(
    near: float, share: float, verdict: str, words: str
) -> None:
    rows = torch.arange(1.0, 7.0, dtype=torch.float64)
    found = check_slopes(Bent(near, share), lambda network: network(rows))
    assert (found.verdict, words in found.summary) == (verdict, True), found
