"""Repeat a step that was not finite, on one process, and find where that began.

The weights come from the checkpoint before the step, the inputs from each rank's dump. Random
streams start from the same keys; threads, precision and mode are the same. Each rank's share is
computed in turn, then the gradients are added. Nothing is updated or written.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from schemas.config import TrainConfig
from schemas.errors import CheckpointError, ConfigError
from schemas.load import declare
from schemas.records import RunSpec
from training.checkpoint.checkpoint import folder_name
from training.checkpoint.manifest import TRAINER, load_part, shard_name, verify_checkpoint
from training.distributed.layout import Layout
from training.distributed.modes import apply_mode
from training.distributed.parallel import Parallel
from training.engine.augment import Augment
from training.engine.batches import Window
from training.engine.dump import DUMPS, read_dumps, steps_dumped
from training.engine.sampling import Sampler
from training.engine.step import Step
from training.main import read_spec
from training.models.initial import initial_network
from training.models.parameter_names import unfreeze_steps
from training.objectives.losses import make_loss
from training.replay.first_non_finite import Place, Watch
from training.replay.replay_report import Finding, RankReplay, ReplayReport, advice, sentence

NUM_LARGEST = 5
MOST_IDS = 10


def replay(run_dir: Path, step: int | None = None) -> ReplayReport:
    """Repeat a dumped step.

    Args:
        run_dir: directory of a run that stopped because a step was not finite.
        step: the step of the dump's folder; default: the last one.

    Raises:
        ConfigError: the run has no dump of that step.
        IntegrityError: a rank's dump is missing or damaged.
        CheckpointError: the checkpoint before the step is missing or damaged.
    """
    known = steps_dumped(run_dir)
    if not known or (step is not None and step not in known):
        raise ConfigError(
            f"{run_dir / DUMPS}: expected the dump of"
            f" {'a step' if step is None else f'step {step}'}; steps with dumps: {known or 'none'}"
        )
    dumps = read_dumps(run_dir, known[-1] if step is None else step)
    stage = Stage(read_spec(run_dir / "resolved.json"), run_dir, dumps)
    ranks = tuple(stage.rank(dump) for dump in dumps)
    total = [sum(parts[1:], parts[0]) for parts in zip(*stage.gradients, strict=True)]
    finite = all(rank.finite for rank in ranks) and all(
        bool(torch.isfinite(g).all()) for g in total
    )
    return ReplayReport(
        step=dumps[0]["step"],
        checkpoint=stage.checkpoint,
        device=stage.parallel.device.type,
        reproduced=not finite,
        ranks=ranks,
        message=sentence(ranks, finite),
        advice=() if finite else advice(stage.declaration, ranks, dumps[0]["lr"]),
    )


class Stage:
    """Network, loss and settings of the run, for the shares of all ranks in turn.

    Args:
        spec: the run.
        run_dir: contains its checkpoints.
        dumps: dumps of all ranks.
    """

    def __init__(self, spec: RunSpec, run_dir: Path, dumps: list[dict[str, Any]]) -> None:
        self.spec = spec
        self.declaration = declare(spec.declaration, "resolved.json")
        train = self.declaration.train
        self.parallel = Parallel.open(train.device)
        apply_mode(train, len(dumps))
        torch.set_num_threads(dumps[0]["threads"])
        self.weights, self.scaler, self.checkpoint = self._before(
            run_dir / "checkpoints", dumps[0]["step"] - 1
        )
        self.gradients: list[list[Tensor]] = []

    def rank(self, dump: dict[str, Any]) -> RankReplay:
        """Repeat the share of one rank; if it is not finite, monitor every module and repeat it."""
        window = Window(**_to(dump["window"], self.parallel.device))
        step = self._step(self.declaration.train, window)
        step.gradients(window)
        losses = [float(loss) for loss in step.trace.losses]
        gradients = list(step.trace.gradients.values())
        self.gradients.append([g.detach().cpu() for g in gradients])
        finite = all(map(math.isfinite, losses)) and all(
            bool(torch.isfinite(g).all()) for g in gradients
        )
        norm = torch.linalg.vector_norm(step.trace.norms)
        finding, largest = (None, {}) if finite else self._locate(window, dump)
        return RankReplay(
            rank=dump["rank"],
            finite=finite,
            loss=f"{sum(losses):.6g}",
            grad_norm=f"{float(norm):.6g}",
            same_losses=list(map(repr, losses)) == list(map(repr, dump["losses"])),
            finding=finding,
            largest_activations=largest,
        )

    def _locate(
        self, window: Window, dump: dict[str, Any]
    ) -> tuple[Finding | None, dict[str, float]]:
        step = self._step(
            self.declaration.train.model_copy(
                update={"compile": False, "recompute_activations": False}
            ),
            window,
        )
        with Watch(step.model) as watch:
            step.gradients(window)
        place = watch.forward or watch.backward
        largest = dict(sorted(watch.largest.items(), key=lambda item: -item[1])[:NUM_LARGEST])
        return (
            place
            and self._finding(
                place, window, step.trace.spans[place.micro_batch][0], dump["row_ids"]
            ),
            largest,
        )

    def _finding(self, place: Place, window: Window, begin: int, ids: list[str]) -> Finding:
        rows = [begin + row for row in place.rows]
        column, value = self._largest_input(window, rows)
        return Finding(
            direction=place.direction,
            module=place.module,
            kind=place.kind,
            micro_batch=place.micro_batch,
            rows=len(rows),
            row_ids=tuple(ids[row] for row in rows[:MOST_IDS] if row < len(ids)),
            column=column,
            largest_input=value,
        )

    def _largest_input(self, window: Window, rows: list[int]) -> tuple[str, str]:
        """Return the numeric column with the largest magnitude of the rows, and its value."""
        if not rows or "numeric" not in window.batch:
            return "", ""
        values = window.batch["numeric"][rows]
        row, column = divmod(int(values.abs().nan_to_num(nan=torch.inf).argmax()), values.shape[1])
        names = [s.name for s in self.spec.statistics.numeric]
        return (
            names[column] if column < len(names) else f"indicator {column - len(names)}"
        ), f"{float(values[row, column]):.6g}"

    def _step(self, train: TrainConfig, window: Window) -> Step:
        """Return the parts of a step, with the weights before it."""
        network = initial_network(self.declaration, self.spec.statistics, self.spec.init)
        model = network.to(self.parallel.device)
        _load(model, self.weights)
        loss = make_loss(self.declaration, self.spec.statistics).to(self.parallel.device)
        augment = Augment(
            train.augment, sum(s.indicator for s in self.spec.statistics.numeric), window.batch
        )
        # used for its parameters only: nothing is updated
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        layout = Layout(model, self.parallel, train)
        waiting = unfreeze_steps(model, self.declaration.model)
        step = Step(layout, loss, optimizer, train, augment, self._total_steps(), waiting)
        if self.scaler:
            step.scaler.load_state_dict(self.scaler)
        return step

    def _total_steps(self) -> int:
        train = self.declaration.train
        rows = self.spec.arrays.train.rows
        return (
            train.epochs
            * Sampler(rows, train.batch_size, train.seed, train.drop_last).steps_per_epoch
        )

    def _before(self, root: Path, step: int) -> tuple[list[dict[str, Tensor]], dict[str, Any], str]:
        """Return weights (or slices by rank) and loss scale after `step` steps, and their source.

        Raises:
            CheckpointError: the checkpoint is missing or damaged.
        """
        folder = root / folder_name("step", step)
        if step == 0 and not folder.exists():
            return [], {}, "the initial weights"
        if not folder.exists():
            raise CheckpointError(
                f"{folder}: expected the checkpoint before the step that failed, found none;"
                " without its weights the step cannot be made again"
            )
        manifest = verify_checkpoint(folder)
        scaler = load_part(folder, TRAINER, manifest)["scaler"]
        if not manifest.num_shards:
            return [load_part(folder, "model.pt", manifest)], scaler, str(folder)
        names = [shard_name(rank, manifest.num_shards) for rank in range(manifest.num_shards)]
        return [load_part(folder, name, manifest)["model"] for name in names], scaler, str(folder)


def _load(model: nn.Module, slices: list[dict[str, Tensor]]) -> None:
    """Load whole weights, or join slices along dimension 0; None keeps the initial ones."""
    if not slices:
        return
    whole = {}
    for name, target in model.state_dict().items():
        parts = [part[name] for part in slices]
        whole[name] = (
            parts[0]
            if parts[0].shape == target.shape
            else torch.cat([part for part in parts if part.numel()])
        )
    model.load_state_dict(whole)


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {name: _to(inner, device) for name, inner in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value
