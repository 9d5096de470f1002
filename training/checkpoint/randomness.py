"""Randomness as a pure function of names and numbers: `derive(seed, "window", epoch, step, rank)`.

Nothing in training reads a generator whose state depends on earlier computations: the epoch's order
and the noise of an accumulation window (dropout, augmentation) each start from their own key. So a
process that was killed and started again draws the same numbers as an undisturbed one.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch

State = dict[str, Any]


def derive(seed: int, *parts: int | str) -> int:
    """Return a 63-bit key that depends on every part, equal on every platform.

    >>> (derive(0, "order", 1) == derive(0, "order", 1),
    ...     derive(0, "order", 1) == derive(0, "order", 11))
    (True, False)
    """
    text = ":".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *parts: int | str) -> torch.Generator:
    """Return a CPU generator at the start of its own stream."""
    return torch.Generator().manual_seed(derive(seed, *parts))


def seed_process(seed: int) -> None:
    """Seed Python, NumPy, torch and CUDA for draws of a user's own code outside a window."""
    key = derive(seed, "process")
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.manual_seed(key)


def seed_window(seed: int, epoch: int, step: int, shard: int, device: torch.device) -> None:
    """Start all global streams for one accumulation window on one rank.

    The rank is a logical shard of the global batch. Python's and NumPy's streams start too: a
    library that is imported late may draw from them, so their states are not part of the run's
    state.
    """
    key = derive(seed, "window", epoch, step, shard)
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)


def capture(device: torch.device) -> State:
    """Return the states of every global stream of this process.

    They are tensors and plain values, loadable with `weights_only`.
    """
    version, words, gauss = random.getstate()
    legacy: dict[str, Any] = np.random.get_state(legacy=False)
    return {
        "python": {
            "version": version,
            "words": torch.tensor(words, dtype=torch.int64),
            "gauss": gauss,
        },
        "numpy": {
            "keys": torch.tensor(legacy["state"]["key"].astype(np.int64)),
            "position": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "cached": float(legacy["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore(state: State, device: torch.device) -> None:
    """Restore every global stream to the state that `capture` returned."""
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(
        (
            "MT19937",
            legacy["keys"].numpy().astype(np.uint32),
            legacy["position"],
            legacy["has_gauss"],
            legacy["cached"],
        )
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
