"""Preflight checks of model, loss and data on one batch, before any long run."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.errors import counted
from schemas.records import PreflightReport, RunSpec
from tasks.say import say
from training.preflight.run import preflight, require_passed


@task(
    name="preflight",
    description=(
        "Gradient reaches every parameter, initial loss near theory, no mixing in a batch, one"
        " batch overfitted, each column read, rates, resume, export, cost."
    ),
    tags=["check", "train"],
    cache_policy=NO_CACHE,
)
def check_model(spec: RunSpec) -> PreflightReport:
    """Return the preflight report; a failed check raises `PreflightError`."""
    report = preflight(spec)
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
    require_passed(report)
    return report
