"""Trees of scikit-learn's fitted models as the arrays of `training.models.trees`.

scikit-learn keeps the nodes of its trees in private attributes; `tests/training/test_boosting.py`
and every run compare the arrays' scores with its predictions. K scores of a row, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.models.shape import ModelShape
from training.models.trees import DTYPES, NAN_LEFT, NAN_RIGHT

# log odds of a class that no train row has: a probability of 0 within any tolerance
ABSENT = -50.0


@dataclass(frozen=True)
class Ensemble:
    """A fitted model of one label, or only its constant scores.

    Attributes:
        model: scikit-learn's model; None where all train rows have one label.
        iterations: kept iterations.
        columns: the scores [K] of this label.
        constant: its scores without a tree, float64.
    """

    model: Any
    iterations: int
    columns: slice
    constant: np.ndarray

    @property
    def scored(self) -> list[int]:
        """Score that each tree of an iteration adds to."""
        width = self.columns.stop - self.columns.start
        places = [0] if width == 1 else [int(c) for c in self.model.classes_]
        trees = self.model.n_trees_per_iteration_
        # of two classes the second one has the trees
        return [self.columns.start + place for place in places[-trees:]]


def ensemble_of(model: Any, iterations: int, columns: slice) -> Ensemble:
    """Return the ensemble of a fitted model.

    Args:
        model: fitted by `fit_boosting`.
        iterations: how many to keep.
        columns: its scores among all.
    """
    width = columns.stop - columns.start
    found = Ensemble(model, iterations, columns, np.zeros(0))
    constant = np.zeros(width)
    if width > 1:
        present = np.isin(np.arange(width), model.classes_)
        constant[~present] = ABSENT
    places = [place - columns.start for place in found.scored]
    constant[places] = np.ravel(model._baseline_prediction)
    return Ensemble(model, iterations, columns, constant)


def staged_scores(ensemble: Ensemble, features: np.ndarray, stages: Sequence[int]) -> np.ndarray:
    """Return scikit-learn's own raw scores float64 [stages, N, K of the label].

    Args:
        ensemble: of one label.
        features: rows [N, D].
        stages: numbers of iterations, ascending; more than there are means all.
    """
    start = ensemble.columns.start
    found = np.broadcast_to(
        ensemble.constant, (len(stages), len(features), len(ensemble.constant))
    ).copy()
    if ensemble.model is None or not len(features):
        return found
    model = ensemble.model
    staged = getattr(model, "staged_decision_function", None) or model.staged_predict
    places = [place - start for place in ensemble.scored]
    for iteration, raw in enumerate(staged(features), start=1):
        for at, stage in enumerate(stages):
            if min(stage, model.n_iter_) == iteration:
                found[at][:, places] = np.reshape(raw, (len(features), -1))
    return found


def trees_of(
    ensembles: Sequence[Ensemble], shape: ModelShape, native: Sequence[int], prefix: str = "body."
) -> dict[str, Tensor]:
    """Return the state dict of a network over the kept trees of all labels.

    Args:
        ensembles: of each label, in the order of the scores.
        shape: the network's contract.
        native: columns that may be split into sets of values.
        prefix: of the buffers' names.
    """
    width = shape.numeric + shape.tensor_width + len(shape.categories)
    codes = np.zeros(width, dtype=np.int64)
    codes[width - len(shape.categories) :] = shape.categories
    parts: dict[str, list[np.ndarray]] = {name: [] for name in DTYPES}
    parts["constant"] = [e.constant for e in ensembles]
    nodes = slots = 0
    for ensemble in ensembles:
        reader = _Reader(ensemble.model, native, codes)
        for iteration in [] if ensemble.model is None else range(ensemble.iterations):
            for place, tree in zip(
                ensemble.scored, ensemble.model._predictors[iteration], strict=True
            ):
                for name, values in reader.read(tree, nodes, slots).items():
                    parts[name].append(values)
                parts["roots"].append(np.array([nodes]))
                parts["column"].append(np.array([place]))
                nodes, slots = nodes + len(tree.nodes), slots + len(parts["goes_left"][-1])
    return {
        prefix + name: torch.from_numpy(
            np.concatenate(found or [np.zeros(0)]).astype(str(DTYPES[name]).removeprefix("torch."))
        )
        for name, found in parts.items()
    }


class _Reader:
    """Reader of the trees of one model.

    Args:
        model: scikit-learn's model; None without trees.
        native: columns that may be split into sets of values.
        codes: number of codes of each column [D]; 0 for numbers.
    """

    def __init__(self, model: Any, native: Sequence[int], codes: np.ndarray) -> None:
        self.codes = codes
        self.order = np.arange(len(codes))
        self.encoded: dict[int, np.ndarray] = {}
        prepared = getattr(model, "_preprocessor", None)
        if prepared is None:
            return
        # scikit-learn puts columns of categories first, and numbers the codes that train has
        self.order = np.concatenate([native, np.setdiff1d(np.arange(len(codes)), native)]).astype(
            np.int64
        )
        encoder = prepared.named_transformers_["encoder"]
        most = int(codes[list(native)].max())
        every = np.repeat(np.arange(most, dtype=np.float32)[:, None], len(native), axis=1)
        self.encoded = dict(zip(native, encoder.transform(every).T, strict=True))

    def read(self, tree: Any, node: int, slot: int) -> dict[str, np.ndarray]:
        """Return the arrays of a tree whose first node and category slot have these numbers."""
        nodes = tree.nodes
        leaf, here = nodes["is_leaf"].astype(bool), node + np.arange(len(nodes))
        feature = np.where(leaf, 0, self.order[nodes["feature_idx"]])
        missing_left = nodes["missing_go_to_left"].astype(bool)
        table = np.where(missing_left, NAN_LEFT, NAN_RIGHT)
        slots: list[np.ndarray] = [np.zeros(0, dtype=bool)]
        for i in np.flatnonzero(nodes["is_categorical"].astype(bool) & ~leaf):
            table[i] = slot + sum(map(len, slots))
            words = tree.raw_left_cat_bitsets[nodes["bitset_idx"][i]]
            slots.append(self._goes_left(int(feature[i]), words, bool(missing_left[i])))
        sides = (node + nodes[side].astype(np.int64) for side in ("left", "right"))
        children = np.stack([np.where(leaf, here, side) for side in sides], axis=1)
        return {
            "feature": feature,
            "threshold": np.where(leaf, 0.0, nodes["num_threshold"]),
            "table": np.where(leaf, NAN_RIGHT, table),
            "below": children.ravel(),
            "value": np.where(leaf, nodes["value"], 0.0),
            "goes_left": np.concatenate(slots),
        }

    def _goes_left(self, column: int, words: np.ndarray, missing_left: bool) -> np.ndarray:
        """Return for each code of a column if it goes left; one that train lacks counts as missing.

        Args:
            column: of categories.
            words: bit set over scikit-learn's numbers of the codes, uint32 [8].
            missing_left: where missing values go.
        """
        encoded = self.encoded[column][: self.codes[column]]
        known = ~np.isnan(encoded)
        number = np.where(known, encoded, 0).astype(np.int64)
        bits = (np.asarray(words, dtype=np.int64)[number >> 5] >> (number & 31)) & 1
        return np.where(known, bits == 1, missing_left)
