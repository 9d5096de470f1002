"""State that a resumed run needs, captured from the live objects and restored to them.

- `model.pt`, `optimizer.pt`: if every rank has the whole model.
- `shard-00000-of-00002.pt` and so on: if it is sharded, each rank's slices of both.
- `trainer.pt`: position, schedule, loss scaler, random streams of every rank.

Averaged weights (`train.ema`) are in `trainer.pt`, or if sharded in each rank's own file.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from training.checkpoint import randomness as keys
from training.checkpoint.checkpoint import Checkpoints
from training.checkpoint.state import TrainerState
from training.distributed.average import Average
from training.distributed.layout import Layout, local_state
from training.distributed.parallel import Parallel
from training.optim.schedule import Schedule

Streams = list[keys.State]


class Resumable:
    """Objects whose state makes up a run.

    Args:
        layout: the network over the ranks.
        optimizer: over its parameters.
        schedule: of the learning rate.
        scaler: of the loss.
        average: of the weights.
    """

    def __init__(
        self,
        layout: Layout,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        scaler: torch.amp.GradScaler,
        average: Average,
    ) -> None:
        self.layout, self.optimizer, self.schedule = layout, optimizer, schedule
        self.scaler, self.average = scaler, average
        self.state = TrainerState()

    @property
    def parallel(self) -> Parallel:
        """Return the ranks."""
        return self.layout.parallel

    def save(self, checkpoints: Checkpoints) -> None:
        """Commit a checkpoint of the current step. Collective."""
        trainer = self._trainer(self._gather_streams())
        step, best = self.state.step, self.state.best_step
        if self.layout.sharded:
            shard = {
                "model": local_state(self.layout.model.state_dict()),
                "optimizer": local_state(self.optimizer.state_dict()),
                **local_state(self._averaged()),
            }
            checkpoints.save_sharded(step, best, trainer, shard, self.parallel)
            return
        self.parallel.on_main(
            lambda: checkpoints.save(step, best, {**self._whole(), "trainer.pt": trainer})
        )

    def save_alone(self, checkpoints: Checkpoints) -> bool:
        """Commit without the other ranks, which may be gone; return True if it was possible.

        Only for rank 0, between updates. The other ranks' random streams are left out: no step
        draws from them (training.checkpoint.randomness).
        """
        if self.layout.sharded:
            return False
        checkpoints.save(
            self.state.step,
            self.state.best_step,
            {**self._whole(), "trainer.pt": self._trainer([keys.capture(self.parallel.device)])},
        )
        return True

    def restore(self, checkpoints: Checkpoints, step: int) -> None:
        """Restore the state of a verified checkpoint. Call on every rank.

        Raises:
            CheckpointError: it does not verify or load.
        """
        if self.layout.sharded:
            trainer = checkpoints.load_trainer(step)
            same = checkpoints.num_shards(step) == self.parallel.world_size
            shards = (
                [checkpoints.load_shard(step, self.parallel.rank)]
                if same
                else checkpoints.load_all_shards(step)
            )
            names = shards[0]["model"]
            self.layout.load_slices(
                {name: [s["model"][name] for s in shards] for name in names},
                self.optimizer,
                [s["optimizer"] for s in shards],
            )
            self.layout.copy_slices(
                self.average.weights,
                {name: [s["average"][name] for s in shards] for name in self.average.weights},
            )
        else:
            parts = checkpoints.load(step)
            trainer = parts["trainer.pt"]
            self.layout.model.load_state_dict(parts["model.pt"])
            self.optimizer.load_state_dict(parts["optimizer.pt"])
            self.average.load(trainer.get("average", {}))
        self.schedule.load_state_dict(trainer["schedule"])
        self.scaler.load_state_dict(trainer["scaler"])
        self.state = TrainerState.from_state_dict(trainer["state"])
        if self.parallel.rank < len(trainer["rng"]):
            keys.restore(trainer["rng"][self.parallel.rank], self.parallel.device)

    def _whole(self) -> dict[str, Any]:
        return {
            "model.pt": self.layout.model.state_dict(),
            "optimizer.pt": self.optimizer.state_dict(),
        }

    def _trainer(self, streams: Streams) -> dict[str, Any]:
        return {
            "state": self.state.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "rng": streams,
            **({} if self.layout.sharded else self._averaged()),
        }

    def _averaged(self) -> dict[str, Any]:
        return {"average": self.average.weights} if self.average.weights else {}

    def _gather_streams(self) -> Streams:
        stream = io.BytesIO()
        torch.save(keys.capture(self.parallel.device), stream)
        return [
            torch.load(io.BytesIO(data), weights_only=True)
            for data in self.parallel.gather_bytes(stream.getvalue())
        ]
