"""Poison test of the run: refit statistics, train arrays and a few steps with corrupted held-out
rows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.errors import DataError
from schemas.members import first_network_number, members_of
from schemas.model_config import BoostingModel
from schemas.records import ArraysRef, CheckResult, SplitTables, Statistics, ValidatedTable
from schemas.scratch import scratch_folder
from training.boosting.tree_run import fit_ensembles, network_of
from training.data.arrays.shards import load_arrays, materialise
from training.data.fit.normalize import fit
from training.data.leakage.poison import Corrupt, find_poisoned, judge_poison
from training.data.leakage.verdict import judged
from training.data.split.split import sampled
from training.models.build import build_model
from training.objectives.losses import make_loss
from training.preflight.subject import first_rows, mean_loss, without_dropout

SAMPLE_ROWS = 2_000  # rows per split; more if so few rows cannot be fitted on
BATCH_ROWS, STEPS, LR = 32, 3, 1e-3


def poison_check(
    split: SplitTables, validated: ValidatedTable, declaration: Declaration
) -> CheckResult:
    """Check that corrupted held-out rows of a sample change nothing that the run fits.

    Args:
        split: tables of the splits.
        validated: table with the meaning of the columns.
        declaration: declaration of the run.
    """
    dropping = declaration.model_copy(
        update={"checks": declaration.checks.model_copy(update={"constant_features": "drop"})}
    )  # a column of a sample may be constant
    rows = SAMPLE_ROWS
    while True:
        try:
            found = find_poisoned(
                lambda corrupt, rows=rows: _fitted(  # type: ignore[misc]
                    dropping, split, validated, rows, corrupt
                ),
                validated.spec,
            )
            return judged(judge_poison(found), declaration)
        except DataError:  # so few rows may lack a class or value
            if rows >= max(split.train.rows, split.val.rows, split.test.rows):
                raise
            rows *= 8


def _fitted(
    declaration: Declaration,
    split: SplitTables,
    validated: ValidatedTable,
    rows: int,
    corrupt: Corrupt,
) -> dict[str, Any]:
    """Return all artifacts fitted on a sample: statistics, train arrays and weights."""
    with scratch_folder(Path(tempfile.gettempdir()), "bulkhead-poison") as folder:
        sides = sampled(split, validated.spec, rows, folder / "sides", corrupt)
        statistics = fit(sides.train, validated.spec, declaration)
        arrays = materialise(sides, validated, statistics, declaration, folder / "arrays")
        return {
            "statistics": statistics,
            "arrays": {name: ref.sha256 for name, ref in arrays.train.arrays.items()},
            "windows": {name: ref.sha256 for name, ref in arrays.train.windows.items()},
            "weights": _trained(declaration, statistics, arrays),
        }


def _trained(
    declaration: Declaration, statistics: Statistics, arrays: ArraysRef
) -> dict[str, Tensor]:
    """Return the network's state after a few steps, or a few trees, on the first train rows.

    Of several networks it is the first one's.
    """
    declaration = members_of(declaration)[first_network_number(declaration) - 1]
    if isinstance(declaration.model, BoostingModel):
        rows = load_arrays(arrays.train)
        trees = fit_ensembles(declaration, statistics, rows, rows, max_iter=STEPS)
        return dict(network_of(declaration, statistics, trees).state_dict())
    network = without_dropout(build_model(declaration, statistics))
    loss = make_loss(declaration, statistics)
    probe = first_rows(load_arrays(arrays.train), BATCH_ROWS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(declaration.train.seed)
        for _ in range(STEPS):
            _descend(network, mean_loss(network, loss, probe))
    return {name: value.clone() for name, value in network.state_dict().items()}


def _descend(network: nn.Module, loss: Tensor) -> None:
    """Make one step of plain gradient descent; an optimizer of torch loads its compiler first."""
    trained = [p for p in network.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(trained, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(gradient, alpha=LR)
