"""Notes on vanishing and exploding gradients: planted ones are found, healthy ones are not."""

from __future__ import annotations

import random

import pytest

from training.engine.health import GradientHealth, layer_norms


@pytest.mark.req("T5")
def test_a_layer_is_the_module_that_owns_parameters() -> None:
    assert layer_norms({"a.b.weight": 3.0, "a.b.bias": 4.0, "a.weight": 1.0, "free": 2.0}) == {
        "a.b": 5.0,
        "a": 1.0,
        "free": 2.0,
    }


@pytest.mark.req("T5")
def test_a_vanishing_layer_is_noted_once_after_three_logged_steps() -> None:
    health = GradientHealth()
    layers = {"first": 1e-9, "middle": 1.0, "last": 1.2}
    notes = [health.observe(step, layers, 1.5) for step in range(6)]
    assert [len(n) for n in notes] == [0, 0, 1, 0, 0, 0]
    assert "vanishing gradient in first" in notes[2][0] and "1e-09" in notes[2][0]


@pytest.mark.req("T5")
def test_a_zero_gradient_that_comes_back_is_not_noted() -> None:
    health = GradientHealth()
    for step in range(8):
        assert (
            health.observe(
                step, {"first": 0.0 if step % 3 else 0.5, "last": 1.0, "other": 0.9}, 1.0
            )
            == []
        )


@pytest.mark.req("T5")
def test_an_exploding_gradient_is_noted_with_its_layer() -> None:
    health = GradientHealth()
    for step in range(5):
        assert health.observe(step, {"first": 0.5, "last": 1.0}, 1.1) == []
    (note,) = health.observe(5, {"first": 400.0, "last": 1.0}, 400.0)
    assert "exploding gradient" in note and "largest in first" in note
    assert health.observe(6, {"first": 900.0, "last": 1.0}, 900.0) == [], "once is enough"


@pytest.mark.req("T5")
def test_ordinary_noise_is_not_noted() -> None:
    health, noise = GradientHealth(), random.Random(0)
    for step in range(300):
        layers = {name: noise.lognormvariate(0, 1) for name in ("a", "b", "c", "d")}
        assert health.observe(step, layers, sum(layers.values())) == []
