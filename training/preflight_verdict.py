"""How the checks of preflight say what they found."""

from __future__ import annotations

import time

from torch import Tensor, nn

from schemas.records import CheckReport, CheckResult, PreflightReport
from training.models.build import count_parameters

SAME = 1e-4  # largest difference that counts as rounding, relative to the scores


def line(result: CheckResult) -> str:
    """Name, finding and remedy, for an error."""
    return f"{result.name}: {result.summary}" + (f" Remedy: {result.remedy}." if result.remedy else "")


def passed(name: str, summary: str, **figures: float | int | str | None) -> CheckResult:
    """A check that was passed."""
    return CheckResult(name=name, verdict="pass", summary=summary, figures=figures)


def failed(name: str, summary: str, remedy: str, **figures: float | int | str | None) -> CheckResult:
    """A check that stops the run, with what is probably to be done."""
    return CheckResult(name=name, verdict="fail", summary=summary, remedy=remedy, figures=figures)


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Largest difference of scores, relative to their size."""
    return float((a - b).abs().max() / (1 + b.abs().max()))


def summed_up(
    started: float, network: nn.Module, results: list[CheckResult], initial: tuple[float, float | None], losses: tuple[float, ...]
) -> PreflightReport:
    """The report of all checks.

    Args:
        started: `time.monotonic()` before them.
        network: what was checked.
        results: of the checks.
        initial: loss of the untrained network, found and expected.
        losses: of the one-batch overfit, by step.
    """
    total, trainable = count_parameters(network)
    return PreflightReport(
        checks=CheckReport(results=tuple(results)),
        num_parameters=total,
        num_trainable=trainable,
        initial_loss=initial[0],
        expected_loss=initial[1],
        overfit_losses=losses,
        overfit_steps=len(losses),
        seconds=time.monotonic() - started,
    )
