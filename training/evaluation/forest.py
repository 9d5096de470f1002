"""Random forest on Morgan fingerprints, the usual baseline for molecules. N rows, D bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from schemas.config import Declaration
from schemas.encoder_config import EncoderConfig
from schemas.records import Statistics
from training.boosting.tree_inputs import ALL, Arrays
from training.evaluation.predictions import (
    MAX_TREE_VALUES,
    Predict,
    first_rows,
    predictor,
    weight_of,
)
from training.models.encoders import summary

TREES, FEW_TREES, MANY_ROWS = 300, 100, 10_000  # many rows have fewer trees, for a minute or two
BLOCK = 1024


def molecules(statistics: Statistics) -> dict[str, EncoderConfig]:
    """Return the keys of the arrays that have Morgan bits, with what reads them."""
    made = [t for t in statistics.tensor if t.molecule is not None]
    return {t.key: t.encoder for t in made if t.encoder is not None}


def forest_inputs(statistics: Statistics, arrays: Arrays, rows: slice = ALL) -> np.ndarray:
    """Return the bits of all molecules of the rows, uint8 [N, D]; counts as bits."""
    found = []
    for key, encoder in molecules(statistics).items():
        block, parts = arrays[key][rows], []
        for start in range(0, len(block), BLOCK):
            some = torch.from_numpy(np.array(block[start : start + BLOCK]))
            parts.append((summary(encoder, some).numpy() > 0).astype(np.uint8))
        found.append(np.concatenate(parts) if parts else np.zeros((0, 0), np.uint8))
    return np.concatenate(found, axis=1)


def forest(is_regression: bool, seed: int, rows: int) -> Any:
    """Return the unfitted forest: 300 or 100 trees, square root of the bits at each split; of a
    regression a third.

    Args:
        is_regression: of the task.
        seed: of the trees.
        rows: that are fitted, of all labels together.
    """
    trees = TREES if rows <= MANY_ROWS else FEW_TREES
    if is_regression:
        return RandomForestRegressor(trees, max_features=1 / 3, random_state=seed, n_jobs=-1)
    return RandomForestClassifier(trees, random_state=seed, n_jobs=-1)


def fit_forest(
    declaration: Declaration, statistics: Statistics, train: Arrays, val: Arrays, labels: int = 1
) -> Predict:
    """Fit a random forest on the Morgan bits of the molecules alone; one of so many labels."""
    some = first_rows(statistics, MAX_TREE_VALUES)
    bits = forest_inputs(statistics, train, some)
    is_regression = declaration.task.kind == "regression"
    model = forest(is_regression, declaration.train.seed, len(bits) * labels)
    model.fit(bits, train["label"][some], sample_weight=weight_of(train, some))
    return predictor(declaration, statistics, model, forest_inputs)
