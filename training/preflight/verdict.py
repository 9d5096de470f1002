"""How the checks of preflight say what they found."""

from __future__ import annotations

import time

from torch import Tensor, nn

from schemas.records import CheckReport, CheckResult, PreflightReport, Verdict
from training.models.build import count_parameters

LOSS_WARN, LOSS_FAIL = 1.25, 2.0  # initial loss as a multiple of theory
# a network may be as much better than a constant by chance: a third of the labels' variance, at the
# first weights
LOSS_LUCK = 1.6
LOSS_SLACK = 1e-6  # for a theory of 0
Figure = float | int | str | None
SAME = 1e-4  # largest difference that counts as rounding, relative to the scores


def line(result: CheckResult) -> str:
    """Name, finding and remedy, for an error."""
    return f"{result.name}: {result.summary}" + (
        f" Remedy: {result.remedy}." if result.remedy else ""
    )


class Check:
    """A check, and what may come of it.

    Args:
        name: of its results.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def passed(self, summary: str, **figures: Figure) -> CheckResult:
        """Nothing is wrong."""
        return CheckResult(name=self.name, verdict="pass", summary=summary, figures=figures)

    def warned(self, summary: str, remedy: str, **figures: Figure) -> CheckResult:
        """Something that a run may have on purpose, or can live with."""
        return self._found("warn", summary, remedy, figures)

    def failed(self, summary: str, remedy: str, **figures: Figure) -> CheckResult:
        """Something that stops the run, with what is probably to be done."""
        return self._found("fail", summary, remedy, figures)

    def _found(
        self, verdict: Verdict, summary: str, remedy: str, figures: dict[str, Figure]
    ) -> CheckResult:
        return CheckResult(
            name=self.name, verdict=verdict, summary=summary, remedy=remedy, figures=figures
        )


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Largest difference of scores, relative to their size."""
    return float((a - b).abs().max() / (1 + b.abs().max()))


INITIAL_LOSS = Check("initial_loss")


def judged_loss(
    found: float,
    theory: str,
    bounds: dict[str, float],
    high: tuple[str, str],
    low: tuple[str, str],
    noise: tuple[float, float] = (0.0, 0.0),
) -> CheckResult:
    """Whether the loss before training lies between its theoretical values, or near them.

    Args:
        found: the loss.
        theory: its theoretical values in words.
        bounds: the same by name.
        high: cause and remedy where it is above them.
        low: cause and remedy where it is below.
        noise: the loss of normal numbers as scores, that are as loud as a network may begin: below
            the first nothing is warned of, below the second none is stopped.
    """
    least, most = min(bounds.values()), max(bounds.values())
    known = f"The initial loss is {found:.4g}; theory: {theory}"
    if least / LOSS_LUCK <= found <= max(most * LOSS_WARN + LOSS_SLACK, noise[0]):
        return INITIAL_LOSS.passed(f"{known}.", initial_loss=found, **bounds)
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
