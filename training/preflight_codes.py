"""Known categories that land on a row of an embedding table which never learns."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from training.models.shape import FIRST_VALUE, NULL, ModelShape
from training.preflight_scores import scored


def frozen_codes(network: nn.Module, shape: ModelShape, inputs: dict[str, Tensor]) -> list[str]:
    """Tables of which known values get the padding row: zero from the start, and without a gradient for ever.

    Args:
        network: not changed.
        shape: how many codes each categorical column has.
        inputs: of a few rows.

    Returns:
        Names of the tables with the row, as `tables.0, row 6`.
    """
    padded = [n for n, m in network.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.padding_idx is not None]
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
    rows = max(shape.categories)
    known = torch.stack([FIRST_VALUE + torch.arange(rows) % max(codes - FIRST_VALUE, 1) for codes in shape.categories], dim=1)
    known = torch.minimum(known, torch.tensor(shape.categories) - 1)  # a column with no known value has no such code
    few = {name: t[torch.arange(rows) % len(t)] for name, t in inputs.items()}
    scored(student, {**few, "categorical": known})
    of_known = {name: list(given) for name, given in seen.items()}
    for given in seen.values():
        given.clear()
    scored(student, {**few, "categorical": torch.full_like(known, NULL)})
    found = []
    for name, table in tables.items():
        pairs = zip(of_known[name], seen[name], strict=False)
        if any((codes == table.padding_idx).any() and not torch.equal(codes, null) for codes, null in pairs):
            found.append(f"{name}, row {table.padding_idx}")
    return found
