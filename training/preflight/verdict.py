"""Results and report of the preflight checks."""

from __future__ import annotations

import time

from torch import Tensor, nn

from schemas.records import CheckReport, CheckResult, PreflightReport, Verdict
from training.models.build import count_parameters

LOSS_WARN, LOSS_FAIL = 1.25, 2.0  # initial loss as a multiple of theory
# a new network may beat a constant by chance, by a third of the labels' variance
LOSS_LUCK = 1.6
LOSS_SLACK = 1e-6  # for a theory of 0
Figure = float | int | str | None
SAME = 1e-4  # largest rounding difference, relative to the scores


def line(result: CheckResult) -> str:
    """Return name, finding and remedy as one line for an error."""
    return f"{result.name}: {result.summary}" + (
        f" Remedy: {result.remedy}." if result.remedy else ""
    )


class Check:
    """A check that makes its results.

    Args:
        name: name of its results.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def passed(self, summary: str, **figures: Figure) -> CheckResult:
        """Return a result without a fault."""
        return CheckResult(name=self.name, verdict="pass", summary=summary, figures=figures)

    def warned(self, summary: str, remedy: str, **figures: Figure) -> CheckResult:
        """Return a warning that a run may ignore or have on purpose."""
        return self._found("warn", summary, remedy, figures)

    def failed(self, summary: str, remedy: str, **figures: Figure) -> CheckResult:
        """Return a failure that stops the run, with a probable remedy."""
        return self._found("fail", summary, remedy, figures)

    def _found(
        self, verdict: Verdict, summary: str, remedy: str, figures: dict[str, Figure]
    ) -> CheckResult:
        return CheckResult(
            name=self.name, verdict=verdict, summary=summary, remedy=remedy, figures=figures
        )


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of scores, relative to their size."""
    return float((a - b).abs().max() / (1 + b.abs().max()))


INITIAL_LOSS = Check("initial_loss")


def judged_loss(
    found: float,
    theory: str,
    bounds: dict[str, float],
    high: tuple[str, str],
    low: tuple[str, str],
    noise: tuple[float, float] = (0.0, 0.0),
    is_loaded: bool = False,
) -> CheckResult:
    """Check that the initial loss lies between or near its theoretical values.

    Args:
        found: initial loss.
        theory: theoretical values as a text.
        bounds: theoretical values by name.
        high: cause and remedy if the loss is above them.
        low: cause and remedy if it is below.
        noise: losses of normal random scores of two sizes: there is no warning below the first and
            no failure below the second.
        is_loaded: the weights are those of `model.init`: they may be better than theory, and data
            that are unlike their own are no fault of the network.
    """
    least, most = min(bounds.values()), max(bounds.values())
    known = f"The initial loss is {found:.4g}; theory: {theory}"
    if least / LOSS_LUCK <= found <= max(most * LOSS_WARN + LOSS_SLACK, noise[0]):
        return INITIAL_LOSS.passed(f"{known}.", initial_loss=found, **bounds)
    if is_loaded and found < least:
        told = f"{known}: the weights of model.init know these data."
        return INITIAL_LOSS.passed(told, initial_loss=found, **bounds)
    if is_loaded:
        told = f"{known}: the weights of model.init do not fit these labels or inputs."
        remedy = "list the last layer under model.init.new, so that it begins at the base rate"
        return INITIAL_LOSS.warned(told, remedy, initial_loss=found, **bounds)
    cause, remedy = high if found > most else low
    stops = found > max(most * LOSS_FAIL, noise[1]) or found < least / LOSS_FAIL
    judge = INITIAL_LOSS.failed if stops else INITIAL_LOSS.warned
    return judge(f"{known}: {cause}.", remedy, initial_loss=found, **bounds)


def summed_up(
    started: float,
    network: nn.Module,
    results: list[CheckResult],
    initial: tuple[float, float | None],
    losses: tuple[float, ...],
) -> PreflightReport:
    """Return the report of all checks.

    Args:
        started: `time.monotonic()` before them.
        network: checked network.
        results: results of the checks.
        initial: found and expected loss of the untrained network.
        losses: losses of the one-batch overfit, by step.
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
