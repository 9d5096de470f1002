"""Reuse the preflight report of the same inputs, code and machine; never store a failed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect.states import State

import training.preflight.run
from schemas.errors import PreflightError
from schemas.home import home
from schemas.records import CheckReport, CheckResult, PreflightReport, RunSpec
from tasks import preflight
from tasks.store import step_key
from tests.training.runs import make_run


@pytest.fixture(autouse=True)
def _home(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store results in the test's own home, on a machine without a GPU."""
    monkeypatch.setattr(preflight, "GPUS", ())


def run_of(folder: Path, **sections: Any) -> RunSpec:
    return make_run(folder, **{"model": {"kind": "linear"}} | sections)


def is_reused(spec: RunSpec) -> bool:
    return isinstance(preflight.check_model.task.fn(spec), State)


def test_the_same_inputs_reuse_the_report_and_each_other_input_checks_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_of(tmp_path / "a")
    made = preflight.check_model.task.fn(spec)
    said = capsys.readouterr().err
    other_run = spec.model_copy(update={"run_id": "another", "prepared_sha256": "1" * 64})
    again = preflight.check_model.task.fn(other_run)
    assert isinstance(again, State) and again.data.model_dump_json() == made.model_dump_json()
    assert said and capsys.readouterr().err.endswith(said), "its lines are printed again"
    key = step_key(preflight.STEP, preflight._inputs(spec))

    def is_another(other: RunSpec, why: str) -> None:
        assert step_key(preflight.STEP, preflight._inputs(other)) != key, why

    is_another(run_of(tmp_path / "b", rows=(101, 40)), "other arrays")
    is_another(run_of(tmp_path / "a", train={"seed": 3}), "another seed")
    is_another(run_of(tmp_path / "a", model={"kind": "mlp"}), "another network")
    changed = {
        "package_fingerprint": lambda _: "code",
        "library_versions": lambda _: "torch=0",
    }
    for name, value in changed.items():
        with monkeypatch.context() as patch:
            patch.setattr(preflight, name, value)
            is_another(spec, name)
    with monkeypatch.context() as patch:
        patch.setattr(preflight.platform, "node", lambda: "another machine")
        is_another(spec, "machine")
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "available_memory", lambda: 0.0)
        assert not is_reused(spec), "little memory is free"
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "GPUS", ("null",))
        assert not is_reused(spec), "a GPU's free memory is not known"
    assert is_reused(spec)


def test_a_failed_report_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = CheckResult(name="rates", verdict="fail", summary="diverges", remedy="lower it")
    report = PreflightReport(
        checks=CheckReport(results=(failed,)),
        num_parameters=1,
        num_trainable=1,
        initial_loss=1.0,
        expected_loss=None,
    )
    monkeypatch.setattr(training.preflight.run, "preflight", lambda _: report)
    spec = run_of(tmp_path)
    for _ in range(2):
        with pytest.raises(PreflightError, match="diverges"):
            preflight.check_model.task.fn(spec)
    assert not list((home() / "prepared").glob("preflight-*"))
