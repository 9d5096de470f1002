"""A temperature is the minimum that scipy finds, is no part of a checkpoint, and divides scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn import metrics as sk

from tests.training.toys import declare, write_run
from training.models.build import Network, build_model
from training.models.temperature import KEY, Temperature, temperature_of
from training.objectives.calibration import COLDEST, HOTTEST, fit_temperature, reliability


def softmax(scores: np.ndarray) -> np.ndarray:
    odds = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(odds / odds.sum(1, keepdims=True))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 5),
    sharp=st.floats(0.3, 4),
    weighted=st.booleans(),
)
def test_the_temperature_minimises_log_loss(
    seed: int, classes: int, sharp: float, weighted: bool
) -> None:
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(300, classes))
    y = np.array([rng.choice(classes, p=row) for row in softmax(true)])
    w = rng.uniform(0.1, 2, 300) if weighted else None
    scores = true * sharp

    def loss(log: float) -> float:
        p = softmax(scores / np.exp(log))
        return float(np.average(-np.log(p[np.arange(300), y]), weights=w))

    best = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    found = fit_temperature(scores, y, w)
    assert loss(np.log(found)) <= best.fun + 1e-9
    if classes == 2:
        odds = scores[:, 1:] - scores[:, :1]
        assert fit_temperature(odds, y, w) == pytest.approx(found, rel=1e-6)


def test_rows_that_ask_for_no_or_any_temperature_get_a_bound() -> None:
    y = np.array([0, 1])
    assert fit_temperature(np.array([[-1.0], [1.0]]), y) == pytest.approx(COLDEST)
    assert fit_temperature(np.array([[1.0], [-1.0]]), y) == HOTTEST
    assert fit_temperature(np.zeros((2, 1)), y) == 1.0


def test_reliability_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(1000)
    y = (rng.random(1000) < p**2).astype(np.int64)
    found = reliability("binary", np.stack([1 - p, p], axis=1), y)
    seen, said = sk_curve(y, p)
    np.testing.assert_allclose(found.seen, seen)
    np.testing.assert_allclose(found.said, said)
    assert found.ece == pytest.approx(float(np.abs(seen - said).mean()))
    assert found.log_loss == pytest.approx(sk.log_loss(y, p))
    twice = reliability(
        "binary",
        np.stack([1 - p, p], axis=1)[np.repeat(np.arange(1000), 2)],
        y[np.repeat(np.arange(1000), 2)],
        np.full(2000, 0.5),
    )
    assert twice.ece == pytest.approx(found.ece) and twice.log_loss == pytest.approx(found.log_loss)


def sk_curve(y: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.calibration import calibration_curve

    seen, said = calibration_curve(y, p, n_bins=10, strategy="quantile")
    return np.asarray(seen), np.asarray(said)


def test_each_label_has_its_own_temperature() -> None:
    module = Temperature([0, 1, 1, 1, 2])
    with torch.no_grad():
        module.value.copy_(torch.tensor([2.0, 4.0, 1.0]))
    assert module(torch.ones(2, 5)).tolist() == [[0.5, 0.25, 0.25, 0.25, 1.0]] * 2
    assert module.double()(torch.ones(2, 5, dtype=torch.float64)).dtype == torch.float64


def test_it_is_neither_trained_nor_kept_in_a_checkpoint_and_changes_no_bit(tmp_path) -> None:
    plain, with_it = (
        declare("multiclass", {"kind": "mlp", "hidden": [8]}, evaluate=section)
        for section in ({}, {"calibrate": "temperature"})
    )
    run = write_run(tmp_path, plain)
    networks = [build_model(d, run.statistics) for d in (plain, with_it)]
    states = [network.state_dict() for network in networks]
    assert list(states[0]) == list(states[1])
    assert [n for n, _ in networks[0].named_parameters()] == [
        n for n, _ in networks[1].named_parameters()
    ]
    assert temperature_of(networks[0]) is None and temperature_of(networks[1]) is not None
    batch = {
        "numeric": torch.randn(7, run.statistics.num_numeric),
        **(
            {"categorical": torch.zeros(7, len(run.statistics.categorical), dtype=torch.int64)}
            if run.statistics.categorical
            else {}
        ),
    }
    before, after = (network.eval()(batch) for network in networks)
    assert torch.equal(before, after)
    assert isinstance(networks[1], Network)
    networks[1].load_state_dict(states[1] | {KEY: torch.tensor([2.5])})
    assert torch.equal(networks[1](batch), before / 2.5)
    networks[1].load_state_dict(states[1])
    assert torch.equal(networks[1](batch), before / 2.5)  # a checkpoint says nothing of it
    with pytest.raises(RuntimeError, match="expected 1 temperatures above 0"):
        networks[1].load_state_dict(states[1] | {KEY: torch.tensor([0.0])})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        networks[0].load_state_dict(states[0] | {KEY: torch.tensor([2.5])})
