"""The ladder of the gate: equals do not replace the champion, and claims do not rise with luck."""

from __future__ import annotations

from datetime import timedelta
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError
from schemas.look_records import Look, optimism
from schemas.records import GateReport, Interval
from tests.training.mlflow_home import declaration
from tests.training.test_gate import against, evaluation, judged
from training.registry.gate import judge
from training.registry.ladder import LEVEL, MOST_ERRORS, noise_of

SE = 0.01
HALF = SE * NormalDist().inv_cdf(0.975)


def gained(value: float, looks: int = 2, register: dict[str, Any] | None = None, **known: Any):
    """The gate's report on a gain with a standard error of 0.01."""
    comparison = against(value, value - HALF, value + HALF, looks=looks, **known)
    return judged(comparison, **register or {})


@pytest.mark.req("R2")
def test_a_gain_within_the_noise_is_registered_and_the_champion_stays() -> None:
    for value in (0.0, 0.015, -0.015):
        report = gained(value)
        assert (report.passed, report.replaces) == (True, False)
        assert report.verdict.startswith("kept: auroc") and "version 3 stays" in report.verdict
        assert report.claim is not None and report.claim.value == 0.8
    near = gained(-0.03)
    assert near.passed and not near.replaces and "may be a lucky draw" in near.verdict
    better, worse = gained(0.03), gained(-0.045)
    assert (better.passed, better.replaces) == (True, True)
    assert better.verdict.startswith("passed: auroc") and "unseen by both" in better.verdict
    assert (worse.passed, worse.replaces, worse.claim) == (False, True, None)
    assert worse.verdict.startswith("refused: auroc")


@pytest.mark.req("R2")
def test_more_looks_ask_for_more_and_fresh_rows_for_less() -> None:
    assert gained(0.023, looks=2).replaces and not gained(0.023, looks=14).replaces
    interval = Interval(value=0.023, low=0.023 - HALF, high=0.023 + HALF)
    noises = [noise_of(interval, 0.95, looks) for looks in (1, 2, 14, 365)]
    assert noises == sorted(noises)
    assert noises[0] == pytest.approx(SE * NormalDist().inv_cdf(1 - LEVEL))
    assert noises[-1] == pytest.approx(SE * MOST_ERRORS)
    assert "noise 0.03 at look" not in gained(0.0, looks=1).verdict
    assert "at look 14" in gained(0.0, looks=14).verdict


@pytest.mark.req("R2")
@given(st.floats(-0.2, 0.2), st.integers(1, 10_000), st.floats(0.0005, 0.1))
def test_a_claim_rises_by_the_excess_over_the_noise_alone(
    value: float, looks: int, half: float
) -> None:
    report = judged(against(value, value - half, value + half, looks=looks, claim=0.7))
    noise = noise_of(Interval(value=value, low=value - half, high=value + half), 0.95, looks)
    assert noise is not None
    if report.claim is None:
        assert not report.passed and value < -2 * noise
        return
    assert report.claim.value == pytest.approx(0.7 + max(0.0, value - noise))
    assert report.replaces == (value > noise) == (report.claim.value > 0.7)


@pytest.mark.req("R2")
def test_an_error_is_claimed_downwards() -> None:
    declared = declaration(task={"kind": "regression"}, register={"metric": "rmse"})
    found = against(0.5, 0.4, 0.6, metric="rmse", champion=3.0, challenger=2.5, looks=1)
    scored = evaluation().model_copy(update={"metrics": {"rmse": Interval(value=2.5)}})
    claim = judge(declared, scored, (), found).claim  # type: ignore[arg-type]
    noise = noise_of(Interval(value=0.5, low=0.4, high=0.6), 0.95, 1)
    assert claim is not None and noise is not None
    assert (claim.metric, claim.value) == ("rmse", pytest.approx(3.0 - (0.5 - noise)))


@pytest.mark.req("R2")
def test_a_first_version_claims_its_score_and_how_often_the_rows_were_seen() -> None:
    look = Look(rows_sha256="0" * 64, metric="auroc", number=14)
    report = judged(found=evaluation().model_copy(update={"looks": (look,)}))
    assert report.claim is not None and report.replaces
    assert (report.claim.value, report.claim.looks, report.claim.noise) == (0.8, 14, None)


@pytest.mark.req("R2")
def test_an_equal_one_replaces_a_champion_that_is_stale_or_breaks_a_bound_now() -> None:
    stale = gained(-0.01, stale="version 3 is of 2026-01-01, older than that")
    assert stale.replaces and "older than that" in stale.verdict
    assert stale.claim is not None and stale.claim.value == 0.8  # the claim does not move
    bound = {"thresholds": {"auroc": {"min": 0.79}}}
    held = gained(0.01, champion=0.795, challenger=0.805, register=bound)
    assert held.passed and not held.replaces
    fallen = gained(0.01, champion=0.785, challenger=0.795, register=bound)
    assert fallen.replaces and "breaks register.thresholds.auroc today" in fallen.verdict
    assert not gained(-0.06, stale="old").passed  # worse is worse


@pytest.mark.req("R2")
def test_without_an_interval_nothing_is_known_to_be_better() -> None:
    report = judged(against(0.01))
    assert (report.passed, report.replaces) == (True, False)
    assert "the difference has no interval" in report.verdict
    same = judged(against(0.0, 0.0, 0.0))
    assert same.passed and not same.replaces


@pytest.mark.req("R2")
def test_a_version_that_a_person_named_replaces_an_equal_one_and_claims_no_more() -> None:
    comparison = against(0.01, 0.01 - HALF, 0.01 + HALF, looks=2)
    report = judge(declaration(), evaluation(), (), comparison, by_hand=True)  # type: ignore[arg-type]
    assert report.passed and report.replaces and report.verdict.startswith("passed: ")
    assert report.claim is not None and report.claim.value == 0.8


def test_reports_of_earlier_versions_are_read_and_written_as_before() -> None:
    old = GateReport(passed=True, verdict="passed", conditions=())
    assert old.replaces and old.claim is None
    assert {"replaces", "claim"}.isdisjoint(old.model_dump(mode="json"))
    dumped = declaration(register={}).model_dump(mode="json", by_alias=True)  # type: ignore[attr-defined]
    assert {"replace", "stale_after"}.isdisjoint(dumped["register"])


@pytest.mark.parametrize("age", [30, "soon", -1])
def test_an_age_needs_its_unit(age: Any) -> None:
    with pytest.raises(ConfigError, match="stale_after"):
        declaration(register={"stale_after": age})
    section = declaration(register={"stale_after": "30d"}).register_  # type: ignore[attr-defined]
    assert section.stale_seconds == timedelta(days=30).total_seconds()


def test_the_bound_holds_for_independent_and_for_equal_draws() -> None:
    """The expected maximum of k standard normal draws is below √(2 ln k), and near it for many."""
    draws = np.random.default_rng(0).normal(size=(4000, 100))
    for k in (2, 14, 100):
        found, bound = draws[:, :k].max(1).mean(), optimism(1.0, k)
        assert bound is not None and 0 < found < bound < 1.6 * found + 0.4
    assert optimism(0.01, 1) == 0.0 and optimism(None, 5) is None
