"""Modes `exact`, `elastic` and `fast`: their promises, and the settings that keep them."""

from __future__ import annotations

import os

import torch

from schemas.config import TrainConfig


def promise(train: TrainConfig, world_size: int) -> str:
    """Return the sentence that the run prints and records."""
    if train.mode == "exact":
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        return (
            f"exact: the same machine type, software, device, CPU threads and {ranks} give"
            " bit-identical weights, also when the run is killed and started again"
        )
    if train.mode == "elastic":
        return (
            "elastic: the same machine type, software, device and CPU threads give bit-identical"
            f" weights for any number of ranks that divides {train.logical_shards}, also when it"
            " changes from one start to the next"
        )
    return (
        "fast: autotuned kernels may round differently from run to run; no promise but the metric"
    )


def cpu_threads(train: TrainConfig, local_world_size: int) -> int:
    """Return the CPU threads of one rank.

    It is as declared, else an equal share of the cores this process may use; in mode elastic it is
    one, for any number of ranks.
    """
    if train.mode == "elastic":
        return train.threads or 1
    return train.threads or max(1, len(os.sched_getaffinity(0)) // local_world_size)


def apply_mode(train: TrainConfig, local_world_size: int) -> None:
    """Set threads, matrix precision and determinism of this process; before its first CUDA call.

    Args:
        train: the declared mode, threads and precision.
        local_world_size: ranks on this machine, which share its cores.
    """
    exact = train.mode != "fast"
    if exact:
        # cuBLAS reads it when its first handle is made
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(cpu_threads(train, local_world_size))
    torch.set_float32_matmul_precision(train.matmul_precision)
    torch.use_deterministic_algorithms(exact)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.benchmark = not exact


def leave_memory_unfilled() -> None:
    """Stop deterministic algorithms from filling each new tensor with NaN before it is written.

    Call it once the network is built. torch fills tensors by default, for code that reads memory it
    never wrote, at 1 to 7 % of a transformer's step on the CPU. Until the network is built the fill
    stays on, so that a parameter which its module never sets is NaN, and stops the first step.
    """
    torch.utils.deterministic.fill_uninitialized_memory = False
