"""The refusals of a fit come before the leak checks, which take most of the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.e2e.test_pipeline import bulkhead

pytestmark = [pytest.mark.req("D6"), pytest.mark.timeout(300)]


@pytest.mark.long
@pytest.mark.parametrize("odd", ["", "constant"])
def test_a_constant_feature_is_refused_before_the_leak_checks(tmp_path: Path, odd: str) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": range(400),
            "a": rng.normal(size=400),
            "b": rng.normal(size=400),
            "y": rng.integers(0, 2, 400),
        }
    )
    (frame.assign(b=1.0) if odd else frame).to_csv(tmp_path / "t.csv", index=False)
    text = (
        'name: cheap\ndata: {uri: t.csv, columns: {id: id, "y": label, "*": feature}}\ntask: {kind:'
        " binary}\nsplit: {kind: random}\n"
    )
    (tmp_path / "t.yaml").write_text(text)
    found = bulkhead(
        tmp_path / "home", "prepare", str(tmp_path / "t.yaml"), code=1 if odd else 0
    ).stderr
    assert ("1 feature says nothing" in found) == bool(odd) and ("leakage" in found) == (not odd)
    assert "disjoint" in found
