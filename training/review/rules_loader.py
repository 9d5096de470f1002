"""What the rules of several processes ask of loaders."""

from __future__ import annotations

import ast

from training.review.lookups import torch_calls
from training.review.program import Program
from training.review.syntax import (
    once,
)

PREPARES = {
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "deepspeed",
    "composer",
}


@once
def loaders(program: Program) -> tuple[ast.Call, ...]:
    """Every `DataLoader` of torch that is made in the file."""
    called = [(c, program.resolve(c.func)) for c in program.all_calls]
    return tuple(
        c
        for c, name in called
        if name.endswith("DataLoader")
        and (
            program.is_torch(c.func, "DataLoader")
            or name.endswith("torch_geometric.loader.DataLoader")
        )
    )


@once
def is_distributed(program: Program) -> bool:
    """Whether the file runs a process for each device itself."""
    names = (
        "DistributedDataParallel",
        "init_process_group",
        "FullyShardedDataParallel",
        "fully_shard",
        "init_device_mesh",
    )
    return any(torch_calls(program, name) for name in names)
