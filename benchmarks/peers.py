"""Training with torch's DataLoader, Lightning, Accelerate and skorch: the same model, rows,
optimizer and clipping.

Each is used as its documentation shows, and runs a segment of some optimizer steps at a time.
Lightning and skorch own their loop. It runs in a greenlet, and the callback at the end of a batch
switches back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.environments import environment
from training.distributed.parallel import Parallel

PACKAGES = ("lightning==2.6.6", "accelerate==1.15.0", "skorch==1.4.0")
FOREVER = 10**9
CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"

Batch = tuple[dict[str, Tensor], Tensor]
MeanLoss = Callable[[Tensor, Tensor], Tensor]


def peers(home: Path) -> Path:
    """Return the Python of an environment with the peers, on top of the current environment.

    Args:
        home: folder of the environment.

    Raises:
        RuntimeError: the peers cannot be installed here.
    """
    return environment(
        home / "-".join(name.replace("==", "-") for name in PACKAGES),
        PACKAGES,
        CONSTRAINTS,
        on_top=True,
    )


class Rows(Dataset[Batch]):
    """Rows of arrays in memory, one at a time, for a DataLoader to collate."""

    def __init__(self, inputs: dict[str, Tensor], label: Tensor) -> None:
        self.inputs, self.label = inputs, label

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, row: int) -> Batch:
        return {name: tensor[row] for name, tensor in self.inputs.items()}, self.label[row]


class Parts:
    """Parts of every peer's training: its own copy of the network, optimizer, schedule, rows, loss.

    Args:
        model: with its initial weights.
        make_optimizer: from a network's parameters.
        inputs, label: rows in memory.
        loss: mean over a batch.
        batch_size: rows of a global batch.
        clip_at: largest gradient norm.
        horizon: optimizer steps of the schedule.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        inputs: dict[str, Tensor],
        label: Tensor,
        loss: MeanLoss,
        batch_size: int,
        clip_at: float,
        horizon: int,
    ) -> None:
        self.model, self.make_optimizer, self.inputs, self.label, self.loss = (
            model,
            make_optimizer,
            inputs,
            label,
            loss,
        )
        self.batch_size, self.clip_at, self.horizon = batch_size, clip_at, horizon

    def schedule(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Return a cosine schedule over the horizon."""
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.horizon)

    def loader(self, workers: int = 0, parallel: Parallel | None = None) -> DataLoader[Batch]:
        """Return a shuffled loader without the last, smaller batch."""
        ranks = parallel.world_size if parallel else 1
        rows = Rows(self.inputs, self.label)
        sampler: Any = (
            DistributedSampler(rows, ranks, parallel.rank) if parallel and ranks > 1 else None
        )
        return DataLoader(
            rows,
            self.batch_size // ranks,
            shuffle=sampler is None,
            sampler=sampler,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )


class WithDataLoader:
    """A plain torch loop over a DataLoader, in DDP if there are several ranks."""

    def __init__(self, parts: Parts, parallel: Parallel, workers: int) -> None:
        self.parts = parts
        self.model = (
            DistributedDataParallel(parts.model) if parallel.world_size > 1 else parts.model
        )
        self.optimizer = parts.make_optimizer(parts.model)
        self.schedule = parts.schedule(self.optimizer)
        self.batches = _endless(parts.loader(workers, parallel))

    def run(self, steps: int) -> None:
        """Run `steps` optimizer steps."""
        for _ in range(steps):
            inputs, label = next(self.batches)
            self.optimizer.zero_grad(set_to_none=True)
            self.parts.loss(self.model(inputs), label).backward()
            nn.utils.clip_grad_norm_(self.parts.model.parameters(), self.parts.clip_at)
            self.optimizer.step()
            self.schedule.step()


class WithAccelerate:
    """A loop with Accelerate's prepared objects."""

    def __init__(self, parts: Parts) -> None:
        from accelerate import Accelerator

        self.parts, self.accelerator = parts, Accelerator(cpu=True)
        optimizer = parts.make_optimizer(parts.model)
        self.model, self.optimizer, loader, self.schedule = self.accelerator.prepare(
            parts.model, optimizer, parts.loader(), parts.schedule(optimizer)
        )
        self.batches = _endless(loader)

    def run(self, steps: int) -> None:
        """Run `steps` optimizer steps."""
        for _ in range(steps):
            inputs, label = next(self.batches)
            self.optimizer.zero_grad(set_to_none=True)
            self.accelerator.backward(self.parts.loss(self.model(inputs), label))
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.parts.clip_at)
            self.optimizer.step()
            self.schedule.step()


def _endless(loader: Any) -> Iterator[Batch]:
    while True:
        yield from loader


class HandingOver:
    """A library's own loop, run a segment at a time; the library's callback calls `batch_ended`."""

    def __init__(self) -> None:
        self.left = 0
        self.measurement = getcurrent()
        self.loop = greenlet(self.fit)

    def fit(self) -> None:
        """Train forever."""
        raise NotImplementedError

    def batch_ended(self) -> None:
        """Switch back at the end of a segment."""
        self.left -= 1
        if not self.left:
            self.measurement.switch()

    def run(self, steps: int) -> None:
        """Run `steps` optimizer steps."""
        self.left = steps
        self.loop.switch()
        if self.loop.dead:
            raise RuntimeError(f"{type(self).__name__} ended before the measurement did")


class WithLightning(HandingOver):
    """A LightningModule and its Trainer, without logger, checkpoints and bars."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = parts.model

            def training_step(self, batch: Batch, index: int) -> Tensor:
                inputs, label = batch
                return parts.loss(self.model(inputs), label)

            def configure_optimizers(self) -> Any:
                optimizer = parts.make_optimizer(self.model)
                return {
                    "optimizer": optimizer,
                    "lr_scheduler": {"scheduler": parts.schedule(optimizer), "interval": "step"},
                }

        class Turns(lightning.Callback):
            def on_train_batch_end(callback, *_: Any) -> None:
                self.batch_ended()

        quiet: dict[str, Any] = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        self.trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=FOREVER,
            gradient_clip_val=parts.clip_at,
            callbacks=[Turns()],
            **quiet,
        )
        self.module, self.parts = Module(), parts

    def fit(self) -> None:
        """Train forever."""
        self.trainer.fit(self.module, self.parts.loader())


class WithSkorch(HandingOver):
    """A skorch NeuralNet."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        from skorch import NeuralNet
        from skorch.callbacks import Callback, GradientNormClipping, LRScheduler

        class Keywords(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = parts.model

            def forward(self, **batch: Tensor) -> Tensor:
                scores: Tensor = self.model(batch)
                return scores

        class MeanOverBatch(nn.Module):
            def forward(self, scores: Tensor, label: Tensor) -> Tensor:
                return parts.loss(scores, label)

        class Turns(Callback):
            def on_batch_end(callback, *_: Any, **__: Any) -> None:
                self.batch_ended()

        clipping = GradientNormClipping(parts.clip_at)
        schedule = LRScheduler(
            torch.optim.lr_scheduler.CosineAnnealingLR, T_max=parts.horizon, step_every="batch"
        )
        self.net = NeuralNet(
            Keywords(),
            MeanOverBatch,
            optimizer=lambda *_, **__: parts.make_optimizer(parts.model),
            max_epochs=FOREVER,
            batch_size=parts.batch_size,
            iterator_train__shuffle=True,
            iterator_train__drop_last=True,
            train_split=None,
            callbacks=[clipping, schedule, Turns()],
            verbose=0,
        )
        self.parts = parts

    def fit(self) -> None:
        """Train forever."""
        self.net.fit(self.parts.inputs, self.parts.label)
