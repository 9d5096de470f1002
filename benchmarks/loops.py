"""Bulkhead's training loop and loops written by hand, taking turns in one process;
`benchmarks.throughput` starts it.

    torchrun --nproc-per-node R -m benchmarks.loops --config resolved.json --run-dir DIR --out
    OUT.json [--peers | --alone]

All loops have the same model class, initial weights, optimizer, loss, batch size, threads and rows.
`careful` does by hand what a step of the trainer declares: shuffled rows, clipping by norm, a
schedule. `bare` does less than one should: rows as contiguous slices in the order of the file, no
clipping, no schedule. With `--peers` those of `benchmarks.peers` take turns too; they do what
`careful` does. With `--alone` only Bulkhead's loop runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers import (
    MeanLoss,
    Parts,
    WithAccelerate,
    WithDataLoader,
    WithLightning,
    WithSkorch,
)
from schemas.load import declare
from schemas.records import RunSpec
from training.data.arrays.sequences import NO_TARGET
from training.data.arrays.shards import load_arrays
from training.distributed.parallel import Parallel
from training.engine.trainer import Trainer
from training.launch.stop_signal import StopSignal
from training.main import read_spec
from training.models.build import build_model
from training.optim.optimizer import make_optimizer

Segment = Callable[[int], None]
Seconds = dict[str, list[float]]


def mean_loss(spec: RunSpec) -> MeanLoss:
    """Return the task's loss in one call of torch, the mean over a batch.

    It takes the network's scores and the label as `in_memory` returns it.
    """
    kind = spec.declaration["task"]["kind"]
    if kind == "binary":
        return lambda scores, label: functional.binary_cross_entropy_with_logits(
            scores.squeeze(1), label
        )
    if kind == "multiclass":
        return functional.cross_entropy
    return lambda scores, label: functional.cross_entropy(
        scores.flatten(0, 1), label.flatten(), ignore_index=NO_TARGET
    )


def in_memory(spec: RunSpec) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return inputs and label of train as new tensors."""
    tensors = {
        name: torch.from_numpy(np.array(array))  # windows of series are written out
        for name, array in load_arrays(spec.arrays.train).items()
    }
    label = tensors.pop("label")
    return tensors, label.float() if spec.declaration["task"]["kind"] == "binary" else label.long()


class HandWritten:
    """A plain torch loop over tensors in memory.

    Args:
        spec: model, optimizer, batch size and data.
        parallel: the ranks; each takes an equal part of a batch.
        careful: shuffle, clip and schedule.
    """

    def __init__(self, spec: RunSpec, parallel: Parallel, careful: bool) -> None:
        declaration = declare(spec.declaration)
        inputs, label = in_memory(spec)
        self.device = parallel.device
        self.inputs, self.label = (
            {name: tensor.to(self.device) for name, tensor in inputs.items()},
            label.to(self.device),
        )
        self.loss, self.careful, self.rank, self.ranks = (
            mean_loss(spec),
            careful,
            parallel.rank,
            parallel.world_size,
        )
        self.batch, self.clip_at = declaration.train.batch_size, declaration.train.clip_at
        self.half = declaration.train.precision == "bf16"
        model = build_model(declaration, spec.statistics).to(self.device)
        called = torch.compile(model, dynamic=False) if declaration.train.compile else model
        self.model: nn.Module = DistributedDataParallel(model) if self.ranks > 1 else called
        self.optimizer = make_optimizer(declaration.optimizer, model)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, declaration.train.epochs * (len(self.label) // self.batch)
        )
        self._shuffle()

    def _shuffle(self) -> None:
        self.order, self.position = torch.randperm(len(self.label), device=self.device), 0

    def run(self, steps: int) -> None:
        """Run `steps` optimizer steps; an epoch's last, smaller batch is left out."""
        for _ in range(steps):
            if self.position + self.batch > len(self.label):
                self._shuffle()
            begin, end = (
                self.position + part * self.batch // self.ranks
                for part in (self.rank, self.rank + 1)
            )
            self.position += self.batch
            self._step(self.order[begin:end] if self.careful else slice(begin, end))

    def _step(self, rows: torch.Tensor | slice) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            scores = self.model({name: tensor[rows] for name, tensor in self.inputs.items()})
        self.loss(scores.float(), self.label[rows]).backward()
        if self.careful:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_at)
        self.optimizer.step()
        if self.careful:
            self.schedule.step()


def peer_loops(spec: RunSpec, parallel: Parallel) -> dict[str, Segment]:
    """Return the peers' loops; with several ranks only those of DataLoaders, since the others
    launch ranks themselves.
    """
    declaration = declare(spec.declaration)
    inputs, label = in_memory(spec)
    train = declaration.train

    def parts() -> Parts:
        model = build_model(declaration, spec.statistics)
        horizon = train.epochs * (len(label) // train.batch_size)
        return Parts(
            model,
            lambda network: make_optimizer(declaration.optimizer, network),
            inputs,
            label,
            mean_loss(spec),
            train.batch_size,
            train.clip_at,
            horizon,
        )

    loops: dict[str, Segment] = {
        f"DataLoader, {workers} workers": WithDataLoader(parts(), parallel, workers).run
        for workers in (0, 2)
    }
    if parallel.world_size == 1:
        loops |= {
            "Lightning": WithLightning(parts()).run,
            "Accelerate": WithAccelerate(parts()).run,
            "skorch": WithSkorch(parts()).run,
        }
    return loops


class OwnLoop:
    """Parts of the trainer's loop, so that they can take turns with others."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        # evaluation saves nothing: `save` does, and is timed, here
        trainer.state.best_metric = math.inf

    def run(self, steps: int) -> None:
        """Run `steps` optimizer steps, from any place in an epoch."""
        for _ in range(steps):
            self.trainer._train_one_step()

    def epoch(self) -> None:
        """Run the steps of an epoch and its evaluation."""
        self.run(self.trainer.sampler.steps_per_epoch)
        self.trainer._evaluate()

    def save(self) -> None:
        """Save what an epoch with a new best metric saves: the whole state and the weights."""
        trainer = self.trainer
        weights = trainer.layout.full_weights()
        trainer.parallel.on_main(lambda: trainer.checkpoints.save_best(trainer.state.step, weights))
        trainer._save()


def together(parallel: Parallel) -> None:
    """Wait for all ranks and for the device. Call on every rank."""
    if parallel.device.type == "cuda":
        torch.cuda.synchronize(parallel.device)
    parallel.barrier()


def exchange(numbers: int, parallel: Parallel) -> float:
    """Return the seconds to add one float32 number for each parameter over the ranks: median of
    twenty.

    Call on every rank.
    """
    tensor, seconds = torch.zeros(numbers), []
    for _ in range(20):
        parallel.barrier()
        begun = time.perf_counter()
        parallel.all_reduce_sum(tensor)
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


def take_turns(loops: dict[str, Segment], rounds: int, steps: int, parallel: Parallel) -> Seconds:
    """Return the seconds of each loop's segment by round; every round reverses the order."""
    seconds: Seconds = {name: [] for name in loops}
    for number in range(rounds + 1):
        for name in list(loops)[:: 1 if number % 2 else -1]:
            # Deterministic algorithms are part of Bulkhead's promise and cost; a loop written by
            # hand runs without them.
            torch.use_deterministic_algorithms(name == "bulkhead")
            together(parallel)
            begun = time.perf_counter()
            loops[name](steps)
            together(parallel)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def epochs(own: OwnLoop, pairs: int, parallel: Parallel) -> Seconds:
    """Return the seconds of epochs `with` and `without` a checkpoint at their end, in turns, and of
    `save` alone.
    """
    seconds: Seconds = {"with": [], "without": [], "save": []}
    torch.use_deterministic_algorithms(True)
    for number in range(pairs):
        for name in ("with", "without") if number % 2 else ("without", "with"):
            together(parallel)
            begun = time.perf_counter()
            own.epoch()
            trained = time.perf_counter()
            if name == "with":
                own.save()
                seconds["save"].append(time.perf_counter() - trained)
            seconds[name].append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    """Run one rank of the measurement."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loops",
        description="Measure one case; normally started by benchmarks.throughput.",
    )
    for name in ("--config", "--run-dir", "--out"):
        parser.add_argument(name, type=Path, required=True)
    for name, default in (("--rounds", 30), ("--steps", 10), ("--pairs", 0)):
        parser.add_argument(name, type=int, default=default)
    for name in ("--peers", "--alone"):
        parser.add_argument(name, action="store_true")
    options = parser.parse_args()
    spec = read_spec(options.config)
    logging.disable(logging.INFO)
    with Parallel.open("cpu") as parallel:
        own = OwnLoop(Trainer(spec, options.run_dir, parallel, StopSignal()))
        loops: dict[str, Segment] = {"bulkhead": own.run}
        if not options.alone:
            loops |= {
                "careful": HandWritten(spec, parallel, True).run,
                "bare": HandWritten(spec, parallel, False).run,
            }
        loops |= peer_loops(spec, parallel) if options.peers else {}
        found: dict[str, Any] = {
            "segments": take_turns(loops, options.rounds, options.steps, parallel),
            "epochs": epochs(own, options.pairs, parallel),
        }
        found["exchange"] = exchange(own.trainer.num_parameters, parallel)
        if parallel.is_main:
            options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
