"""The trained network as it is registered: on the CPU, in eval mode, in float64.

Weights and inputs are the float32 ones of training, but computed in float64: results do not depend
on batch size, threads or device beyond 1e-12. In float32 the batch size alone changes them by about
2e-6 standard deviations of the label, which in label units is more than 1e-6. Test rows scored with
this network therefore get the registered model's predictions.

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
from schemas.records import RunSpec, SplitArrays, Statistics
from training.data.arrays.shards import load_arrays
from training.models.ensemble import build_network
from training.models.lora import merge_adapters

ROWS, VALUES = 1024, 2**18  # most per forward pass
TARGETS = ("label", "weight")


def reference_network(run: RunSpec, weights: Path) -> nn.Module:
    """Return the trained network in float64, or in float32 if a custom module refuses float64.

    Adapters are merged into their layers.

    Args:
        run: the trained run.
        weights: the checkpoint's weights; loaded without running any code in them.

    Raises:
        CheckpointError: the file does not contain weights of this network.
    """
    network = build_network(run)
    try:
        network.load_state_dict(read_state(weights))
    except Exception as error:  # the unpickler can raise any error
        raise CheckpointError(
            f"{weights}: expected the weights of the declared network, got something else"
            f" ({str(error).splitlines()[0]})"
        ) from error
    return merge_adapters(in_double(network.eval().requires_grad_(False), run.statistics))


def in_double(network: nn.Module, statistics: Statistics) -> nn.Module:
    """Copy a network to eval mode and float64; return the network itself if a custom module
    refuses.
    """
    doubled = copy.deepcopy(network).double()
    try:
        with torch.inference_mode():
            computes = doubled(blank_batch(statistics, torch.float64)).dtype == torch.float64
    except RuntimeError:
        computes = False
    return doubled if computes else network


def read_state(weights: Path) -> Mapping[str, Tensor]:
    """Return the network's state dict in a file of weights, alone or under the key `model`."""
    loaded: dict[str, Tensor | dict[str, Tensor]] = torch.load(
        weights, map_location="cpu", weights_only=True
    )
    inner = loaded.get("model")
    return inner if isinstance(inner, dict) else loaded


def precision(network: nn.Module) -> torch.dtype:
    """Return the dtype that the network computes in."""
    return next((p.dtype for p in network.parameters()), torch.float32)


def blank_batch(
    statistics: Statistics, numeric: torch.dtype, width: int | None = None, rows: int = 2
) -> dict[str, Tensor]:
    """Return a batch without data, keys in sorted order.

    Args:
        statistics: give the inputs.
        numeric: type of the numeric block.
        width: width of the numeric block; default: that of the network's input.
        rows: rows of the batch.
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
    batch |= {
        bag.key: torch.zeros((rows, bag.length), dtype=torch.int32) for bag in statistics.bags
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
    """Return raw scores float64 [N, K] of a split's rows in order, by `reference_network`.

    Args:
        network: made by `reference_network`.
        arrays: the split; each file's digest is compared first.
        rows: score only the first `rows`; default all.

    Raises:
        IntegrityError: an array was changed after it was written.
    """
    blocks = {
        name: array[:rows] for name, array in load_arrays(arrays).items() if name not in TARGETS
    }
    return scores_of(network, blocks)


def scores_of(network: nn.Module, blocks: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return raw scores float64 [N, K] of arrays of inputs [N, ...], by `reference_network`."""
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
