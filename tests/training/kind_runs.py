"""What a run over every kind of column has to keep: the same bits through stops, and preflight."""

from __future__ import annotations

from pathlib import Path

from schemas.records import RunSpec
from tests.distributed.layout_work import run_one
from tests.training.runs import keep_torch_settings
from training.distributed.parallel import Parallel
from training.preflight.run import preflight, require_passed


def require_exact_resume(folder: Path, stops: tuple[int, int] = (3, 12)) -> None:
    """A run of `resolved.json` that is stopped twice ends in the bits of one that is not."""
    config, parallel = folder / "resolved.json", Parallel()
    with keep_torch_settings():
        whole = run_one(parallel, config, folder / "whole", [None])
        parts = run_one(parallel, config, folder / "parts", [*stops, None])
    assert parts["report"]["status"] == "finished" and parts["state"] == whole["state"]


def require_preflight(run: RunSpec) -> None:
    """No check of preflight fails."""
    with keep_torch_settings():
        report = preflight(run)
    require_passed(report)
    assert not [r.summary for r in report.checks.results if r.verdict == "fail"]
