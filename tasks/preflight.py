"""Preflight checks of model, loss and data on one batch, before any long run."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, cast

from prefect import State

from schemas.config import Declaration
from schemas.errors import counted
from schemas.load import declare
from schemas.records import PreflightReport, RunSpec
from tasks.say import say
from tasks.store import library_versions, package_fingerprint, stored, stored_task
from training.data.engine.in_memory import available_memory

STEP = "preflight"
LIBRARIES = ("torch", "scikit-learn", "scipy", "pandas")
GPUS = ("nvidia[0-9]*", "kfd")  # devices in /dev, whose free memory only torch can read
MEMORY_SHARE = 0.5  # of the memory that is free now; above it the estimate is made again


@stored_task(
    name="preflight",
    description=(
        "Gradient reaches every parameter, initial loss near theory, no mixing in a batch, one"
        " batch overfitted, each column read, rates, resume, export, cost."
    ),
    tags=["check", "train"],
)
def check_model(spec: RunSpec) -> Any:
    """Return the preflight report; a failed check raises `PreflightError`.

    The report of the same inputs, code, libraries and machine is reused while its estimate of
    memory fits well into what is free. A network of the user's own code is checked each time, as is
    any network where a GPU is present.
    """
    declaration = declare(spec.declaration)

    def check(folder: Path | None = None) -> PreflightReport:
        # torch, which no step before needs
        from training.preflight.run import preflight, require_passed

        report = preflight(spec)
        _say(report)
        require_passed(report)
        return report

    if declaration.model.kind == "custom" or any(
        found for pattern in GPUS for found in Path("/dev").glob(pattern)
    ):
        return check()
    report = stored(STEP, _inputs(spec), PreflightReport, check)
    if isinstance(report, State):
        known = cast(PreflightReport, report.data)
        if not _fits(known, declaration):
            return check()
        _say(known)
    return report


def _inputs(spec: RunSpec) -> dict[str, Any]:
    """Return everything that the checks read, the code that they run, and the machine."""
    return {
        # these two name the run, whose times differ; the data have digests of their own
        "spec": spec.model_dump(mode="json", exclude={"run_id", "prepared_sha256"}),
        "training": package_fingerprint("training"),
        "libraries": library_versions(LIBRARIES),
        "machine": [platform.node(), platform.machine(), os.cpu_count()],
    }


def _fits(report: PreflightReport, declaration: Declaration) -> bool:
    """Return True if the run's memory is a small part of what is free now."""
    ranks = declaration.train.ranks // declaration.train.nodes
    needed = [r.figures.get("bytes_a_rank") for r in report.checks.results if r.name == "cost"]
    most = MEMORY_SHARE * available_memory()
    return all(isinstance(n, int | float) and n * ranks <= most for n in needed)


def _say(report: PreflightReport) -> None:
    """Print the outcome, and every warning in a line of its own."""
    verdicts = [r.verdict for r in report.checks.results]
    start = f"{counted(report.num_parameters, 'parameter')}; initial loss {report.initial_loss:.4g}"
    expected = f" (theory {report.expected_loss:.4g})" if report.expected_loss is not None else ""
    overfit = (
        f"; one batch {report.overfit_losses[0]:.3g} → {report.overfit_losses[-1]:.2g} in"
        f" {counted(report.overfit_steps, 'step')}"
        if report.overfit_losses
        else ""
    )
    say(
        "preflight",
        start + expected + overfit,
        "fail" if report.checks.failed else "warn" if "warn" in verdicts else "done",
    )
    for result in report.checks.results:
        if result.name == "cost" and result.verdict == "pass":
            say("", result.summary, "info")
        if result.verdict == "warn":
            say("", f"{result.name}: {result.summary}", "warn")
