"""P5: reuse the poison report of the same rows, declaration and code; never store a failed one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from prefect.states import State

import training.preflight.poisoned_fit
from schemas.errors import LeakageError
from schemas.home import home
from schemas.records import CheckResult
from tasks import poison
from tests.training.data.chain import declared, split_of, write_table

ROWS = 300


@pytest.fixture(autouse=True)
def _home(own_home: Path) -> None:
    """Store results in the test's own home."""


def sides(folder: Path, rows: int = ROWS, **sections: object) -> tuple[object, ...]:
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, rows))
    columns = {"id": np.arange(rows), "x": x, "y": (x + noise > 0).astype(int)}
    table = write_table(folder / "t.parquet", columns)
    declaration = declared(table, model={"kind": "linear"}, **sections)
    validated, split = split_of(declaration, folder)
    return split, validated, declaration


def is_reused(*given: object) -> bool:
    return isinstance(poison.poison_test.task.fn(*given), State)


@pytest.mark.req("P5")
def test_the_same_inputs_reuse_the_report_and_each_other_input_tests_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = sides(tmp_path / "a")
    made = poison.poison_test.task.fn(*given)
    said = capsys.readouterr().err.splitlines()[-1]
    again = poison.poison_test.task.fn(*given)
    assert isinstance(again, State) and again.data == made
    assert capsys.readouterr().err.splitlines()[-1] == said, "its line is printed again"
    assert not is_reused(*sides(tmp_path / "b", rows=ROWS + 1)), "other rows"
    assert not is_reused(*sides(tmp_path / "a", train={"seed": 3})), "another seed"
    for name, value in (("package_fingerprint", "code"), ("library_versions", "torch=0")):
        with monkeypatch.context() as patch:
            patch.setattr(poison, name, lambda _, value=value: value)
            assert not is_reused(*given), name
    assert is_reused(*given)


@pytest.mark.req("P5")
def test_a_failed_report_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = CheckResult(
        name="poison", verdict="fail", summary="means differ", remedy="fit on train alone"
    )
    monkeypatch.setattr(training.preflight.poisoned_fit, "poison_check", lambda *_: failed)
    given = sides(tmp_path)
    for _ in range(2):
        with pytest.raises(LeakageError, match="means differ"):
            poison.poison_test.task.fn(*given)
    assert not list((home() / "prepared").glob("poison-*"))
