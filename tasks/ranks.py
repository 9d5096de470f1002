"""Number of training processes: as declared, else one per GPU, or one with all the cores."""

from __future__ import annotations

import os
from pathlib import Path

from schemas.config import Declaration, TrainConfig
from schemas.errors import ConfigError
from schemas.records import TrainReport
from training.run.record import started_declaration


def num_gpus() -> int:
    """Return the number of GPUs for training on this machine: those of CUDA_VISIBLE_DEVICES.

    A slice of a divided GPU (MIG) counts as one.
    """
    import torch  # takes a second

    return int(torch.cuda.device_count())


def with_ranks(declaration: Declaration) -> Declaration:
    """Return the declaration with this machine's number of processes, if none is declared.

    `resume` and `reproduce` read the number from the run's record: in exact mode, bits depend on
    it.

    Raises:
        ConfigError: more processes are declared than there are GPUs, or a GPU if there is none.
    """
    train = declaration.train
    if declaration.model.kind == "boosting":  # fitted in one process, on the CPU
        return declaration.model_copy(update={"train": train.with_ranks(1)})
    gpus = require_gpus(train)
    if "ranks" in train.model_fields_set:
        return declaration
    return declaration.model_copy(update={"train": train.with_ranks(_suitable(train, gpus))})


def require_gpus(train: TrainConfig) -> int:
    """Return the number of GPUs, at least one per declared process; 0 for training on the CPU.

    Raises:
        ConfigError: there are too few.
    """
    gpus = 0 if train.device == "cpu" else num_gpus()
    if train.device == "cuda" and not gpus:
        raise ConfigError(
            f"train.device is cuda, but torch finds no GPU here{_visible()}; set train.device: cpu"
            " or auto"
        )
    here = train.ranks // train.nodes
    if gpus and "ranks" in train.model_fields_set and here > gpus:
        place = (
            f"{train.ranks} on {train.nodes} machines, so {here} on this one"
            if train.nodes > 1
            else f"{train.ranks}"
        )
        raise ConfigError(
            f"train.ranks is {place}: each process needs its own GPU, and torch finds {gpus}"
            f" here{_visible()}; leave train.ranks out (one process for each GPU), set"
            f" train.ranks={gpus * train.nodes}, or train on the CPU with train.device=cpu"
        )
    return gpus


def require_same_ranks(run_dir: Path) -> None:
    """Check that this machine can continue a run's training, unless it is finished.

    Raises:
        ConfigError: the run has more processes than there are GPUs here.
    """
    result = run_dir / "result.json"
    if (
        not result.is_file()
        or TrainReport.model_validate_json(result.read_bytes()).status == "interrupted"
    ):
        require_gpus(started_declaration(run_dir).train)


def _suitable(train: TrainConfig, gpus: int) -> int:
    """Return one process per GPU, at most the rows of a batch or shards of an elastic run.

    On a CPU, one process uses all cores. On two cores, one process with two threads takes 0.97 of
    the time of two processes (docs/benchmarks.md), and starts sooner.
    """
    fitting = (
        here * train.nodes
        for here in range(max(1, gpus), 0, -1)
        if train.can_have(here * train.nodes)
    )
    return next(fitting, train.nodes)


def _visible() -> str:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if chosen is None else f" (CUDA_VISIBLE_DEVICES={chosen})"
