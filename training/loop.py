"""Training from the first step, or from the newest verified checkpoint, to the best weights by validation.

The loop has one position, `state.step`. At each boundary it evaluates if that is due, saves, and stops if that was
agreed; otherwise it makes the next step. Whatever it does next follows from the state alone, so a run that was
killed anywhere goes on from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import io
import logging
import resource
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml

from schemas import digest
from schemas.errors import NonFiniteError, TrainingError, first_few
from schemas.load import declare
from schemas.records import RunSpec, TrainReport
from training import keys
from training.batches import TARGETS, Window, WindowReader, as_tensors, to_device_if_it_fits
from training.checkpoint import FULL, Checkpoints, folder_name
from training.data.shards import load_arrays
from training.dump import examine, write_dump
from training.guard import StopSignal
from training.health import GradientHealth, layer_norms
from training.journal import Journal, Values
from training.losses import make_loss
from training.models.build import build_model
from training.modes import apply_mode, promise
from training.optim import describe_rates, make_optimizer
from training.parallel import Parallel
from training.sampling import Sampler, require_enough_rows
from training.schedule import Schedule
from training.scoring import measure, require_finite, score_tensors
from training.state import TrainerState, environment, identity, model_digest
from training.step import Gate, Step

log = logging.getLogger("training")

Status = Literal["finished", "stopped_early", "interrupted"]
RESULT = "result.json"


def train(spec: RunSpec, run_dir: Path, parallel: Parallel, stop: StopSignal) -> TrainReport:
    """Train the run to its end, or to the next step boundary after a stop; `result.json` holds what is returned. Collective.

    Started again on the same run directory it goes on from the newest verified checkpoint; a finished run
    returns its report at once.

    Raises:
        CheckpointError: no checkpoint verifies, or they belong to another run.
        NonFiniteError: loss, gradient or scores are not finite; nothing was updated, and a dump was written.
        DataError, IntegrityError, ConfigError: the arrays or the declaration cannot be trained on.
    """
    finished = parallel.on_main(lambda: finished_report(run_dir, spec.run_id))
    if finished is not None:
        log.info("%s is finished already: best %s %.6g at step %d", spec.run_id, finished["metric"], finished["best_metric"], finished["best_step"])
        return TrainReport.model_validate(finished)
    return Trainer(spec, run_dir, parallel, stop).run()


def finished_report(run_dir: Path, run_id: str) -> dict[str, Any] | None:
    """The report of a run that ended by itself and whose best weights verify; None where there is still work to do."""
    try:
        report = TrainReport.model_validate_json((run_dir / RESULT).read_bytes())
        digest.verify(report.best_checkpoint)
    except (OSError, ValueError):
        return None
    return report.model_dump(mode="json") if report.run_id == run_id and report.status != "interrupted" else None


class Trainer:
    """One run on one rank.

    Args:
        spec: `resolved.json`.
        run_dir: written by rank 0 only, except dumps.
        parallel: the ranks.
        stop: asked at each step.
    """

    def __init__(self, spec: RunSpec, run_dir: Path, parallel: Parallel, stop: StopSignal) -> None:
        self.spec, self.run_dir, self.parallel, self.stop = spec, run_dir, parallel, stop
        self.declaration = declare(spec.declaration, "resolved.json")
        self.train = self.declaration.train
        apply_mode(self.train, parallel.local_world_size)
        keys.seed_process(self.train.seed)
        self.promise = promise(self.train, parallel.world_size)
        self.started = time.monotonic()
        run_dir.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(run_dir / "metrics.jsonl" if parallel.is_main else None)
        self._open_data()
        self._build()
        self._resume()
        self._wrap()

    # ------------------------------------------------------------------------------------- start

    def _open_data(self) -> None:
        arrays = self.spec.arrays
        require_enough_rows(arrays.train.rows, self.parallel.world_size)
        verify = self.parallel.local_rank == 0  # once a machine: its ranks map the same files
        train, val = (load_arrays(side, verify=verify) for side in (arrays.train, arrays.val))
        self.train_tensors = to_device_if_it_fits(as_tensors(train), self.parallel.device)
        self.val_inputs = {name: t for name, t in as_tensors(val).items() if name not in TARGETS}
        self.val_targets = {name: val[name] for name in TARGETS if name in val}
        # The train rows that are scored at each evaluation: rows are ordered by the hash of their id, so the first are a random sample.
        self.train_eval_rows = min(arrays.train.rows, arrays.val.rows)
        self.train_targets = {name: train[name][: self.train_eval_rows] for name in TARGETS if name in train}

    def _build(self) -> None:
        declaration, device = self.declaration, self.parallel.device
        self.sampler = Sampler(self.spec.arrays.train.rows, self.train.batch_size, self.train.seed, self.train.drop_last, self.train_tensors["label"].device)
        self.total_steps = self.train.epochs * self.sampler.steps_per_epoch
        self.model = build_model(declaration, self.spec.statistics).to(device)
        self.host_loss = make_loss(declaration, self.spec.statistics)
        self.loss = make_loss(declaration, self.spec.statistics).to(device)
        rates = declaration.optimizer.scaled(self.train.batch_size)
        self.optimizer = make_optimizer(rates, self.model)
        self.schedule = Schedule(declaration.schedule, rates.lr, self.total_steps, declaration.greater_is_better)
        self.state = TrainerState()
        self.health = GradientHealth()
        facts = identity(self.spec, declaration, self.parallel.world_size), environment(device)
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints", *facts, self.train.keep, self.journal.event)

    def _resume(self) -> None:
        """Take the state of the newest checkpoint that verifies, if there is one."""
        step = self.parallel.on_main(self.checkpoints.newest)
        if step is not None:
            parts = self.checkpoints.load(step)
            self.model.load_state_dict(parts["model.pt"])
            self.optimizer.load_state_dict(parts["optimizer.pt"])
            self.schedule.load_state_dict(parts["trainer.pt"]["schedule"])
            self.state = TrainerState.from_state_dict(parts["trainer.pt"]["state"])
            streams = parts["trainer.pt"]["rng"]
            if self.parallel.rank < len(streams):
                keys.restore(streams[self.parallel.rank], self.parallel.device)
        self.journal.rewind(self.state.step, self.state.evaluated_step)
        self._mark_position()
        if step is not None:
            self.journal.event(f"resumed from {folder_name('step', step)}")
        self.saved_step = self.state.step
        self.seconds_before = self.state.seconds
        self.since_log = (time.monotonic(), self.state.rows)

    def _wrap(self) -> None:
        self.reader = WindowReader(self.train_tensors, self.sampler, self.loss, self.parallel)
        self.step = Step(self.model, self.parallel.wrap(self.model), self.loss, self.optimizer, parallel=self.parallel, train=self.train)
        if self.state.step < self.total_steps:
            self.step.rehearse(self.reader.read(self.state.step))
        self.schedule.apply(self.optimizer, self.state.step)
        self.parallel.on_main(self._announce)

    def _announce(self) -> None:
        (self.run_dir / RESULT).unlink(missing_ok=True)  # of an interrupted run that goes on now
        config = self.run_dir / "config.yaml"
        if not config.exists():
            digest.write_atomic(config, yaml.safe_dump(self.spec.declaration, sort_keys=False, allow_unicode=True))
        parameters = sum(p.numel() for p in self.model.parameters())
        rows = f"{self.spec.arrays.train.rows} train rows, {self.sampler.steps_per_epoch} steps an epoch, {self.train.epochs} epochs"
        log.info("%s: %d parameters, %s, %d ranks on %s", self.spec.run_id, parameters, rows, self.parallel.world_size, self.parallel.device.type)
        log.info("%s", describe_rates(self.optimizer))
        log.info("promise: %s", self.promise)

    # -------------------------------------------------------------------------------------- loop

    def run(self) -> TrainReport:
        """Steps and evaluations to the end, an early stop, or an agreed stop. Collective."""
        stopping = False
        while True:
            due = self._evaluation_is_due()
            if due and not stopping:
                self._evaluate()
                self._save()
                stopping = self.parallel.any(self.stop.requested)
            elif not due and self.state.waited >= self.train.patience:
                return self._finish("stopped_early")
            elif not due and self.state.step >= self.total_steps:
                return self._finish("finished")
            elif stopping:
                return self._finish("interrupted")
            else:
                stopping = self._train_one_step()
                if stopping or self._checkpoint_is_due():
                    self._save()

    def _train_one_step(self) -> bool:
        """zero_grad, micro-batches, clip, gate, update, schedule; whether a stop was agreed."""
        begun = time.monotonic()
        step = self.state.step
        window = self.reader.read(step)
        keys.seed_window(self.train.seed, self.sampler.epoch(step), step, self.parallel.rank, self.parallel.device)
        self.step.gradients(window)
        grad_norm = self.step.clip()
        if step + 1 < self.total_steps:
            self.reader.prefetch(step + 1)
        gate = self.step.gate(window, grad_norm, self.stop.requested)
        if not gate.finite:
            self._stop_on_non_finite(window, gate)
        self.step.update()
        rate = self.schedule.rate(step)
        self.schedule.apply(self.optimizer, step + 1)
        self._count(window, gate, begun)
        if self.state.step % self.train.log_every == 0:
            self._log_step(gate, rate)
        return gate.stop

    def _count(self, window: Window, gate: Gate, begun: float) -> None:
        state = self.state
        state.step += 1
        state.rows += len(window.rows)
        state.loss_sum += gate.loss * gate.weight_sum
        state.weight_sum += gate.weight_sum
        state.train_seconds += time.monotonic() - begun

    def _log_step(self, gate: Gate, rate: float) -> None:
        layers = layer_norms(self.step.trace.grad_norms())
        self._mark_position()
        now, rows = time.monotonic(), self.state.rows
        speed = (rows - self.since_log[1]) / max(now - self.since_log[0], 1e-9)
        self.since_log = (now, rows)
        values: Values = {
            "train/loss": gate.loss,
            "lr": rate,
            "grad_norm": gate.grad_norm,
            "rows_per_second": speed,
            "memory_mb": memory_mb(self.parallel.device),
        }
        self.journal.values("step", values | {f"grad_norm/{layer}": norm for layer, norm in layers.items()})
        for note in self.health.observe(self.state.step, layers, gate.grad_norm):
            self.state.instabilities.append(note)
            self.journal.event(note)

    def _mark_position(self) -> None:
        self.journal.at(self.state.step, self.sampler.epoch(max(self.state.step - 1, 0)) + 1)

    def _checkpoint_is_due(self) -> bool:
        every = self.train.checkpoint_every
        return every is not None and self.state.step % every == 0 and not self._evaluation_is_due()  # an evaluation saves

    # -------------------------------------------------------------------------------- evaluation

    def _evaluation_is_due(self) -> bool:
        step, every = self.state.step, self.train.eval_every or self.sampler.steps_per_epoch
        return step > self.state.evaluated_step and (step % every == 0 or step == self.total_steps)

    def _evaluate(self) -> None:
        """Score validation and a slice of train in eval mode; keep the weights if they are the best so far. Collective."""
        self.parallel.sync_buffers(self.model)
        size = self.train.micro_batch_size or self.train.batch_size
        inputs = {name: t for name, t in self.train_tensors.items() if name not in TARGETS}
        val = score_tensors(self.model, self.val_inputs, self.spec.arrays.val.rows, size, self.parallel)
        train = score_tensors(self.model, inputs, self.train_eval_rows, size, self.parallel)
        require_finite(val, self.spec.arrays.val)
        require_finite(train, self.spec.arrays.train)
        values = self.parallel.on_main(lambda: self._measure(val, train))
        metric = values[f"val/{self.declaration.metric}"]
        if metric is None:
            raise TrainingError(
                f"{self.declaration.metric} is not defined on the {len(val)} validation rows (a single class, or a constant label?), so no best weights can be chosen; "
                "choose another train.metric, or a split whose validation side has every class"
            )
        better = self.state.observe(metric, self.declaration.greater_is_better, self.train.min_delta)
        self.schedule.observe(metric)
        self.schedule.apply(self.optimizer, self.state.step)
        if better:
            self.parallel.on_main(lambda: self.checkpoints.save_best(self.state.step, self.model.state_dict()))
        self._mark_position()
        self.journal.values("evaluation", values | {"best": float(better)})
        self._log_evaluation(values, better)
        self.since_log = (time.monotonic(), self.state.rows)

    def _measure(self, val: np.ndarray, train: np.ndarray) -> Values:
        sides = {"val": (val, self.val_targets), "train_eval": (train, self.train_targets)}
        figures: Values = {"train/loss": self.state.loss_sum / max(self.state.weight_sum, np.finfo(float).tiny)}
        for side, (scores, targets) in sides.items():
            found = measure(self.declaration, self.spec.statistics, self.host_loss, scores, targets)
            figures |= {f"{side}/{name}": value for name, value in found.items()}
        return figures

    def _log_evaluation(self, values: Values, better: bool) -> None:
        name = self.declaration.metric
        waited = "best" if better else f"{self.state.waited} of {self.train.patience} without improvement"
        log.info(
            "epoch %d/%d step %d/%d: train loss %.5g, val loss %.5g, val %s %.5g (%s), %.0f rows/s",
            *(self.sampler.epoch(self.state.step - 1) + 1, self.train.epochs, self.state.step, self.total_steps),
            *(values["train/loss"], values["val/loss"], name, values[f"val/{name}"], waited, self._rows_per_second()),
        )

    # ----------------------------------------------------------------------------------- save, end

    def _rows_per_second(self) -> float:
        return self.state.rows / max(self.state.train_seconds, 1e-9)

    def _save(self) -> None:
        """Commit everything that the next step depends on. Collective."""
        if self.saved_step == self.state.step and self.state.evaluated_step != self.state.step:
            return
        self.state.seconds = self.seconds_before + time.monotonic() - self.started
        stream = io.BytesIO()
        torch.save(keys.capture(self.parallel.device), stream)
        streams = [torch.load(io.BytesIO(data), weights_only=True) for data in self.parallel.gather_bytes(stream.getvalue())]
        trainer = {"state": self.state.state_dict(), "schedule": self.schedule.state_dict(), "rng": streams}
        parts = dict(zip(FULL, (self.model.state_dict(), self.optimizer.state_dict(), trainer), strict=True))
        self.journal.sync()
        self.parallel.on_main(lambda: self.checkpoints.save(self.state.step, self.state.best_step, parts))
        self.saved_step = self.state.step

    def _finish(self, status: Status) -> TrainReport:
        """Restore the best weights and write `result.json`. Collective."""
        report = TrainReport.model_validate(self.parallel.on_main(lambda: self._report(status).model_dump(mode="json")))
        best = f"best {report.metric} {report.best_metric:.6g} at step {report.best_step}" if report.best_metric is not None else "not evaluated yet"
        reason = f" by {self.stop.reason or 'a signal to another rank'}" if status == "interrupted" else ""
        message = f"{status.replace('_', ' ')}{reason} at step {report.steps}: {best}, {report.rows_per_second:.0f} rows/s"
        if status == "finished":
            log.info("%s", message)
        else:
            self.journal.event(message)
        return report

    def _report(self, status: Status) -> TrainReport:
        if self.state.best_step:
            kind, step = "best", self.state.best_step
            self.model.load_state_dict(self.checkpoints.load_best(step))
        else:
            kind, step = "step", self.state.step
        report = TrainReport(
            run_id=self.spec.run_id,
            status=status,
            epochs=self.sampler.epoch(self.state.step - 1) + 1,
            steps=self.state.step,
            best_step=self.state.best_step,
            best_metric=self.state.best_metric,
            metric=self.declaration.metric,
            seconds=self.seconds_before + time.monotonic() - self.started,
            world_size=self.parallel.world_size,
            num_parameters=sum(p.numel() for p in self.model.parameters()),
            best_checkpoint=digest.file_ref(self.run_dir / "checkpoints" / folder_name(kind, step) / "model.pt"),
            model_sha256=model_digest(self.model.state_dict()),
            rows_per_second=self._rows_per_second(),
            instabilities=tuple(self.state.instabilities),
            promise=self.promise,
        )
        digest.write_atomic(self.run_dir / RESULT, report.model_dump_json(indent=1))
        return report

    # ----------------------------------------------------------------------------------- non-finite

    def _stop_on_non_finite(self, window: Window, gate: Gate) -> None:
        """Write this rank's dump, agree on the cause, and raise it on every rank. Collective.

        Raises:
            NonFiniteError: always.
        """
        place = {
            "step": self.state.step + 1,
            "epoch": self.sampler.epoch(self.state.step) + 1,
            "lr": self.schedule.rate(self.state.step),
            "seed": self.train.seed,
        }
        found = examine(window, self.step.trace, self.train.micro_batch_size, self.spec.arrays.train)
        content = {**place, "rank": self.parallel.rank, "rng": keys.capture(self.parallel.device), **found}
        folder = write_dump(self.run_dir, content)
        cause = f"{found['cause']} on rank {self.parallel.rank} (first rows: {first_few(found['row_ids'])})" if found["cause"] else ""
        causes = [text.decode() for text in self.parallel.gather_bytes(cause.encode()) if text]
        # After the exchange every rank has the gradient that is not finite; the loss tells where it began.
        what = min(causes, key=lambda text: not text.startswith("loss")) if causes else f"loss is {gate.loss}, gradient norm is {gate.grad_norm}"
        message = f"{what}, at step {place['step']}, epoch {place['epoch']}, learning rate {place['lr']:.3g}; no parameter was changed by this step"
        self._mark_position()
        self.journal.event(f"stopped: {message}")
        raise NonFiniteError(f"{message}; see {folder.parent}, lower optimizer.lr, or check those rows")


def memory_mb(device: torch.device) -> float:
    """Peak memory in MiB: of the device, or of this process on the CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
