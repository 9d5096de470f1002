"""Step boundaries of a run at which an action is due: a pure function of the step."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.config import TrainConfig


@dataclass(frozen=True)
class Boundaries:
    """Boundaries numbered by the steps before them; the last one is `total_steps`.

    Args:
        train: declared intervals.
        steps_per_epoch: windows of an epoch.
        total_steps: steps of the run.
        refit: nothing is evaluated; the last step takes its place.
    """

    train: TrainConfig
    steps_per_epoch: int
    total_steps: int
    refit: bool = False

    def evaluation(self, step: int) -> bool:
        """Return True if validation is scored here."""
        due = step == self.total_steps or (not self.refit and step % self._interval == 0)
        return step > 0 and due

    def checkpoint(self, step: int) -> bool:
        """Return True if a checkpoint is due here; an evaluation also saves one."""
        every = self.train.checkpoint_every or (self._interval if self.refit else None)
        return every is not None and step % every == 0 and not self.evaluation(step)

    @property
    def _interval(self) -> int:
        return self.train.eval_every or self.steps_per_epoch

    def needs_state(self, step: int) -> bool:
        """Return True if all steps before must be counted here."""
        return self.evaluation(step) or self.checkpoint(step)
