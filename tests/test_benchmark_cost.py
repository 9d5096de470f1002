"""The benchmarks of cost and of GPUs: their arithmetic, their pages, and the same code on small
networks on the CPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import cost, cost_work, gpu
from benchmarks.made_up import prepare, variant
from tests.training.runs import keep_torch_settings


def test_constants_of_made_up_costs_are_found_again_and_foretell_what_was_left_out() -> None:
    def figures(parameters: int, batch: int) -> cost.Figures:
        made = {"parameters": parameters, "units": 100.0, "batch": batch}
        return {
            **made,
            "step_ms": 2.0 + 3e-6 * parameters + 5e-9 * parameters * batch + 7e-6 * 100 * batch,
        }

    step = next(found for found in cost.COSTS if found.name == "step")
    constants = cost.fitted(
        step, [figures(p, b) for p in (10_000, 1_000_000) for b in (64, 512, 4096)]
    )
    assert constants == pytest.approx([2.0, 3.0, 5.0, 7.0], rel=1e-6)
    assert cost.foretold(step, constants, figures(300_000, 1000)) == pytest.approx(
        figures(300_000, 1000)["step_ms"]
    )


def test_a_cost_that_the_terms_do_not_explain_is_shown_with_its_error() -> None:
    ranks = [
        {"ranks": 2.0, "numbers": float(n), "exchange_ms": 1.0 + 4e-6 * n} for n in cost.NUMBERS
    ]
    found = {
        each.name: (ranks, [{"ranks": 4.0, "numbers": 1e6, "exchange_ms": 90.0}])
        for each in cost.COSTS
        if each.name == "exchange of gradients"
    }
    costs, cost.COSTS = cost.COSTS, tuple(each for each in cost.COSTS if each.name in found)
    try:
        text = cost.section(found)
    finally:
        cost.COSTS = costs
    assert (
        "| exchange of gradients | 1 ms a neighbour · (ranks − 1) + 1 ns a byte · bytes × 2 (ranks"
        " − 1) / ranks | 0 % |" in text
    )
    assert (
        "| exchange of gradients | 1,000,000 numbers over 4 ranks | 9.0 ms | 90.0 ms | -90 % |"
        in text
    )


def test_a_training_run_is_measured_whole(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    variant(prepare(tmp_path, 600, numeric_columns=6), spec)
    with keep_torch_settings():
        found = cost_work.train(spec, tmp_path, units=8, batch=64)
    assert (
        found["units"] == 16
        and found["rows_evaluated"] > 60
        and found["checkpoint_bytes"] > 12 * found["parameters"]
    )
    assert (
        min(found[name] for name in ("step_seconds", "evaluation_seconds", "checkpoint_seconds"))
        > 0
    )


@pytest.mark.req("T13")
def test_the_gpu_benchmark_runs_on_the_cpu_and_finds_no_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    with keep_torch_settings():
        assert (
            gpu.main(
                ["--device", "cpu", "--small", "--rounds", "2", "--output", str(page), "--json"]
            )
            == 0
        )
    out = capsys.readouterr().out
    table, text = json.loads(out[out.index("[") :])
    for found in (table, text):
        assert found["waits"] == 0 and found["stall"] > 0 and found["rate"] > 0
        parts = [found["breakdown"][part] for part in gpu.PHASES]
        assert min(parts[:4]) > 0 and set(found["breakdown"]) == {"whole", *gpu.PHASES}
    assert text["attention"] and text["flops"] > 0 and "## On a GPU" in page.read_text()


def test_without_a_gpu_the_benchmark_says_so_and_ends_with_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--output", str(tmp_path / "page.md")]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err and not (tmp_path / "page.md").exists()
