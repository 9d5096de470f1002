"""Preflight of a run: find in seconds, on a few train rows, what would fail after hours.

Every check reports its finding and, on failure, the probable cause and its place. The network is a
copy with its initial weights, on the CPU. Nothing changes, not even the global random state.
"""

from __future__ import annotations

import copy
import time

import numpy as np
import torch
from torch import nn

from schemas.config import Declaration
from schemas.errors import PreflightError
from schemas.load import declare
from schemas.model_config import BoostingModel
from schemas.records import CheckReport, CheckResult, PreflightReport, RunSpec, Statistics
from training.data.arrays.shards import load_arrays
from training.data.leakage.verdict import judged
from training.distributed.layout import require_layout
from training.engine.augment import Augment
from training.engine.batches import as_tensors
from training.models.initial import initial_network
from training.objectives.targets import targets_of
from training.preflight.first_steps import check_cost, first_steps, make_trial
from training.preflight.forward import (
    COMPANY_ROWS,
    check_extremes,
    check_forward,
    check_independence,
    check_initial_loss,
    first_passes,
    in_company,
)
from training.preflight.gradient_checks import GRADIENT_STEPS, check_gradients, check_parameters
from training.preflight.inputs import check_inputs
from training.preflight.label_checks import check_labels, check_vocabulary
from training.preflight.language import inspect_tokens
from training.preflight.layers import check_layers, check_masks
from training.preflight.modes import check_modes
from training.preflight.overfit import ROWS, overfit
from training.preflight.settings import check_optimizer, check_smoothing
from training.preflight.subject import Probe, Subject, first_rows, spread_rows
from training.preflight.tree_checks import inspect_trees
from training.preflight.verdict import line, summed_up
from training.review.own_module import review_own_module

SAMPLE_ROWS, SAMPLE_OF_LARGE = 256, 128  # rows for the initial loss
# weights: such a network learns sixteen rows as reliably as thirty-two, in half the time
LARGE, ROWS_OF_LARGE = 2**18, 16


def preflight(run: RunSpec) -> PreflightReport:
    """Run all checks of a run's model, loss and labels. The report contains failed checks, which do
    not stop the others.

    Raises:
        ConfigError: the model cannot be built.
        PreflightError: labels are not valid, or the forward pass fails.
    """
    started, declaration = time.monotonic(), declare(run.declaration)
    reviewed = review_own_module(declaration)  # before anything imports it
    texts = declaration.task.kind == "causal_lm"
    if texts:
        targets = check_vocabulary(run)
    else:
        targets = check_labels(declaration, run.statistics, run.arrays)
    if targets.verdict == "fail":
        raise PreflightError(line(targets))
    train = load_arrays(run.arrays.train)
    if isinstance(declaration.model, BoostingModel):
        return _of_trees(run, declaration, train, targets, started)
    network = initial_network(declaration, run.statistics, run.init)
    require_layout(network, declaration.train)
    Augment(declaration.train.augment, 0, as_tensors(train))
    optimizer = check_optimizer(declaration, network, run.arrays.train.rows)
    large = sum(p.numel() for p in network.parameters()) > LARGE
    trial = make_trial(declaration, run.statistics, train, large, run.init)
    if texts:
        report = inspect_tokens(declaration, run.statistics, network, train)
    else:
        rows, first = (ROWS_OF_LARGE, SAMPLE_OF_LARGE) if large else (ROWS, SAMPLE_ROWS)
        spread = spread_rows(train, rows, targets_of(declaration, run.statistics))
        sample = first_rows(train, first)
        report = inspect(declaration, run.statistics, network, sample, spread)
    smoothing = check_smoothing(declaration, run.statistics)
    found = (targets, *reviewed, *report.checks.results, optimizer, *smoothing)
    results = [judged(r, declaration) for r in found]
    # otherwise the first steps would only fail for the same reason
    if not any(r.verdict == "fail" for r in results):
        results += [judged(check(), declaration) for check in first_steps(trial).values()]
        results.append(judged(check_cost(trial), declaration))
    checks, seconds = CheckReport(results=tuple(results)), time.monotonic() - started
    return report.model_copy(update={"checks": checks, "seconds": seconds})


def _of_trees(
    run: RunSpec,
    declaration: Declaration,
    train: dict[str, np.ndarray],
    targets: CheckResult,
    started: float,
) -> PreflightReport:
    """Return the checks of trees, next to that of the labels."""
    report = inspect_trees(declaration, run.statistics, train)
    found = (targets, *report.checks.results)
    checks = CheckReport(results=tuple(judged(r, declaration) for r in found))
    return report.model_copy(update={"checks": checks, "seconds": time.monotonic() - started})


def require_passed(report: PreflightReport) -> None:
    """Raise if a report has a failed check.

    Raises:
        PreflightError: one line per failed check, with finding and remedy.
    """
    if report.checks.failed:
        found = "\n  ".join(line(r) for r in report.checks.failed)
        name = report.checks.failed[0].name
        raise PreflightError(
            f"preflight failed, nothing was trained:\n  {found}\nA finding that is meant so:"
            f" checks.allow=[{{check: {name}, reason: …}}]"
        )


def inspect(
    declaration: Declaration,
    statistics: Statistics,
    network: nn.Module,
    sample: Probe,
    spread: Probe,
) -> PreflightReport:
    """Run all checks of a network on random rows (`sample`) and on pairwise different rows
    (`spread`).

    Raises:
        PreflightError: the forward pass fails, or its scores break the contract's shape.
    """
    started = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(declaration.train.seed)
        subject = Subject(declaration, statistics, network, sample, spread)
        shape, loss, few = subject.shape, subject.loss, spread.first(COMPANY_ROWS).inputs
        results = first_passes(subject, check_forward)
        initial, initial_loss, expected = check_initial_loss(subject)
        gradients, student = check_gradients(subject)
        parameters, extremes = check_parameters(network, loss, spread), check_extremes(subject)
        modes = check_modes(network, few, declaration.train, statistics.rows)
        results += [parameters, extremes, gradients, initial, modes]
        results += check_masks(copy.deepcopy(network), few)
        company = in_company(subject, check_independence)
        results += company
        losses: tuple[float, ...] = ()
        if gradients.verdict == "pass":  # without gradients it would only fail for the same reason
            whole = subject.thawed()
            learned, losses = overfit(whole, declaration, statistics, shape, spread)
            results += [learned, check_layers(student, GRADIENT_STEPS, spread.inputs)]
            # this check uses codes and values that no row has
            if all(r.verdict == "pass" for r in (extremes, *company)):
                results.append(check_inputs(whole, statistics, shape, loss, spread, sample))
    return summed_up(started, network, results, (initial_loss, expected), losses)
