"""Chances equal those of SciPy's distributions, which are not imported on the way to a run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom, binom

from training.data.leakage.chance import binomial_tail, tail_above

COUNTS = st.integers(0, 3000)


@pytest.mark.req("D6")
@given(count=COUNTS, total=COUNTS, null_count=COUNTS, null_total=COUNTS, rate=st.floats(0, 1))
def test_tails_are_those_of_the_distributions(
    count: int, total: int, null_count: int, null_total: int, rate: float
) -> None:
    assert binomial_tail(count, total, rate) == pytest.approx(
        binom.sf(count - 1, total, rate) if count else 1, rel=1e-6, abs=1e-12
    )
    null_count = min(null_count, null_total)
    expected = (
        betabinom.sf(count - 1, total, null_count + 0.5, null_total - null_count + 0.5)
        if count
        else 1
    )
    assert tail_above(count, total, null_count, null_total) == pytest.approx(
        expected, rel=1e-6, abs=1e-9
    )


def test_preparing_loads_neither_scipy_stats_nor_mlflow_nor_torch() -> None:
    asked = (
        "import sys, flows.prepare, flows.audit; print([m for m in ('scipy.stats', 'mlflow',"
        " 'torch', 'sklearn', 'prefect.server') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", asked], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
