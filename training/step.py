"""One optimizer step, in this order: zero_grad, micro-batches, unscale, clip, finite gate, update.

The gradient of a window is that of one big weighted batch over all ranks, `sum(w l) / sum(w)`: each row's loss is
multiplied by its final coefficient (training.batches), so micro-batches and ranks only ever add. Gradients are
exchanged in the last micro-batch only. In mode elastic the gradient of each logical shard stands alone, and they are
added in a fixed tree, so that the sum does not depend on which rank has which shard. The learning rate moves after
the step (training.schedule), if it updated.

The gate is the step's one wait for the device: there every rank reads loss, gradient norm and stop flag of all. Loss and
flag set out before the last backward pass and are summed beneath it; the norm is that of gradients which are exchanged
already. A value that is not finite on any rank is not finite on every rank, before any parameter changed.

S rows of this rank's share, M micro-batches, P trainable parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from schemas.config import TrainConfig
from schemas.errors import TrainingError, first_few
from training import keys
from training.augment import Augment
from training.batches import Window
from training.layout import HALF, Layout, local, running_buffers
from training.losses import Loss
from training.sampling import spans

SMALLEST_SCALE = 1.0  # of fp16: below it a gradient that overflows is no matter of scale


@dataclass
class Trace:
    """What a step computed on this rank: kept until the next step, for the log and for the dump.

    `spans`: begin and end in the share of each micro-batch [M]. `row_losses`, `scores`: per micro-batch, [M] of [rows]
    and [rows, K]. `losses`: per micro-batch, its part of the window's loss (times the number of ranks, where they
    average), float64 []; `shard_losses`: their sum by logical shard. `gradients`, `norms`: by parameter, [P]; norms before clipping.
    """

    spans: list[tuple[int, int]] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    shard_losses: list[Tensor] = field(default_factory=list)
    row_losses: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    norms: tuple[Tensor, ...] = ()

    def grad_norms(self) -> dict[str, float]:
        """Gradient norm by parameter name; waits for the device."""
        return dict(zip(self.gradients, torch.stack(self.norms).tolist(), strict=True))


@dataclass(frozen=True)
class Gate:
    """What every rank knows after the gate.

    `loss`: weighted mean over the global window. `weight_sum`: of that window. `grad_norm`: before clipping.
    `stop`: a stop was asked for on some rank. `may_overflow`: fp16, and the loss scale can still be lowered.
    """

    loss: float
    weight_sum: float
    grad_norm: float
    stop: bool
    may_overflow: bool = False

    @property
    def finite(self) -> bool:
        """Whether the update may be made."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    @property
    def overflowed(self) -> bool:
        """Whether the step is to be left out and the loss scale lowered: the loss is finite, its scaled gradient is not."""
        return self.may_overflow and math.isfinite(self.loss) and not math.isfinite(self.grad_norm)


class Step:
    """The parts that a step works on, and the step itself.

    Args:
        layout: the network as it lies over the ranks.
        loss: per-row loss.
        optimizer: over all trainable parameters.
        train: micro-batch size, clipping, precision and seed.
        augment: changes the inputs of a micro-batch; None = they stay as they are.
    """

    def __init__(self, layout: Layout, loss: Loss, optimizer: torch.optim.Optimizer, train: TrainConfig, augment: Augment | None = None) -> None:
        self.layout, self.loss, self.optimizer, self.train, self.augment = layout, loss, optimizer, train, augment
        self.model, self.parallel = layout.model, layout.parallel
        scale = train.loss_scale
        self.scaler = torch.amp.GradScaler(
            self.parallel.device.type, init_scale=scale.initial, growth_interval=scale.growth_interval, enabled=train.precision == "fp16"
        )
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.trace = Trace()
        self._complete = False
        self._running = running_buffers(self.model)
        self._boundary: list[Tensor] = []
        self._stop: Callable[[], bool] = lambda: False
        self._agreed: Callable[[], Tensor] | None = None

    def rehearse(self, window: Window) -> None:
        """One forward and backward pass that changes nothing; before the first step. Collective.

        DDP reorders its buckets after its first backward pass. Having that happen here, a process that resumes in
        mid-run sums gradients in the same order as one that was never stopped.

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
        """Leave the gradient of the global window in `.grad`, unscaled, and its norms in `trace`. Collective.

        Args:
            window: this rank's share.
            stop: whether a stop was asked for on this rank, asked as late as can be; the gate tells every rank.

        Raises:
            TrainingError: a parameter got no gradient.
        """
        self._stop = stop
        self._accumulate(window)
        self.scaler.unscale_(self.optimizer)
        self.trace.gradients = {name: local(p.grad) for name, p in self.parameters.items() if p.grad is not None}
        self.trace.norms = self.layout.grad_norms(list(self.trace.gradients.values()))

    def clip(self) -> Tensor:
        """Clip as declared; the gradient norm before clipping, []. A gradient that is not finite is left as it is, for the dump."""
        total = torch.linalg.vector_norm(torch.stack(self.trace.norms))
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
        """Learn loss, gradient norm and stop of all ranks. Collective; waits for the device."""
        loss, stop = self._sums().unbind()
        values = torch.stack([loss, grad_norm.to(torch.float64), window.weight_sum, stop]).tolist()
        may_overflow = self.scaler.is_enabled() and not math.isfinite(values[1]) and self.scaler.get_scale() > SMALLEST_SCALE
        return Gate(loss=values[0], grad_norm=values[1], weight_sum=values[2], stop=values[3] > 0, may_overflow=may_overflow)

    def _sums(self) -> Tensor:
        """The window's loss and the number of ranks that ask for a stop, float64 [2]. Collective."""
        if self.layout.kind == "logical":
            return self.parallel.tree_sum(self._own(_pairwise(self.trace.shard_losses)))
        if self._agreed is None:
            raise TrainingError("expected gradients of a window before its gate")
        total, self._agreed = self._agreed(), None
        return total / torch.tensor([self.parallel.world_size, 1], dtype=total.dtype, device=total.device)

    def _own(self, loss: Tensor) -> Tensor:
        return torch.stack([loss, torch.full_like(loss, float(self._stop()))])

    def update(self) -> None:
        """Change the parameters."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._boundary = []

    def skip(self) -> None:
        """Leave the parameters as they are and lower the loss scale, after a gradient that overflowed."""
        self.scaler.update()
        self._boundary = []

    def undo(self) -> None:
        """Put running statistics back to the last boundary: a forward pass changes them, long before the step is decided on."""
        for buffer, value in zip(self._running, self._boundary, strict=False):
            buffer.copy_(value)

    # -------------------------------------------------------------------------------- gradients

    def _accumulate(self, window: Window) -> None:
        self._boundary = [buffer.clone() for buffer in self._running]
        self.optimizer.zero_grad(set_to_none=True)
        self.trace = Trace()
        if self.layout.kind == "logical":
            self._assign(self.parallel.tree_sum(self._tree(window, 0, len(window.shards))))
        else:
            self._shard(window, *window.shards[0])
        if not self._complete:
            self._require_gradients()

    def _tree(self, window: Window, first: int, last: int) -> Tensor:
        """Flat gradient [values of all P] of logical shards [first, last), added as a balanced binary tree."""
        if last - first == 1:
            self._shard(window, *window.shards[first])
            return self._take_flat()
        middle = (first + last) // 2
        return self._tree(window, first, middle).add_(self._tree(window, middle, last))

    def _take_flat(self) -> Tensor:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters.values()]
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
        self.trace.shard_losses.append(torch.stack([window.weight_sum * 0, *self.trace.losses[before:]]).sum())

    def _keep_pace(self, window: Window, rows: int) -> None:
        """Passes that add nothing, where another rank's share makes one micro-batch more: of a sharded model every pass is collective."""
        size = self.train.micro_batch_size or len(window.rows)
        most = -(-len(window.rows) // self.parallel.world_size)
        for _ in range(len(spans(most, size)) - len(spans(rows, size))):
            with self.layout.exchanging(False):
                with self.layout.autocast():
                    scores = self.layout.call({name: tensor[:1] for name, tensor in window.batch.items()})
                (self.loss.per_row(scores.float(), window.label[:1]) * 0).sum().backward()

    def _backward(self, window: Window, begin: int, end: int, last: bool) -> None:
        batch = {name: tensor[begin:end] for name, tensor in window.batch.items()}
        if self.augment is not None:
            batch = self.augment(batch)
        with self.layout.autocast():
            scores = self.layout.call(batch)
        scores = scores.float() if scores.dtype in HALF.values() else scores
        row_losses = self.loss.per_row(scores, window.label[begin:end])
        loss = (row_losses * window.coefficient[begin:end]).sum()  # float64, as the coefficients are
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
                f"{len(missing)} of {len(self.parameters)} trainable parameters got no gradient in the first step (first: {first_few(missing)}): "
                "they do not take part in the loss; use them in forward, or set requires_grad to False"
            )
        self._complete = True


def _pairwise(values: list[Tensor]) -> Tensor:
    """Sum [] of a power of two of values, added as the gradients are."""
    while len(values) > 1:
        values = [left + right for left, right in zip(values[::2], values[1::2], strict=True)]
    return values[0]
