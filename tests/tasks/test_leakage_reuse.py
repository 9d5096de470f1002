"""P5: reuse the leakage report of the same splits with its warnings; never store a failed one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from prefect.states import State

from schemas.errors import LeakageError
from schemas.home import home
from tasks.split import leakage_checks
from tests.training.data.chain import declared, split_of, write_table

ROWS = 600


@pytest.fixture(autouse=True)
def _home(own_home: Path) -> None:
    """Store results in the test's own home."""


def sides(folder: Path, **sections: object) -> tuple[object, ...]:
    """Return correct rows and a copy of the label: split, validated table and declaration."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, ROWS))
    label = (x + noise > 0).astype(int)
    table = write_table(
        folder / "t.parquet",
        {"id": np.arange(ROWS), "x": x, "copy": label.astype(float), "y": label},
    )
    declaration = declared(table, **sections)
    validated, split = split_of(declaration, folder)
    return split, validated, declaration


@pytest.mark.req("P5")
def test_a_report_that_passed_is_reused_and_its_warnings_are_said_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = {
        "allow": [
            {"check": check, "reason": "known at the time of prediction"}
            for check in ("label_proxy", "pure_value", "label_missingness")
        ]
    }
    given = sides(tmp_path, checks=allowed)
    made = leakage_checks.task.fn(*given)
    said = [line for line in capsys.readouterr().err.splitlines() if "allowed:" in line]
    assert said and any(r.verdict == "allowed" for r in made.results)
    again = leakage_checks.task.fn(*given)
    assert isinstance(again, State) and again.data == made
    assert [line for line in capsys.readouterr().err.splitlines() if "allowed:" in line] == said
    other = leakage_checks.task.fn(*sides(tmp_path, checks=allowed | {"max_duplicate_share": 0.5}))
    assert not isinstance(other, State)


@pytest.mark.req("P5")
def test_a_report_that_failed_is_not_kept(tmp_path: Path) -> None:
    given = sides(tmp_path)
    for _ in range(2):
        with pytest.raises(LeakageError, match="copy"):
            leakage_checks.task.fn(*given)
    assert not list((home() / "prepared").iterdir())
