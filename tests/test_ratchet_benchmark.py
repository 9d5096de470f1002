"""The benchmark of claims: a year through the gate itself, the limits it holds, and its page."""

from __future__ import annotations

import pytest

from benchmarks.ratchet import Setting, World, Year, broken, figures, page, simulate

SHORT = Setting("regression", 80, 1, resamples=20, nights=6)


@pytest.mark.parametrize("grows", [0, 5])
def test_a_year_goes_through_the_gate(grows: int) -> None:
    setting = Setting(**{**SHORT.__dict__, "grows": grows})
    year = simulate(setting, 0, error=0.1, share=0.9)
    assert year.promotions <= 1 and year.refused <= 1 and year.luck > 0
    assert len(year.won) == 2 and all(0 <= night <= 10 for night in year.won)
    assert year == simulate(setting, 0, error=0.1, share=0.9)


def test_models_differ_by_their_own_errors_alone() -> None:
    world = World(SHORT, 4000, 0)
    first, second, better = world.model(), world.model(), world.model(better=0.5)
    errors = [((found - world.known) ** 2).mean() for found in (first, second, better)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05) and errors[2] < 0.5 * errors[0]
    assert ((first - second) ** 2).mean() == pytest.approx(2 * SHORT.own**2, rel=0.1)


def test_a_ratchet_breaks_the_limits_and_a_ladder_does_not() -> None:
    honest = [Year(claim=0.1, score=0.2, promotions=0, luck=0.3, won=[1, 4])]
    assert broken(SHORT, figures(SHORT, honest)) == []
    ratchet = [Year(claim=0.9, score=0.9, promotions=1, luck=0.3, won=[1, 0])]
    found = broken(SHORT, figures(SHORT, ratchet))
    assert [line.split(": ")[1] for line in found] == [
        "the claim rises",
        "equal models are promoted",
        "a better model waits",
    ]
    text = page({SHORT: ratchet}, 60.0)
    assert "| rmse | 80 | better | 1 | 0.30 | +0.900 |" in text and "1.0 minutes" in text
