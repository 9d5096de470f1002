"""A warm run reuses the poison and preflight reports: evidence and report are those of a run that
made them, and a changed row makes them again.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.faults.test_stop_command import Command, clinic

__all__ = ["clinic"]  # a fixture
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
RUN = ["run", "tests/clinic_visits.yaml", "train.epochs=2", "register.enabled=false"]
TIMED = "cost"  # the check that measures seconds


def finished(folder: Path, table: Path) -> tuple[str, Path]:
    """Run to the end; return the output and the run directory."""
    before = set(folder.glob("home/runs/*/*"))
    command = Command(folder, table, *RUN)
    assert command.process.wait(600) in (0, 1), command.output()[-3000:]
    (run_dir,) = set(folder.glob("home/runs/*/*")) - before
    return command.output(), run_dir


def evidence(run_dir: Path) -> dict[str, Any]:
    """Return checks, digests and figures of a run, without what was measured in seconds."""
    found = json.loads((run_dir / "evidence.json").read_text())
    text = json.dumps([c for c in found["checks"] if c["name"] != TIMED])
    return {
        "checks": re.sub(r'"seconds": [\d.e-]+', "", text),
        "weights": found["model_sha256"],
        "metrics": found["metrics"],
    }


def headings(run_dir: Path) -> list[str]:
    return re.findall(r"<h[1-4][^>]*>.*?</h[1-4]>", (run_dir / "report.html").read_text(), re.S)


def test_a_reused_report_changes_neither_evidence_nor_page_and_a_changed_row_makes_it_again(
    tmp_path: Path, clinic: Path
) -> None:
    finished(tmp_path, clinic)
    output, warm = finished(tmp_path, clinic)
    for step in ("poison", "preflight"):
        assert re.search(rf"↺ {step} +reused", output) and re.search(rf"[✓!] {step} ", output)
        for stored in (tmp_path / "home" / "prepared").glob(f"{step}-*"):
            shutil.rmtree(stored)
    output, cold = finished(tmp_path, clinic)
    assert not re.search(r"↺ (poison|preflight) ", output) and "↺ split" in output
    assert evidence(warm) == evidence(cold) and headings(warm) == headings(cold)
    changed = pd.read_parquet(clinic)
    changed.loc[0, "age"] += 1
    changed.to_parquet(tmp_path / "changed.parquet")
    output, _ = finished(tmp_path, tmp_path / "changed.parquet")
    assert "↺" not in output
