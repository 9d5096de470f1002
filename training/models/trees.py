"""Boosted trees as arrays: every node of every tree in flat buffers, read by gathering.

B rows, F columns, T trees, N nodes of all trees, K scores of a row, G category slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training.models.shape import ModelShape

NAN_RIGHT, NAN_LEFT = -1, -2  # `table` of a numeric split: where a missing number goes
BLOCK = 256  # trees that are walked at once: they fit into a cache, and the graph stays short
DTYPES = {
    "constant": torch.float64,
    "roots": torch.int64,
    "column": torch.int64,
    "feature": torch.int64,
    "threshold": torch.float64,
    "table": torch.int64,
    "below": torch.int64,
    "value": torch.float64,
    "goes_left": torch.bool,
}


class Trees(nn.Module):
    """Raw scores float64 [B, K]: a constant plus one leaf value of each tree.

    A row starts at a tree's root and goes to the left child where its number is at most the node's
    threshold, or where its category's slot says so; a leaf is its own child. The columns are those
    of `numeric`, then each tensor flattened and unscaled, then `categorical`. There is no parameter
    to train. Without a fit there are no trees, and the scores are the prior.

    Buffers, all in the state dict; their sizes are those of the file that is loaded:
        constant: float64 [K].
        roots: int64 [T], the node each tree starts at.
        column: int64 [T], the score that each tree adds to.
        feature: int64 [N], the column a node asks for.
        threshold: float64 [N].
        table: int64 [N]; first slot of a categorical split, else `NAN_RIGHT` or `NAN_LEFT`.
        below: int64 [2 N], the left and right child of each node.
        value: float64 [N], of leaves.
        goes_left: bool [G], for each code of each categorical split.

    Source: Friedman 2001, 10.1214/aos/1013203451; the arrays follow scikit-learn's predictors.
    """

    constant: Tensor
    roots: Tensor
    column: Tensor
    feature: Tensor
    threshold: Tensor
    table: Tensor
    below: Tensor
    value: Tensor
    goes_left: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.width = shape.numeric + shape.tensor_width + len(shape.categories)
        for name, dtype in DTYPES.items():
            self.register_buffer(name, torch.zeros(0, dtype=dtype))
        self.register_buffer("constant", torch.tensor(shape.prior, dtype=torch.float64))
        self.depths: tuple[int, ...] = ()  # steps of each block of trees

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Map a batch → scores [B, K]."""
        parts = [batch[key].flatten(1).double() for key in self.shape.keys if key != "categorical"]
        if self.shape.categories:
            parts.append(batch["categorical"].double())
        rows = torch.cat(parts, dim=1)
        # a comparison with NaN is false, so that it goes right; the second half has what goes left
        twice = torch.cat([rows, torch.where(rows.isnan(), -torch.inf, rows)], dim=1)
        feature = self.feature + self.width * (self.table == NAN_LEFT)
        scores = rows.new_zeros((rows.shape[0], 1)) + self.constant
        for block, depth in enumerate(self.depths):
            trees = slice(block * BLOCK, (block + 1) * BLOCK)
            node = self.roots[trees].expand(rows.shape[0], -1).reshape(-1)  # [B T]
            for _ in range(depth):
                node = self._child(twice, feature, node)
            value = self.value.index_select(0, node).view(rows.shape[0], -1)
            scores = scores.index_add(1, self.column[trees], value)
        return scores

    def _child(self, rows: Tensor, feature: Tensor, node: Tensor) -> Tensor:
        """Return the child of each node [B T] that its row [B, 2 F] goes to.

        One axis is gathered from faster than two.
        """
        column = feature.index_select(0, node).view(rows.shape[0], -1)
        asked = rows.gather(1, column).view(-1)
        left = asked <= self.threshold.index_select(0, node)
        if len(self.goes_left):
            table = self.table.index_select(0, node)
            of_category = table >= 0
            slot = torch.where(of_category, table + asked.long(), 0)
            left = torch.where(of_category, self.goes_left.index_select(0, slot), left)
        return self.below.index_select(0, 2 * node + (~left).long())

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take the sizes of a file, after checking that its trees can be walked."""
        given = {name: state_dict.get(prefix + name) for name in DTYPES}
        problem = tree_problem(given, self.shape, self.width)
        if problem:
            error_msgs.append(f"expected boosted trees: {problem}")
            return
        for name in DTYPES:
            setattr(self, name, torch.empty_like(given[name]))
        super()._load_from_state_dict(
            dict(state_dict),
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        self.depths = tuple(
            _depth(self.below, self.roots[start : start + BLOCK])
            for start in range(0, len(self.roots), BLOCK)
        )


def tree_problem(given: Mapping[str, Any], shape: ModelShape, width: int) -> str:
    """Return why buffers are not trees over these inputs; empty if they are.

    Trees that pass can be walked from each root to a leaf in finitely many steps, because a child
    stands behind its parent, and every index lies within its buffer for any row of the contract.

    Args:
        given: what a file holds under each name.
        shape: the model's contract.
        width: columns of a row.
    """
    for name, dtype in DTYPES.items():
        found = given[name]
        if not isinstance(found, Tensor) or found.ndim != 1 or found.dtype != dtype:
            what = (
                f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
            )
            return f"{name} must be {dtype} with one axis, got {what[:80]}"
    nodes, roots = len(given["feature"]), len(given["roots"])
    lengths = {
        "constant": shape.outputs,
        "column": roots,
        "threshold": nodes,
        "table": nodes,
        "below": 2 * nodes,
        "value": nodes,
    }
    for name, length in lengths.items():
        if len(given[name]) != length:
            return f"{name} must have {length} values, got {len(given[name])}"
    ranges = {
        "roots": (0, nodes),
        "column": (0, shape.outputs),
        "feature": (0, width),
        "table": (NAN_LEFT, len(given["goes_left"])),
        "below": (0, nodes),
    }
    for name, (low, end) in ranges.items():
        if not bool(((given[name] >= low) & (given[name] < end)).all()):
            return f"{name} must lie between {low} and {end - 1}"
    return _values_problem(given, shape, width)


def _values_problem(given: Mapping[str, Tensor], shape: ModelShape, width: int) -> str:
    """Return what is wrong with values whose lengths and ranges are right."""
    if not (given["value"].isfinite().all() and given["constant"].isfinite().all()):
        return "values of leaves must be finite"
    if given["threshold"].isnan().any():
        return "thresholds must be numbers"
    here = torch.arange(len(given["feature"]))
    left, right = given["below"].view(-1, 2).T
    leaf = (left == here) & (right == here)
    if not (leaf | ((left > here) & (right > here))).all():
        return "a child must stand behind its parent, and a leaf is its own child"
    codes = torch.zeros(width, dtype=torch.int64)  # 0: not a column of categories
    codes[width - len(shape.categories) :] = torch.tensor(shape.categories, dtype=torch.int64)
    ends = given["table"] + codes[given["feature"]]
    by_category = given["table"] >= 0
    if (by_category & ((codes[given["feature"]] == 0) | (ends > len(given["goes_left"])))).any():
        return "a categorical split must have a slot for each code of its column"
    return ""


def _depth(children: Tensor, roots: Tensor) -> int:
    """Return the most steps from these roots to a leaf."""
    pairs, here, steps = children.view(-1, 2), roots.unique(), 0
    while True:
        below = pairs[here]
        below = below[below != here[:, None]].unique()
        if not len(below):
            return steps
        here, steps = below, steps + 1


def count_trees(network: nn.Module) -> int:
    """Return the number of trees in a network; 0 for one without."""
    return sum(len(m.roots) for m in network.modules() if isinstance(m, Trees))
