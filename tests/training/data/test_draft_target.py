"""What `bulkhead init` says of a label: counts, grades, logarithms; and where it says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.load import declare
from training.data.draft.draft import draft
from training.data.draft.target import guess_target


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.req("U2")
@pytest.mark.parametrize(
    ("values", "name", "whole", "wanted"),
    [
        (rng().poisson(0.3, 600), "claims", True, ("regression", "none", "poisson")),
        (rng().poisson(6, 600), "visits", True, ("regression", "none", "poisson")),
        (rng().poisson(1.0, 600) * 1.0, "claims", False, ("regression", "none", "poisson")),
        (rng().integers(1, 6, 300), "stars", True, ("multiclass", "none", "ordinal")),
        (np.exp(9 * rng().normal(size=600)), "dose", False, ("regression", "log", "")),
        (np.exp(rng().normal(size=600)), "price", False, ("regression", "log", "")),
        (rng().poisson(np.exp(3 + rng().normal(size=600))), "n", True, ("regression", "log1p", "")),
        # honest counterparts
        (rng().integers(0, 10, 600), "digit", True, ("multiclass", "none", "")),
        (rng().choice(5, 600, p=[0.4, 0.3, 0.15, 0.1, 0.05]), "type", True,
         ("multiclass", "none", "")),
        (rng().integers(1, 6, 300), "plot", True, ("multiclass", "none", "")),
        (rng().poisson(1.0, 30), "claims", True, ("multiclass", "none", "")),
        (rng().normal(size=600), "t", False, ("regression", "none", "")),
        (50 + rng().normal(size=600), "t", False, ("regression", "none", "")),
        (rng().uniform(size=600) ** 4, "u", False, ("regression", "none", "")),
        (5e5 * np.exp(0.5 * rng().normal(size=600)), "price", False, ("regression", "none", "")),
    ],
)  # fmt: skip
def test_a_label_gets_the_task_that_its_values_ask_for(
    values: np.ndarray, name: str, whole: bool, wanted: tuple[str, str, str]
) -> None:
    found = guess_target(values.tolist(), name, whole)
    assert (found.kind, found.transform, found.loss) == wanted
    assert any(c.isdigit() for c in found.why)


@pytest.mark.req("U2")
@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e9, 1e9) | st.integers(0, 30).map(float), min_size=2, max_size=90),
    whole=st.booleans(),
)
def test_a_guess_never_takes_a_logarithm_that_the_label_lacks(
    values: list[float], whole: bool
) -> None:
    found = guess_target(values, "y", whole)
    assert found.transform != "log" or min(values) > 0
    assert found.transform != "log1p" or min(values) >= 0
    assert found.loss != "poisson" or min(values) >= 0


@pytest.mark.req("U2")
@pytest.mark.parametrize(
    ("label", "task", "loss"),
    [
        (rng(31).poisson(np.exp(0.7 * rng(31).normal(size=600) - 0.5)),
         {"kind": "regression"}, {"kind": "poisson"}),
        (np.exp(9 * rng(31).normal(size=600)), {"kind": "regression", "transform": "log"}, None),
    ],
)  # fmt: skip
def test_the_draft_says_so_and_loads(
    tmp_path: Path, label: np.ndarray, task: dict[str, Any], loss: dict[str, Any] | None
) -> None:
    a = rng(31).normal(size=600)
    path = tmp_path / "t.csv"
    pd.DataFrame({"a": a, "b": a[::-1], "target": label}).to_csv(path, index=False)
    text = draft(str(path))
    tree = yaml.safe_load(text)
    assert tree["task"] == task and tree.get("loss") == loss
    assert declare(tree).task.kind == "regression"
    line = next(line for line in text.splitlines() if line.startswith("task:"))
    assert "#" in line and any(c.isdigit() for c in line.partition("#")[2])
