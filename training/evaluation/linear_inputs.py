"""Inputs of the linear baseline where rows have texts or sets: sparse, with TF-IDF of each text.

N rows, D columns.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from schemas.records import Statistics
from schemas.statistics import BagStats
from training.boosting.tree_inputs import ALL, Arrays, dense_columns
from training.models.shape import FIRST_VALUE


def linear_inputs(statistics: Statistics, arrays: Arrays, rows: slice = ALL) -> sparse.csr_matrix:
    """Return numbers, one-hot categories, TF-IDF of texts and one-hot values of sets [N, D].

    Frequencies are those of the train rows, in the statistics.
    """
    dense = dense_columns(statistics.model_copy(update={"bags": ()}), arrays, rows)
    parts = [sparse.csr_matrix(dense)]
    for index, column in enumerate(statistics.categorical):
        codes = arrays["categorical"][rows, index][:, None]
        parts.append(_one_hot(codes, len(column.values) + FIRST_VALUE))
    parts += [_bag(bag, arrays[bag.key][rows], statistics.rows) for bag in statistics.bags]
    return sparse.hstack(parts, format="csr")


def _one_hot(codes: np.ndarray, width: int) -> sparse.csr_matrix:
    """Return 1 in the columns of each row's codes [N, L], without filling (-1)."""
    row, place = np.nonzero(codes >= 0)
    ones = np.ones(len(row), dtype=np.float32)
    return sparse.csr_matrix((ones, (row, codes[row, place])), shape=(len(codes), width))


def _bag(bag: BagStats, codes: np.ndarray, train_rows: int) -> sparse.csr_matrix:
    """Return which pieces rows have; of a text weighted, and of length 1.

    Source: smooth inverse document frequency as in scikit-learn's TfidfTransformer.
    """
    found = _one_hot(codes - 1, bag.num_codes - 1)
    if bag.separator is not None:
        return found
    rare = [] if bag.encoder is None else [bag.unknown_rows]
    frequency = np.array([bag.nulls, *bag.counts, *rare])
    weighted = found.multiply(np.log((1 + train_rows) / (1 + frequency)) + 1).tocsr()
    length = np.sqrt(weighted.multiply(weighted).sum(axis=1))
    return sparse.csr_matrix(weighted.multiply(1 / np.maximum(length, 1e-12)))
