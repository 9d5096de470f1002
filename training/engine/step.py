"""One optimizer step, in this order: zero_grad, micro-batches, unscale, clip, finite gate, update.

The gradient of a window is that of one big weighted batch over all ranks, `sum(w l) / sum(w)`. Each
row's loss is multiplied by its final coefficient (training.engine.batches), so micro-batches and
ranks only add. Gradients are exchanged in the last micro-batch only. In mode elastic the gradients
of logical shards are added in a fixed tree. Their sum does not depend on which rank has which
shard. The learning rate changes after the step (training.optim.schedule), if it updated.

The gate gives every rank the loss, gradient norm and stop flag of all ranks. Loss and flag are sent
before the last backward pass and summed during it; the norm is computed from exchanged gradients. A
value that is not finite on any rank is not finite on every rank, and changes no parameter. On CUDA,
where a wait is expensive, the device itself makes or skips the update while the gate's figures are
copied to the host. Code that reads them a step later does not wait. `undo` reverts what else a
window changed, so that it can be computed again.

S rows of this rank's share, M micro-batches, P trainable parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from schemas.config import TrainConfig
from schemas.errors import TrainingError, first_few
from training.checkpoint import randomness as keys
from training.distributed.layout import HALF, Layout, local, progress_buffers, running_buffers
from training.distributed.parallel import pairwise_sum
from training.engine.augment import Augment
from training.engine.batches import Window
from training.engine.sampling import spans
from training.engine.waiting import Waiting
from training.objectives.losses import Loss

SMALLEST_SCALE = 1.0  # of fp16: below it, a smaller scale cannot fix an overflow


@dataclass
class Trace:
    """Results of a step on this rank, kept for the dump until the next step begins.

    `step`: step of the window. `spans`: begin and end of each micro-batch in the share [M].
    `row_losses`, `scores`: per micro-batch, [M] of [rows] and [rows, K]. `losses`: per micro-batch,
    its part of the window's loss (times the number of ranks if they average), float64 [];
    `shard_losses`: their sum by logical shard. `gradients`, `norms`: by parameter, [P]; norms
    before clipping.
    """

    step: int = -1
    spans: list[tuple[int, int]] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    shard_losses: list[Tensor] = field(default_factory=list)
    row_losses: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    norms: Tensor = field(default_factory=lambda: torch.empty(0))

    def grad_norms(self) -> dict[str, float]:
        """Gradient norm by parameter name; waits for the device."""
        return dict(zip(self.gradients, self.norms.tolist(), strict=True))


class Gate:
    """Figures that every rank has after the gate; the first access waits for their copy.

    Args:
        figures: float64 [5 + P] on the device: loss, gradient norm, weight sum, ranks that request
            a stop, loss scale, norm by parameter.
        names: names of the parameters [P].
        scaled: fp16, where a non-finite gradient may be an overflow.
    """

    def __init__(self, figures: Tensor, names: tuple[str, ...], scaled: bool) -> None:
        self._names, self._scaled, self._on_device = names, scaled, figures[:2]
        self._copy = figures.to("cpu", non_blocking=True)  # on CUDA into pinned memory
        self._arrived = torch.cuda.Event() if figures.device.type == "cuda" else None
        if self._arrived is not None:
            self._arrived.record()

    @cached_property
    def _figures(self) -> list[float]:
        if self._arrived is not None:
            self._arrived.synchronize()
        return [float(value) for value in self._copy.tolist()]

    @property
    def left_out(self) -> Tensor:
        """1 if the update must be skipped, else 0: float32 [] on the device. Never waits."""
        return (~torch.isfinite(self._on_device)).any().to(torch.float32)

    @property
    def loss(self) -> float:
        """Weighted mean over the global window."""
        return self._figures[0]

    @property
    def grad_norm(self) -> float:
        """Gradient norm before clipping."""
        return self._figures[1]

    @property
    def weight_sum(self) -> float:
        """Sum of row weights over the global window."""
        return self._figures[2]

    @property
    def stop(self) -> bool:
        """True if a stop was requested on some rank."""
        return self._figures[3] > 0

    @property
    def loss_scale(self) -> float:
        """Loss scale of this step; 1 without fp16."""
        return self._figures[4]

    @property
    def grad_norms(self) -> dict[str, float]:
        """Gradient norm by parameter name, before clipping."""
        return dict(zip(self._names, self._figures[5:], strict=True))

    @property
    def finite(self) -> bool:
        """True if the update may be made."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    @property
    def failed(self) -> bool:
        """True if the run must stop: a value is not finite, and a smaller loss scale cannot fix
        it.
        """
        return not self.finite and not self.overflowed

    @property
    def overflowed(self) -> bool:
        """True if the step is skipped and the loss scale lowered.

        The loss is finite, its scaled gradient is not, and the scale can still be lowered.
        """
        return (
            self._scaled
            and math.isfinite(self.loss)
            and not math.isfinite(self.grad_norm)
            and self.loss_scale > SMALLEST_SCALE
        )


@dataclass(frozen=True)
class Launched:
    """A step that the device may still be computing.

    `rate`: its learning rate; `boundary`: for `Step.undo`.
    """

    window: Window
    gate: Gate
    rate: float
    boundary: list[Tensor]


class Step:
    """Parts of an optimizer step, and the step itself.

    Args:
        layout: the network with its parallel layout.
        loss: per-row loss.
        optimizer: over all trainable parameters.
        train: micro-batch size, clipping, precision and seed.
        augment: changes the inputs of a micro-batch; None: no change.
        total_steps: steps of the whole run, for modules that follow its progress.
        waiting: first step of parameters that are not trained before it, by name.
    """

    def __init__(
        self,
        layout: Layout,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        train: TrainConfig,
        augment: Augment | None = None,
        total_steps: int = 1,
        waiting: Mapping[str, int] | None = None,
    ) -> None:
        self.layout, self.loss, self.optimizer = layout, loss, optimizer
        self.train, self.augment = train, augment
        self.model, self.parallel = layout.model, layout.parallel
        self.total_steps, self.progress = max(1, total_steps), progress_buffers(layout.model)
        scale = train.loss_scale
        self.scaler = torch.amp.GradScaler(
            self.parallel.device.type,
            init_scale=scale.initial,
            growth_interval=scale.growth_interval,
            enabled=train.precision == "fp16",
        )
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.waiting = Waiting(self.parameters, waiting or {})
        self.trace = Trace()
        # Decide the update on the device where reading the gate first would be a wait. Fused
        # optimizers can do that.
        self.ahead = self.parallel.device.type == "cuda" and bool(optimizer.defaults.get("fused"))
        self.boundary: list[Tensor] = []
        self._complete = self._updated = False
        scaling = self._scale_and_growth()
        self._scale = scaling[0] if scaling else torch.ones((), device=self.parallel.device)
        self._running = [*running_buffers(self.model), *scaling]
        self._divisor = torch.tensor(
            [self.parallel.world_size, 1], dtype=torch.float64, device=self.parallel.device
        )
        self._stop: Callable[[], bool] = lambda: False
        self._agreed: Callable[[], Tensor] | None = None

    def rehearse(self, window: Window) -> None:
        """Run one forward and backward pass that changes nothing, before the first step.
        Collective.

        DDP reorders its buckets after its first backward pass. This pass triggers that, so a
        resumed process sums gradients in the same order as one that was never stopped.

        Raises:
            TrainingError: a parameter got no gradient.
        """
        if self.parallel.world_size == 1:
            return
        state = keys.capture(self.parallel.device)
        buffers = [(b, b.clone()) for b in self.model.buffers()]
        self._accumulate(window)
        self._sums()
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, value in buffers:
            buffer.copy_(value)
        keys.restore(state, self.parallel.device)

    def gradients(self, window: Window, stop: Callable[[], bool] = lambda: False) -> None:
        """Compute the unscaled gradient of the global window in `.grad`; norms in `trace`.
        Collective.

        Args:
            window: this rank's share.
            stop: returns True if a stop was requested on this rank; called as late as possible. The
                gate sends it to every rank.

        Raises:
            TrainingError: a parameter got no gradient.
        """
        self._stop = stop
        self._accumulate(window)
        if self.waiting.drop(window.step):
            self._updated = False  # the first update of some, which the host decides
        self.scaler.unscale_(self.optimizer)
        self.trace.gradients = {
            name: local(p.grad) for name, p in self.parameters.items() if p.grad is not None
        }
        self.trace.norms = self.layout.grad_norms(list(self.trace.gradients.values()))

    def clip(self) -> Tensor:
        """Clip as declared; return the gradient norm before clipping, [].

        A gradient that is not finite stays unchanged, for the dump.
        """
        total = torch.linalg.vector_norm(self.trace.norms)
        gradients = list(self.trace.gradients.values())
        if self.train.clip == "norm":
            factor = (self.train.clip_at / (total + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, torch.where(torch.isfinite(total), factor, 1.0))
        elif self.train.clip == "value":
            bound = torch.where(torch.isfinite(total), self.train.clip_at, torch.inf).to(total)
            for gradient in gradients:
                gradient.clamp_(-bound, bound)
        return total

    def gate(self, window: Window, grad_norm: Tensor) -> Gate:
        """Start the exchange of loss, gradient norm and stop flag of all ranks. Collective."""
        loss, stop = self._sums().unbind()
        norm, scale = grad_norm.to(torch.float64), self._scale.to(torch.float64)
        first = torch.stack([loss, norm, window.weight_sum, stop, scale])
        return Gate(
            torch.cat([first, self.trace.norms.to(torch.float64)]),
            tuple(self.trace.gradients),
            self.scaler.is_enabled(),
        )

    def _sums(self) -> Tensor:
        """Return the window's loss and the number of ranks that request a stop, float64 [2].
        Collective.
        """
        if self.layout.kind == "logical":
            return self.parallel.tree_sum(self._own(pairwise_sum(self.trace.shard_losses)))
        if self._agreed is None:
            raise TrainingError("expected gradients of a window before its gate")
        total, self._agreed = self._agreed(), None
        return total / self._divisor

    def _own(self, loss: Tensor) -> Tensor:
        return torch.stack([loss, torch.full_like(loss, float(self._stop()))])

    def update(self, gate: Gate) -> None:
        """Update the parameters; if a value is not finite on some rank, only lower the loss scale.

        The host decides the first update. A fused optimizer that skips its first one would continue
        with uninitialised momentum (torch 2.13), with a state that an undisturbed run does not
        have.
        """
        if self.ahead and self._updated:
            self.optimizer.found_inf = gate.left_out  # set as by torch's GradScaler
            self.optimizer.step()
            del self.optimizer.found_inf
        elif gate.finite:
            self.optimizer.step()  # gradients are already unscaled
            self._updated = True
        self.scaler.update()
        self.boundary = []

    def undo(self, boundary: list[Tensor] | None = None) -> None:
        """Restore running statistics and the loss scale, which a window changes before it counts.

        Args:
            boundary: value of `boundary` while the window was computed; default: the current one.
                If empty, nothing is undone.
        """
        for value, before in zip(
            self._running, self.boundary if boundary is None else boundary, strict=False
        ):
            value.copy_(before)
        # forget the unscaling, so that a window can be computed again
        self.scaler.update(new_scale=self._scale)

    def _scale_and_growth(self) -> list[Tensor]:
        """Return the scaler's two tensors, which it creates at its first use."""
        if not self.scaler.is_enabled():
            return []
        self.scaler.scale(torch.zeros((), device=self.parallel.device))
        return [
            tensor
            for tensor in (self.scaler._scale, self.scaler._growth_tracker)
            if tensor is not None
        ]

    # -------------------------------------------------------------------------------- gradients

    def _accumulate(self, window: Window) -> None:
        self.boundary = [value.clone() for value in self._running]
        for progress in self.progress:  # of the step alone, so that a resumed run has the same
            progress.fill_(min(1.0, window.step / self.total_steps))
        self.optimizer.zero_grad(set_to_none=True)
        self.trace = Trace(window.step)
        if self.layout.kind == "logical":
            self._assign(self.parallel.tree_sum(self._tree(window, 0, len(window.shards))))
        else:
            self._shard(window, *window.shards[0])
        if not self._complete:
            self._require_gradients()

    def _tree(self, window: Window, first: int, last: int) -> Tensor:
        """Add the flat gradients of logical shards [first, last) as a balanced binary tree."""
        if last - first == 1:
            self._shard(window, *window.shards[first])
            return self._take_flat()
        middle = (first + last) // 2
        return self._tree(window, first, middle).add_(self._tree(window, middle, last))

    def _take_flat(self) -> Tensor:
        parts = [
            torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters.values()
        ]
        if any(p.grad is not None for p in self.parameters.values()) and not self._complete:
            self._require_gradients()
        for parameter in self.parameters.values():
            parameter.grad = None
        return torch.cat([part.reshape(-1) for part in parts])

    def _assign(self, flat: Tensor) -> None:
        position = 0
        for parameter in self.parameters.values():
            parameter.grad = flat[position : position + parameter.numel()].view_as(parameter)
            position += parameter.numel()

    def _shard(self, window: Window, number: int, begin: int, end: int) -> None:
        if self.layout.sharded:
            self._keep_pace(window, end - begin)
        keys.seed_window(self.train.seed, window.epoch, window.step, number, self.parallel.device)
        before = len(self.trace.losses)
        for first, last in spans(end - begin, self.train.micro_batch_size or max(1, end - begin)):
            with self.layout.exchanging(last == end - begin):
                self._backward(window, begin + first, begin + last, last == end - begin)
        self.trace.shard_losses.append(
            torch.stack([window.weight_sum * 0, *self.trace.losses[before:]]).sum()
        )

    def _keep_pace(self, window: Window, rows: int) -> None:
        """Run passes that add nothing if another rank's share has one more micro-batch.

        Every pass of a sharded model is collective.
        """
        size = self.train.micro_batch_size or len(window.rows)
        most = -(-len(window.rows) // self.parallel.world_size)
        for _ in range(len(spans(most, size)) - len(spans(rows, size))):
            with self.layout.exchanging(False):
                with self.layout.autocast():
                    scores = self.layout.call(
                        {name: tensor[:1] for name, tensor in window.batch.items()}
                    )
                (self.loss.row_losses(scores.float(), window.label[:1]) * 0).sum().backward()

    def _backward(self, window: Window, begin: int, end: int, last: bool) -> None:
        batch = {name: tensor[begin:end] for name, tensor in window.batch.items()}
        if self.augment is not None:
            batch = self.augment(batch)
        with self.layout.autocast():
            scores = self.layout.call(batch)
        scores = scores.float() if scores.dtype in HALF.values() else scores
        row_losses = self.loss.row_losses(scores, window.label[begin:end])
        # float64, like the coefficients
        loss = (row_losses * window.coefficient[begin:end]).sum()
        self.trace.losses.append(loss.detach())
        if last and self.layout.kind != "logical":
            self._agreed = self.parallel.begin_sum(self._own(torch.stack(self.trace.losses).sum()))
        self.scaler.scale(loss).backward()
        self.trace.spans.append((begin, end))
        self.trace.row_losses.append(row_losses.detach())
        self.trace.scores.append(scores.detach())

    def _require_gradients(self) -> None:
        missing = [name for name, p in self.parameters.items() if p.grad is None]
        if missing:
            raise TrainingError(
                f"{len(missing)} of {len(self.parameters)} trainable parameters got no gradient in"
                f" the first step (first: {first_few(missing)}): they do not take part in the loss;"
                " use them in forward, or set requires_grad to False"
            )
        self._complete = True
