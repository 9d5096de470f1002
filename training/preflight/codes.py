"""Known categories that land on a row of an embedding table which never learns, or on one of
another column.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn

from training.models.shape import FIRST_VALUE, NULL, ModelShape
from training.preflight.scores import scored


def frozen_codes(network: nn.Module, shape: ModelShape, inputs: dict[str, Tensor]) -> list[str]:
    """Tables of which known values get the padding row: zero from the start, and without a gradient
    for ever.

    Args:
        network: not changed.
        shape: how many codes each categorical column has.
        inputs: of a few rows.

    Returns:
        Names of the tables with the row, as `tables.0, row 6`.
    """
    padded = [
        n
        for n, m in network.named_modules()
        if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.padding_idx is not None
    ]
    if not padded or "categorical" not in inputs:
        return []
    student = copy.deepcopy(network)
    tables = {name: student.get_submodule(name) for name in padded}
    seen: dict[str, list[Tensor]] = {name: [] for name in tables}
    for name, table in tables.items():

        def look(_module: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
            if given:
                seen[name].append(given[0].detach().clone())

        table.register_forward_pre_hook(look)
    known, few = _known(shape), _repeated(shape, inputs)
    scored(student, {**few, "categorical": known})
    of_known = {name: list(given) for name, given in seen.items()}
    for given in seen.values():
        given.clear()
    scored(student, {**few, "categorical": torch.full_like(known, NULL)})
    found = []
    for name, table in tables.items():
        pairs = zip(of_known[name], seen[name], strict=False)
        if any(
            (codes == table.padding_idx).any() and not torch.equal(codes, null)
            for codes, null in pairs
        ):
            found.append(f"{name}, row {table.padding_idx}")
    return found


def shared_rows(network: nn.Module, shape: ModelShape, inputs: dict[str, Tensor]) -> list[str]:
    """Tables that several columns look up at once, of which two share some rows and not all: the
    offset of one is too small, or too large.

    Args:
        network: not changed.
        shape: how many codes each categorical column has.
        inputs: of a few rows.

    Returns:
        Names of the tables with how many rows are shared, as `table, 2 rows`.
    """
    if len(shape.categories) < 2 or "categorical" not in inputs:
        return []
    student, found = copy.deepcopy(network), dict[str, int]()

    def look(table: nn.Module, given: tuple[Tensor, ...], name: str) -> None:
        codes = given[0].detach() if given else torch.empty(0)
        if codes.ndim == 2 and codes.shape[1] == len(shape.categories):
            columns = [set(column.tolist()) for column in codes.T]
            if any(
                max(c) - min(c) + 1 != len(c) or len(c) != n
                for c, n in zip(columns, shape.categories, strict=True)
            ):
                return  # hashed on purpose, and no stretch of the table for each column
            shared = [
                len(a & b)
                for i, a in enumerate(columns)
                for b in columns[:i]
                if 0 < len(a & b) < min(len(a), len(b))
            ]
            if shared:
                found[name] = sum(shared)

    for name, table in student.named_modules():
        if isinstance(table, nn.Embedding):
            table.register_forward_pre_hook(partial(look, name=name))
    few = _repeated(shape, inputs)
    every = torch.stack(
        [torch.arange(max(shape.categories)) % codes for codes in shape.categories], dim=1
    )
    scored(student, {**few, "categorical": every})
    return [f"{name}, {count} rows" for name, count in found.items()]


def _repeated(shape: ModelShape, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """As many rows as the column with most codes has codes."""
    return {name: t[torch.arange(max(shape.categories)) % len(t)] for name, t in inputs.items()}


def _known(shape: ModelShape) -> Tensor:
    """All known codes of each column, [rows, columns]."""
    known = torch.stack(
        [
            FIRST_VALUE + torch.arange(max(shape.categories)) % max(codes - FIRST_VALUE, 1)
            for codes in shape.categories
        ],
        dim=1,
    )
    # a column with no known value has no such code
    return torch.minimum(known, torch.tensor(shape.categories) - 1)
