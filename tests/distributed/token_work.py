"""Work of a test's ranks with a language model; call each function on every rank. It returns
something that JSON can hold.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from schemas.config import TrainConfig
from schemas.load import declare
from schemas.records import RunSpec
from training.data.arrays.sequences import NO_TARGET
from training.data.arrays.shards import load_arrays
from training.distributed.layout import Layout
from training.distributed.parallel import Parallel
from training.engine.batches import WindowReader, as_tensors
from training.engine.sampling import Sampler
from training.engine.step import Step
from training.engine.trainer import train
from training.launch.stop_signal import StopSignal
from training.models.build import build_model
from training.objectives.losses import make_loss

CASES = [(13, None), (13, 2), (8, 1), (5, 3)]  # rows of a window, rows of a micro-batch


def everything(parallel: Parallel, folder: str) -> dict[str, Any]:
    """Return gradients against one big batch, and a whole training; on several ranks also a sharded
    one.
    """
    spec = RunSpec.model_validate_json((Path(folder) / "resolved.json").read_bytes())
    errors = [gradient_error(parallel, spec, *case) for case in CASES]
    report = train(spec, Path(folder) / f"run-{parallel.world_size}", parallel, StopSignal())
    found = {
        "errors": errors,
        "metric": report.best_metric,
        "steps": report.steps,
        "weights": report.model_sha256,
    }
    if parallel.world_size == 1:
        return found
    tree = spec.declaration | {"train": spec.declaration["train"] | {"parallel": "fsdp"}}
    sharded = train(
        spec.model_copy(update={"declaration": tree}),
        Path(folder) / "run-sharded",
        parallel,
        StopSignal(),
    )
    return found | {"sharded": sharded.best_metric}


def gradient_error(
    parallel: Parallel, spec: RunSpec, batch_size: int, micro_batch_size: int | None
) -> float:
    """Return the largest error of a window's gradient over an epoch, relative to its largest entry.

    Rows hold very different numbers of targets.
    """
    declaration = declare(spec.declaration)
    tensors = as_tensors(
        {name: np.array(array) for name, array in load_arrays(spec.arrays.train).items()}
    )
    for row in range(0, len(tensors["label"]), 2):
        tensors["label"][row, 1 + row % 5 :] = (
            NO_TARGET  # half of the rows have one to five targets
        )
    model, loss = (
        build_model(declaration, spec.statistics).double(),
        make_loss(declaration, spec.statistics),
    )
    config = TrainConfig(batch_size=batch_size, micro_batch_size=micro_batch_size, clip="none")
    step = Step(
        Layout(model, parallel, config), loss, torch.optim.SGD(model.parameters(), lr=0.0), config
    )
    reader = WindowReader(
        tensors, Sampler(len(tensors["label"]), batch_size, seed=5), loss, parallel
    )
    step.rehearse(reader.read(0))
    worst = 0.0
    for number in range(reader.sampler.steps_per_epoch):
        window = reader.read(number)
        step.gradients(window)
        gate = step.gate(window, step.clip())
        whole = copy.deepcopy(model)
        whole.zero_grad()
        label = tensors["label"][window.rows].long()
        value = F.cross_entropy(
            whole({name: tensors[name][window.rows] for name in ("tokens", "segments")}).flatten(
                0, 1
            ),
            label.flatten(),
        )
        value.backward()
        scale = max(float(p.grad.abs().max()) for p in whole.parameters())
        worst = max(
            worst,
            *(
                float((p.grad - q.grad).abs().max()) / scale
                for p, q in zip(model.parameters(), whole.parameters(), strict=True)
            ),
        )
        assert abs(gate.loss - float(value.detach())) < 1e-12 and gate.weight_sum == float(
            (label != NO_TARGET).sum()
        )
    return worst
