"""The trained network as it is registered: on the CPU, in eval mode, in float64.

From the float32 weights and inputs that it was trained with, but computing in float64: then its
results depend on neither batch size, threads nor device beyond 1e-12. In float32 they differ by
about 2e-6 standard deviations of the label with the size of the batch alone, which in a label's own
units is more than 1e-6. Test rows scored with this network are therefore what the registered model
gives for them.

N rows, K scores.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from schemas.errors import CheckpointError
from schemas.load import declare
from schemas.records import RunSpec, SplitArrays, Statistics
from training.data.arrays.shards import load_arrays
from training.models.build import build_model

ROWS, VALUES = 1024, 2**18  # of one forward pass, at most
TARGETS = ("label", "weight")


def reference_network(run: RunSpec, weights: Path) -> nn.Module:
    """The trained network in float64, or in float32 where a custom module refuses float64.

    Args:
        run: what was trained.
        weights: the checkpoint's weights; loaded without running any code of theirs.

    Raises:
        CheckpointError: the file is no set of weights of this network.
    """
    network = build_model(declare(run.declaration), run.statistics)
    try:
        network.load_state_dict(_state(weights))
    except Exception as error:  # the unpickler raises what it likes
        raise CheckpointError(
            f"{weights}: expected the weights of the declared network, got something else"
            f" ({str(error).splitlines()[0]})"
        ) from error
    return in_double(network.eval().requires_grad_(False), run.statistics)


def in_double(network: nn.Module, statistics: Statistics) -> nn.Module:
    """A copy of a network in eval mode that computes in float64; the network itself where a custom
    module refuses that.
    """
    doubled = copy.deepcopy(network).double()
    try:
        with torch.inference_mode():
            computes = doubled(blank_batch(statistics, torch.float64)).dtype == torch.float64
    except RuntimeError:
        computes = False
    return doubled if computes else network


def _state(weights: Path) -> Mapping[str, Tensor]:
    """The network's state dict in a file of weights, alone or under the key `model`."""
    loaded: dict[str, Tensor | dict[str, Tensor]] = torch.load(
        weights, map_location="cpu", weights_only=True
    )
    inner = loaded.get("model")
    return inner if isinstance(inner, dict) else loaded


def precision(network: nn.Module) -> torch.dtype:
    """What the network computes in."""
    return next((p.dtype for p in network.parameters()), torch.float32)


def blank_batch(
    statistics: Statistics, numeric: torch.dtype, width: int | None = None, rows: int = 2
) -> dict[str, Tensor]:
    """A batch with no data in it, keys in sorted order.

    Args:
        statistics: say which inputs there are.
        numeric: type of the numeric block.
        width: of the numeric block; default: that of the network's input.
        rows: of the batch.
    """
    if statistics.tokens is not None:
        return {
            name: torch.ones((rows, statistics.tokens.context), dtype=torch.int64)
            for name in ("segments", "tokens")
        }
    batch = {
        f"tensor_{t.name}": torch.zeros((rows, *t.shape), dtype=getattr(torch, t.dtype))
        for t in statistics.tensor
    }
    if statistics.numeric:
        batch["numeric"] = torch.zeros(
            (rows, statistics.num_numeric if width is None else width), dtype=numeric
        )
    if statistics.categorical:
        batch["categorical"] = torch.zeros((rows, len(statistics.categorical)), dtype=torch.int64)
    return dict(sorted(batch.items()))


def reference_scores(
    network: nn.Module, arrays: SplitArrays, rows: int | None = None
) -> np.ndarray:
    """Raw scores float64 [N, K] of the rows of a side in their order, by `reference_network`.

    Args:
        network: made by `reference_network`.
        arrays: the side; each file's digest is compared first.
        rows: only the first so many; default all.

    Raises:
        IntegrityError: an array was changed after it was written.
    """
    blocks = {
        name: array[:rows] for name, array in load_arrays(arrays).items() if name not in TARGETS
    }
    found, dtype = [], precision(network)
    step = max(1, min(ROWS, VALUES // sum(math.prod(block.shape[1:]) for block in blocks.values())))
    with torch.inference_mode():
        for start in range(0, len(next(iter(blocks.values()))), step):
            batch = {
                name: torch.from_numpy(np.array(block[start : start + step]))
                for name, block in blocks.items()
            }
            if "numeric" in batch:
                batch["numeric"] = batch["numeric"].to(dtype)
            found.append(network(batch).double())
    return np.asarray(torch.cat(found).numpy())
