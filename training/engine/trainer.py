"""Training from the first step or the newest verified checkpoint to the best validation weights.

The loop has one position, `state.step`. At each boundary it evaluates if due, saves, and stops if
the ranks agreed; otherwise it makes the next step. What it does next depends only on the state. A
run that was killed anywhere continues from its last checkpoint as if nothing had happened.

A launched step counts once its gate is read (`_settle`). On the CPU that is at once. Where waiting
is expensive, it is after the launch of the next backward pass, and before anything that needs the
state: an update, an evaluation, a checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml
from torch import Tensor

from schemas import digest
from schemas.load import declare
from schemas.observed import Observed
from schemas.records import RunSpec, TrainReport
from schemas.seal import remove_sealed, write_sealed
from training.checkpoint import randomness as keys
from training.checkpoint.checkpoint import Checkpoints, folder_name
from training.checkpoint.resumable import Resumable
from training.checkpoint.state import TrainerState, environment, identity
from training.data.arrays.shards import load_arrays
from training.distributed.average import Average
from training.distributed.layout import Layout
from training.distributed.modes import apply_mode, leave_memory_unfilled, promise
from training.distributed.parallel import Parallel
from training.engine.augment import Augment
from training.engine.batches import WindowReader, as_tensors, to_device_if_it_fits
from training.engine.boundaries import Boundaries
from training.engine.failure import explained, non_finite
from training.engine.observer import Witness
from training.engine.profiling import StepProfiler
from training.engine.result import Status, best_weights, finished_report, in_words
from training.engine.sampling import Sampler, require_enough_rows
from training.engine.scoring import Interrupted
from training.engine.step import Launched, Step
from training.engine.step_metrics import StepLog
from training.engine.validation import Validation
from training.launch.stop_signal import StopSignal
from training.models.initial import initial_network
from training.models.parameter_names import unfreeze_steps
from training.objectives.losses import make_loss
from training.optim.optimizer import describe_rates, make_optimizer
from training.optim.schedule import Schedule
from training.run.crash_points import reach
from training.run.lease import always, one_writer
from training.run.metrics_file import Journal, Values
from training.run.record import RESULT

log = logging.getLogger("training")


def train(spec: RunSpec, run_dir: Path, parallel: Parallel, stop: StopSignal) -> TrainReport:
    """Train to the end, or to the next boundary after a stop; return `result.json`. Collective.

    Restarted on the same run directory it continues from the newest verified checkpoint; a finished
    run returns its report at once.

    Raises:
        LeaseError: another process trains in this run directory.
        CheckpointError: no checkpoint verifies, or they belong to another run.
        NonFiniteError: loss, gradient or scores are not finite; nothing was updated, and a dump was
            written.
        DataError, IntegrityError, ConfigError: the arrays or the declaration are not valid for
            training.
    """
    finished = parallel.on_main(lambda: finished_report(run_dir, spec.run_id))
    if finished is not None:
        report = TrainReport.model_validate(finished)
        log.info("%s is finished already: %s", spec.run_id, in_words(report, ""))
        return report
    with one_writer(run_dir, parallel, lambda: stop.requested) as lease:
        trainer = Trainer(spec, run_dir, parallel, stop, lease.check)
        stop.ready()
        return trainer.run()


class Trainer:
    """One run on one rank.

    Args:
        spec: `resolved.json`.
        run_dir: only rank 0 writes to it, except dumps.
        parallel: the ranks.
        stop: called at each step.
        allowed: called before rank 0 writes; raises if this process may no longer write.
    """

    def __init__(
        self,
        spec: RunSpec,
        run_dir: Path,
        parallel: Parallel,
        stop: StopSignal,
        allowed: Callable[[], None] = always,
    ) -> None:
        self.spec, self.run_dir, self.parallel = spec, run_dir, parallel
        self.stop, self.allowed = stop, allowed
        self.declaration = declare(spec.declaration, "resolved.json")
        self.train = self.declaration.train
        apply_mode(self.train, parallel.local_world_size)
        keys.seed_process(self.train.seed)
        self.promise = promise(self.train, parallel.world_size)
        self.started = time.monotonic()
        run_dir.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(run_dir / "metrics.jsonl" if parallel.is_main else None, allowed)
        self._open_data()
        self._build()
        self._resume()
        self._rehearse()

    # ------------------------------------------------------------------------------------- start

    def _open_data(self) -> None:
        arrays = self.spec.arrays
        require_enough_rows(arrays.train.rows, self.parallel.world_size)
        # compares digests, once per machine: its ranks map the same files
        first = self.parallel.local_rank == 0
        train, val = (load_arrays(side, first) for side in (arrays.train, arrays.val))
        self.train_tensors = to_device_if_it_fits(as_tensors(train), self.parallel.device)
        self.validation = Validation(self.spec, self.declaration, self.train_tensors, val)
        reach("start.data_open")

    def _build(self) -> None:
        declaration, device, train = self.declaration, self.parallel.device, self.train
        rows, where = self.spec.arrays.train.rows, self.train_tensors["label"].device
        self.sampler = Sampler(rows, train.batch_size, train.seed, train.drop_last, where)
        refit, per_epoch = self.spec.refit, self.sampler.steps_per_epoch
        self.total_steps = refit.steps if refit else train.epochs * per_epoch
        self.boundaries = Boundaries(train, per_epoch, self.total_steps, refit is not None)
        self.model = initial_network(declaration, self.spec.statistics, self.spec.init).to(device)
        leave_memory_unfilled()
        self.num_parameters = sum(p.numel() for p in self.model.parameters())
        self.layout = Layout(self.model, self.parallel, train)
        self.loss = make_loss(declaration, self.spec.statistics).to(device)
        rates = declaration.optimizer.scaled(train.batch_size)
        waiting = unfreeze_steps(self.model, declaration.model)
        self.optimizer = make_optimizer(rates, self.model, bool(waiting))
        planned = refit.schedule_steps if refit else self.total_steps
        greater = declaration.greater_is_better
        self.schedule = Schedule(declaration.schedule, rates.lr, planned, greater)
        indicators = sum(s.indicator for s in self.spec.statistics.numeric)
        augment = Augment(train.augment, indicators, self.train_tensors)
        self.step = Step(self.layout, self.loss, self.optimizer, train, augment, planned, waiting)
        self.average = Average(self.model, train.ema)
        self.resumable = Resumable(
            self.layout, self.optimizer, self.schedule, self.step.scaler, self.average
        )
        self.step_log = StepLog(self.journal, device, self.step.scaler.is_enabled())
        self.launched: Launched | None = None
        facts = identity(self.spec, declaration, self.parallel.world_size), environment(device)
        self.checkpoints = Checkpoints(
            self.run_dir / "checkpoints", *facts, train.keep, self.journal.event, self.allowed
        )

    @property
    def state(self) -> TrainerState:
        """Position, best result and patience."""
        return self.resumable.state

    def _resume(self) -> None:
        """Restore the newest checkpoint that verifies, if there is one."""
        step = self.parallel.on_main(self.checkpoints.newest)
        if step is not None:
            self.resumable.restore(self.checkpoints, step)
        self.journal.rewind(self.state.step, self.state.evaluated_step)
        self._mark_position()
        if step is not None:
            self.journal.event(f"resumed from {folder_name('step', step)}")
        self.saved_step = self.state.step
        self.between_updates = True
        self.seconds_before = self.state.seconds
        self.step_log.begin(self.state.rows)
        reach("start.resumed")

    def _rehearse(self) -> None:
        logical = self.train.logical_shards if self.layout.kind == "logical" else None
        self.reader = WindowReader(
            self.train_tensors, self.sampler, self.loss, self.parallel, logical
        )
        if self.state.step < self.total_steps:
            self.step.rehearse(self.reader.read(self.state.step))
        self.schedule.apply(self.optimizer, self.state.updates)
        self.witness = Witness(self.step, self.schedule, self.sampler, self.state)
        self.parallel.on_main(self._announce)
        self.profiler = StepProfiler(
            self.train.profile,
            self.run_dir,
            self.parallel,
            self.state.step,
            self.total_steps,
            self.allowed,
        )
        reach("start.rehearsed")

    def _announce(self) -> None:
        self.allowed()
        digest.remove_leftovers(self.run_dir)
        remove_sealed(self.run_dir / RESULT)  # of an interrupted run that continues now
        if not (config := self.run_dir / "config.yaml").exists():
            digest.write_atomic(
                config, yaml.safe_dump(self.spec.declaration, sort_keys=False, allow_unicode=True)
            )
        rows = (
            f"{self.spec.arrays.train.rows} train rows, {self.sampler.steps_per_epoch} steps an"
            f" epoch, {self.train.epochs} epochs"
        )
        log.info(
            "%s: %d parameters, %s, %d ranks on %s",
            self.spec.run_id,
            self.num_parameters,
            rows,
            self.parallel.world_size,
            self.parallel.device.type,
        )
        log.info("%s; promise: %s", describe_rates(self.optimizer), self.promise)

    # -------------------------------------------------------------------------------------- loop

    def run(self) -> TrainReport:
        """Run steps and evaluations to the end, an early stop, or an agreed stop. Collective.

        Raises:
            OutOfMemoryError: memory ran out on this rank; rank 0 saved the last step boundary.
        """
        try:
            return self._loop()
        except Exception as error:
            told = explained(
                error,
                self.declaration,
                self.state.step + (self.launched is not None),
                self.parallel.rank,
                self._save_alone,
            )
            if told is error:
                raise
            raise told from error

    def _loop(self) -> TrainReport:
        stopping = False
        while True:
            due = self.state.step > self.state.evaluated_step and self.boundaries.evaluation(
                self.state.step
            )
            if due and not stopping:
                with self.average.applied():
                    stopping = self._keep_last() if self.spec.refit else self._evaluate()
                self._save()
            elif not due and self.state.waited >= self.state.allowed(self.train):
                return self._finish("stopped_early")
            elif not due and self.state.step >= self.total_steps:
                return self._finish("finished")
            elif stopping:
                return self._finish("interrupted")
            else:
                stopping = self._train_one_step()
                if stopping or self.boundaries.checkpoint(self.state.step):
                    self._save()

    def _train_one_step(self) -> bool:
        """Run one step: zero_grad, micro-batches, clip, gate, update, schedule; True if a stop is
        agreed.
        """
        begun = time.monotonic()
        step = self.state.step + (self.launched is not None)
        reach("step.begun")
        window = self.reader.read(step)
        self.step.gradients(window, lambda: self.stop.requested)
        reach("step.backward")
        if self._settle():  # agreed in the step before: the resumed run makes this one
            self.step.undo()
            return True
        grad_norm = self.step.clip()
        if step + 1 < self.total_steps:
            self.reader.prefetch(step + 1)
        launched = Launched(
            window,
            self.step.gate(window, grad_norm),
            self.schedule.rate(self.state.updates),
            self.step.boundary,
        )
        reach("step.gated")
        self.between_updates = False
        self.step.update(launched.gate)
        self.launched, self.between_updates = launched, True
        self.state.train_seconds += time.monotonic() - begun
        stopping = (
            self._settle()
            if not self.step.ahead or self.boundaries.needs_state(step + 1)
            else False
        )
        self.profiler.step(step + 1)
        return stopping

    def _settle(self) -> bool:
        """Count and log the launched step, or raise if it is not finite; True if a stop was
        agreed.
        """
        launched = self.launched
        if launched is None:
            return False
        if launched.gate.failed:
            self._stop_on_non_finite(launched)
        self._count(launched)
        reach("step.updated")
        if self.state.step % self.train.log_every == 0 and not launched.gate.overflowed:
            self._mark_position()
            self.step_log.write(launched.gate, launched.rate, self.state)
        return launched.gate.stop

    def _count(self, launched: Launched) -> None:
        """Return the state after a step."""
        gate, self.between_updates = launched.gate, False
        self.state.count(
            len(launched.window.rows), gate.loss, gate.weight_sum, updated=not gate.overflowed
        )
        if not gate.overflowed:  # the next update is not launched yet
            self.average.update(self.state.updates)
        self.schedule.apply(self.optimizer, self.state.updates)
        self.launched, self.between_updates = None, True

    def _take_or_undo(self, launched: Launched) -> None:
        """Count a launched step without the other ranks, or undo it; a step that fails changed no
        weights.
        """
        if launched.gate.failed:
            self.step.undo(launched.boundary)
        else:
            self._count(launched)

    def _mark_position(self) -> None:
        self.journal.at(self.state.step, self.sampler.epoch(max(self.state.step - 1, 0)) + 1)

    # -------------------------------------------------------------------------------- evaluation

    def _evaluate(self) -> bool:
        """Score validation and a train sample in eval mode; keep the best weights. Collective.

        Returns:
            True if a stop was agreed, perhaps before all rows were scored; this evaluation is then
            repeated.
        """
        reach("evaluation.begun")
        try:
            scores = self.validation.scores(self.layout, lambda: self.stop.requested)
        except Interrupted:
            return True
        reach("evaluation.scored")
        values = self.parallel.on_main(
            lambda: self.stop.unless_stopped(lambda: self._measure(*scores))
        )
        if values is None:
            return True
        reach("evaluation.measured")
        metric = self.validation.deciding(values)
        self.between_updates = False
        better = self.state.observe(
            metric, self.declaration.greater_is_better, self.train.min_delta
        )
        self.schedule.observe(metric)
        self.schedule.apply(self.optimizer, self.state.updates)
        if better:
            weights = self.layout.full_weights()
            self.parallel.on_main(lambda: self.checkpoints.save_best(self.state.step, weights))
        reach("evaluation.best_saved")
        self._mark_position()
        self.journal.values("evaluation", values | {"best": float(better)})
        self._log_evaluation(values, better)
        self.step_log.begin(self.state.rows)
        return self.parallel.any(self.stop.requested)

    def _keep_last(self) -> bool:
        """Keep the weights of a refit's last step; True if a stop was agreed. Collective."""
        self.between_updates = False
        self.state.evaluated_step = self.state.best_step = self.state.step
        weights = self.layout.full_weights()
        self.parallel.on_main(lambda: self.checkpoints.save_best(self.state.step, weights))
        return self.parallel.any(self.stop.requested)

    def _measure(self, val: np.ndarray, train: np.ndarray) -> Values:
        reach("evaluation.measuring")
        figures: Values = {
            "train/loss": self.state.loss_sum / max(self.state.weight_sum, np.finfo(float).tiny)
        }
        return figures | self.validation.measure(val, train)

    def _log_evaluation(self, values: Values, better: bool) -> None:
        name, epoch = self.declaration.metric, self.sampler.epoch(self.state.step - 1) + 1
        waited = (
            "best"
            if better
            else f"{self.state.waited} of {self.state.allowed(self.train)} without improvement"
        )
        place = f"epoch {epoch}/{self.train.epochs} step {self.state.step}/{self.total_steps}"
        figures = "train loss %.5g, val loss %.5g, val %s %.5g (%s), %.0f rows/s"
        log.info(
            f"{place}: {figures}",
            values["train/loss"],
            values["val/loss"],
            name,
            values[f"val/{name}"],
            waited,
            self.state.rows_per_second,
        )

    # ----------------------------------------------------------------------------------- save, end

    def _save(self) -> None:
        """Commit a checkpoint of this step, once. Collective."""
        if self.saved_step != self.state.step or not self.between_updates:
            self.state.seconds = self.seconds_before + time.monotonic() - self.started
            self.journal.sync()
            self.resumable.save(self.checkpoints)
            self.saved_step = self.state.step
        self.between_updates = True

    def _save_alone(self) -> str:
        """Save after a failure without the other ranks; return a description of what is saved."""
        if not self.between_updates:
            return "the last checkpoint stands"
        if not self.parallel.is_main:
            return "rank 0 saves what was reached"
        self.step.undo()
        if self.launched is not None:
            self._take_or_undo(self.launched)
        if self.saved_step != self.state.step and not self.resumable.save_alone(self.checkpoints):
            return "the last checkpoint stands"
        return f"the state after step {self.state.step} is saved"

    def _finish(self, status: Status) -> TrainReport:
        """Write `result.json` with the best weights by validation. Collective."""
        reach("finish.begun")
        newest = {} if self.state.best_step else self.layout.full_weights()
        seen = self.witness.observed()
        report = TrainReport.model_validate(
            self.parallel.on_main(
                lambda: self._outcome(status, newest, seen).model_dump(mode="json")
            )
        )
        reach("finish.result_written")
        message = in_words(report, self.stop.reason or "a signal to another rank")
        if status == "finished":
            log.info("%s", message)
        else:
            self.journal.event(message)
        return report

    def _outcome(self, status: Status, newest: dict[str, Tensor], seen: Observed) -> TrainReport:
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
            num_parameters=self.num_parameters,
            **best_weights(self.checkpoints, self.state, newest),
            rows_per_second=self.state.rows_per_second,
            instabilities=tuple(self.state.instabilities),
            skipped_steps=self.state.step - self.state.updates,
            promise=self.promise,
            observed=seen,
        )
        self.allowed()
        write_sealed(self.run_dir / RESULT, report.model_dump_json(indent=1))
        return report

    def _stop_on_non_finite(self, launched: Launched) -> None:
        """Dump the step, save the state before it, and raise the agreed cause on every rank.
        Collective.

        If the next window has already begun, the failed step is computed again for its dump;
        nothing that it depends on has changed.

        Raises:
            NonFiniteError: always.
        """
        self.step.undo(launched.boundary)
        window = launched.window
        if self.step.trace.step != window.step:
            # restore what the network changed in place in its inputs
            window = self.reader.read(window.step)
            self.step.gradients(window)
        error = non_finite(self.spec, self.run_dir, self.step, window, launched.gate, launched.rate)
        self._mark_position()
        self.journal.event(f"stopped: {error}")
        self.step.undo(launched.boundary)
        self.launched = None
        self._save()
        raise error
