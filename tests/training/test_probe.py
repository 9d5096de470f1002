"""Probe rows: spread over labels, pairwise different, never contradicting each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import PreflightError
from tests.training.toys import make_arrays
from training.preflight.subject import first_rows, spread_rows


@pytest.mark.req("M4")
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(4, 200),
    values=st.integers(2, 6),
    wanted=st.integers(2, 40),
    classes=st.integers(2, 5),
    seed=st.integers(0, 999),
)
def test_no_two_rows_share_their_inputs(
    rows: int, values: int, wanted: int, classes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = {
        "numeric": rng.integers(0, values, (rows, 2)).astype(np.float32),
        "categorical": rng.integers(0, 2, (rows, 1)),
        "label": rng.integers(0, classes, rows),
        "weight": np.ones(rows, np.float32),
    }
    distinct = len(np.unique(np.c_[arrays["numeric"], arrays["categorical"]], axis=0))
    if distinct < 2:
        with pytest.raises(
            PreflightError, match=f"all of the {rows} train rows looked at have the same inputs"
        ):
            spread_rows(arrays, wanted)
        return
    probe = spread_rows(arrays, wanted)
    assert set(probe.inputs) == {"numeric", "categorical"}
    assert len(probe) == min(wanted, distinct)
    assert len(
        torch.unique(
            torch.cat([probe.inputs["numeric"], probe.inputs["categorical"]], dim=1), dim=0
        )
    ) == len(probe)


@pytest.mark.req("M4")
def test_rare_classes_take_their_turn() -> None:
    arrays = make_arrays("multiclass", 5000)
    arrays["label"] = np.zeros(5000, np.int64)
    arrays["label"][[4000, 4500]], arrays["label"][4999] = 1, 2
    probe = spread_rows(arrays, 32)
    assert sorted(probe.label[:3].tolist()) == [0, 1, 2]
    assert torch.bincount(probe.label).tolist() == [29, 2, 1]


@pytest.mark.req("M4")
def test_values_are_taken_at_equal_steps_ends_first() -> None:
    arrays = make_arrays("regression", 1000)
    probe = spread_rows(arrays, 5)
    assert set(probe.label[:2].tolist()) == {
        float(arrays["label"].min()),
        float(arrays["label"].max()),
    }
    np.testing.assert_allclose(
        np.sort(probe.label), np.sort(arrays["label"])[[0, 250, 500, 749, 999]]
    )


@pytest.mark.req("M4")
def test_first_rows_are_those_of_the_arrays() -> None:
    arrays = make_arrays("binary", 50)
    probe = first_rows(arrays, 80)
    assert len(probe) == 50
    assert torch.equal(probe.first(7).inputs["numeric"], torch.from_numpy(arrays["numeric"][:7]))
