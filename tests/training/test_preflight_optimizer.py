"""Preflight builds the declared optimizer and schedule: what would fail in the run fails there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import PreflightError
from tests.training.toys import declare, make_toy, write_run
from training.models.build import build_model
from training.preflight.run import preflight, require_passed
from training.preflight.settings import check_optimizer


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"optimizer": {"modules": [{"match": "body.input", "lr": 1e-4}]}},
            r"got 'body.input'; the model has body.inputs",
        ),
        (
            {"optimizer": {"layer_decay": 0.5}, "model": {"kind": "linear"}},
            "Linear has a single layer",
        ),
        (
            {
                "schedule": {"kind": "warmup_cosine", "warmup": 1000},
                "train": {"epochs": 2, "batch_size": 100},
            },
            r"fewer updates than the run has \(8\), got 1000",
        ),
        ({"train": {"drop_last": True, "batch_size": 1000}}, "leaves no batch"),
    ],
)
def test_a_declaration_that_does_not_fit_the_model_or_the_rows_fails(
    sections: dict[str, Any], message: str
) -> None:
    sections = {"model": {"kind": "mlp"}, **sections}
    toy = make_toy(
        "binary",
        **{
            key: {"kind": "adamw", **section} if key == "optimizer" else section
            for key, section in sections.items()
        },
    )
    result = check_optimizer(toy.declaration, build_model(toy.declaration, toy.statistics), 400)
    assert result.verdict == "fail"
    assert re.search(message, result.summary)


@pytest.mark.req("M4")
def test_the_verdict_reaches_the_report_of_a_run(tmp_path: Path) -> None:
    rules = {
        "kind": "adamw",
        "layer_decay": 0.5,
        "modules": [{"match": "body.inputs", "lr": 1e-4}],
        "lr_scaling": "linear",
        "reference_batch_size": 128,
    }
    report = preflight(
        write_run(tmp_path / "sound", declare("binary", {"kind": "mlp"}, optimizer=rules))
    )
    result = next(r for r in report.checks.results if r.name == "optimizer")
    assert result.summary.startswith(
        "Every parameter is in one group: AdamW, peak learning rates 0.0002 to 0.002 in "
    )
    assert sum(row["parameters"] for row in result.evidence) == 11
    bad = declare(
        "binary",
        {"kind": "mlp"},
        optimizer={"kind": "sgd", "modules": [{"match": "body.tail", "lr": 1.0}]},
    )
    with pytest.raises(
        PreflightError,
        match=(
            r"nothing was trained:\n  optimizer: optimizer.modules: expected the path .* got"
            r" 'body.tail'"
        ),
    ):
        require_passed(preflight(write_run(tmp_path / "bad", bad)))
