"""Which step boundaries of a run something is due at: a pure function of the step."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.config import TrainConfig


@dataclass(frozen=True)
class Boundaries:
    """Boundaries are numbered by the steps before them; the last one is `total_steps`.

    Args:
        train: says how often.
        steps_per_epoch: windows of an epoch.
        total_steps: of the run.
    """

    train: TrainConfig
    steps_per_epoch: int
    total_steps: int

    def evaluation(self, step: int) -> bool:
        """Whether validation is scored here."""
        return step > 0 and (
            step % (self.train.eval_every or self.steps_per_epoch) == 0 or step == self.total_steps
        )

    def checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is due here for its own sake; an evaluation saves, too."""
        every = self.train.checkpoint_every
        return every is not None and step % every == 0 and not self.evaluation(step)

    def needs_state(self, step: int) -> bool:
        """Whether all steps before must have been counted here."""
        return self.evaluation(step) or self.checkpoint(step)
