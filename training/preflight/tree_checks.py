"""Preflight checks of `model.kind: boosting`, on a few trees fitted to a sample of train rows.

Trees have no gradients, rates, modes or steps, so nothing of these is tried.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn

from schemas.config import Declaration
from schemas.errors import TrainingError
from schemas.records import CheckResult, PreflightReport, Statistics
from training.boosting.tree_arrays import Ensemble
from training.boosting.tree_inputs import Arrays
from training.boosting.tree_run import fit_ensembles, network_of, require_same_scores
from training.models.build import build_model
from training.models.trees import count_trees
from training.objectives.targets import targets_of
from training.preflight.first_steps import make_trial
from training.preflight.forward import (
    check_extremes,
    check_forward,
    check_independence,
    check_initial_loss,
    first_passes,
    in_company,
)
from training.preflight.overfit import ROWS
from training.preflight.resume import check_export
from training.preflight.subject import Subject, first_rows, spread_rows
from training.preflight.verdict import Check, summed_up

TREES = Check("trees")
STEPS = Check("steps")
SAMPLE_ROWS = 2000  # train rows of the trial fit
ITERATIONS = 5


def inspect_trees(
    declaration: Declaration, statistics: Statistics, train: dict[str, np.ndarray]
) -> PreflightReport:
    """Fit a few trees on the first train rows and check them as what will be exported and served.

    Args:
        declaration: of the run.
        statistics: fitted on train.
        train: arrays of train rows.

    Raises:
        PreflightError: the forward pass fails, or its scores break the contract's shape.
    """
    started = time.monotonic()
    some = {name: array[:SAMPLE_ROWS] for name, array in train.items()}
    ensembles = fit_ensembles(declaration, statistics, some, some, max_iter=ITERATIONS)
    network = network_of(declaration, statistics, ensembles)
    spread = spread_rows(train, ROWS, targets_of(declaration, statistics))
    sample = first_rows(train, SAMPLE_ROWS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(declaration.train.seed)
        subject = Subject(declaration, statistics, network, sample, spread)
        results = first_passes(subject, check_forward)
        # without a tree: the loss of the base rate, which the first tree starts from
        untrained = build_model(declaration, statistics).eval()
        initial, initial_loss, expected = check_initial_loss(
            Subject(declaration, statistics, untrained, sample, spread)
        )
        results += [initial, check_extremes(subject), *in_company(subject, check_independence)]
        results.append(check_trees(network, statistics, ensembles, some))
        results.append(check_export(make_trial(declaration, statistics, train), network))
    results.append(
        STEPS.passed(
            "Not tried, as trees have none of it: gradients, learning rates, overfitting one batch,"
            " train and eval mode, resuming."
        )
    )
    return summed_up(started, network, results, (initial_loss, expected), ())


def check_trees(
    network: nn.Module, statistics: Statistics, ensembles: list[Ensemble], rows: Arrays
) -> CheckResult:
    """Check that the trees as arrays score like scikit-learn's fitted models."""
    try:
        difference = require_same_scores(network, statistics, ensembles, rows)
    except TrainingError as error:
        return TREES.failed(f"{error}.", "install the scikit-learn of constraints.txt")
    return TREES.passed(
        f"{count_trees(network)} trees, fitted on {len(rows['label'])} train rows, score like"
        f" scikit-learn's as arrays (largest difference {difference:.1g}).",
        difference=difference,
    )
