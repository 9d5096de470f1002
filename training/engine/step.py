"""One optimizer step, in this order: zero_grad, micro-batches, unscale, clip, finite gate, update.

The gradient of a window is that of one big weighted batch over all ranks, `sum(w l) / sum(w)`: each
row's loss is multiplied by its final coefficient (training.engine.batches), so micro-batches and
ranks only ever add. Gradients are exchanged in the last micro-batch only. In mode elastic the
gradient of each logical shard stands alone, and they are added in a fixed tree, so that the sum
does not depend on which rank has which shard. The learning rate moves after the step
(training.optim.schedule), if it updated.

The gate tells every rank loss, gradient norm and stop flag of all. Loss and flag set out before the
last backward pass and are summed beneath it; the norm is that of gradients which are exchanged
already. A value that is not finite on any rank is not finite on every rank, and changes no
parameter. Where a wait for the device costs (CUDA), the update is made or left out on the device,
and the gate's figures travel to the host meanwhile: whoever asks for them a step later does not
wait. `undo` takes back what else a window changed, so that it can be made again.

S rows of this rank's share, M micro-batches, P trainable parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from schemas.config import TrainConfig
from schemas.errors import TrainingError, first_few
from training.checkpoint import randomness as keys
from training.distributed.layout import HALF, Layout, local, running_buffers
from training.engine.augment import Augment
from training.engine.batches import Window
from training.engine.sampling import spans
from training.objectives.losses import Loss

SMALLEST_SCALE = 1.0  # of fp16: below it a gradient that overflows is no matter of scale


@dataclass
class Trace:
    """What a step computed on this rank: kept until the next step begins, for the dump.

    `step`: of the window. `spans`: begin and end in the share of each micro-batch [M].
    `row_losses`, `scores`: per micro-batch, [M] of [rows] and [rows, K]. `losses`: per micro-batch,
    its part of the window's loss (times the number of ranks, where they average), float64 [];
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
    """What every rank knows after the gate. The figures are on their way from the device; the first
    that is asked for waits for them.

    Args:
        figures: float64 [5 + P] on the device: loss, gradient norm, weight sum, ranks that ask for
            a stop, loss scale, norm by parameter.
        names: of the parameters [P].
        scaled: fp16, so that a gradient that is not finite may be an overflow.
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
        """1 where the update must not be made, else 0: float32 [] on the device. Never waits."""
        return (~torch.isfinite(self._on_device)).any().to(torch.float32)

    @property
    def loss(self) -> float:
        """Weighted mean over the global window."""
        return self._figures[0]

    @property
    def grad_norm(self) -> float:
        """Before clipping."""
        return self._figures[1]

    @property
    def weight_sum(self) -> float:
        """Of the global window."""
        return self._figures[2]

    @property
    def stop(self) -> bool:
        """Whether a stop was asked for on some rank."""
        return self._figures[3] > 0

    @property
    def loss_scale(self) -> float:
        """With which the step was made; 1 without fp16."""
        return self._figures[4]

    @property
    def grad_norms(self) -> dict[str, float]:
        """Gradient norm by parameter name, before clipping."""
        return dict(zip(self._names, self._figures[5:], strict=True))

    @property
    def finite(self) -> bool:
        """Whether the update may be made."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    @property
    def failed(self) -> bool:
        """Whether the run must stop: a value is not finite, and no smaller loss scale would cure
        it.
        """
        return not self.finite and not self.overflowed

    @property
    def overflowed(self) -> bool:
        """Whether the step is left out and the loss scale lowered: the loss is finite, its scaled
        gradient is not, and the scale can still be lowered.
        """
        return (
            self._scaled
            and math.isfinite(self.loss)
            and not math.isfinite(self.grad_norm)
            and self.loss_scale > SMALLEST_SCALE
        )


@dataclass(frozen=True)
class Launched:
    """A step that may still be on its way through the device. `rate`: the learning rate it was made
    with; `boundary`: for `Step.undo`.
    """

    window: Window
    gate: Gate
    rate: float
    boundary: list[Tensor]


class Step:
    """The parts that a step works on, and the step itself.

    Args:
        layout: the network as it lies over the ranks.
        loss: per-row loss.
        optimizer: over all trainable parameters.
        train: micro-batch size, clipping, precision and seed.
        augment: changes the inputs of a micro-batch; None = they stay as they are.
    """

    def __init__(
        self,
        layout: Layout,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        train: TrainConfig,
        augment: Augment | None = None,
    ) -> None:
        self.layout, self.loss, self.optimizer, self.train, self.augment = (
            layout,
            loss,
            optimizer,
            train,
            augment,
        )
        self.model, self.parallel = layout.model, layout.parallel
        scale = train.loss_scale
        self.scaler = torch.amp.GradScaler(
            self.parallel.device.type,
            init_scale=scale.initial,
            growth_interval=scale.growth_interval,
            enabled=train.precision == "fp16",
        )
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.trace = Trace()
        # Whether the update is decided on the device, where reading the gate before it would be a
        # wait. Fused optimizers can.
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
        """One forward and backward pass that changes nothing; before the first step. Collective.

        DDP reorders its buckets after its first backward pass. Having that happen here, a process
        that resumes in mid-run sums gradients in the same order as one that was never stopped.

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
        """Leave the gradient of the global window in `.grad`, unscaled, and its norms in `trace`.
        Collective.

        Args:
            window: this rank's share.
            stop: whether a stop was asked for on this rank, asked as late as can be; the gate tells
                every rank.

        Raises:
            TrainingError: a parameter got no gradient.
        """
        self._stop = stop
        self._accumulate(window)
        self.scaler.unscale_(self.optimizer)
        self.trace.gradients = {
            name: local(p.grad) for name, p in self.parameters.items() if p.grad is not None
        }
        self.trace.norms = self.layout.grad_norms(list(self.trace.gradients.values()))

    def clip(self) -> Tensor:
        """Clip as declared; the gradient norm before clipping, []. A gradient that is not finite is
        left as it is, for the dump.
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
        """Bring loss, gradient norm and stop of all ranks on their way. Collective."""
        loss, stop = self._sums().unbind()
        first = torch.stack(
            [
                loss,
                grad_norm.to(torch.float64),
                window.weight_sum,
                stop,
                self._scale.to(torch.float64),
            ]
        )
        return Gate(
            torch.cat([first, self.trace.norms.to(torch.float64)]),
            tuple(self.trace.gradients),
            self.scaler.is_enabled(),
        )

    def _sums(self) -> Tensor:
        """The window's loss and the number of ranks that ask for a stop, float64 [2].
        Collective.
        """
        if self.layout.kind == "logical":
            return self.parallel.tree_sum(self._own(_pairwise(self.trace.shard_losses)))
        if self._agreed is None:
            raise TrainingError("expected gradients of a window before its gate")
        total, self._agreed = self._agreed(), None
        return total / self._divisor

    def _own(self, loss: Tensor) -> Tensor:
        return torch.stack([loss, torch.full_like(loss, float(self._stop()))])

    def update(self, gate: Gate) -> None:
        """Change the parameters, unless a value is not finite on some rank: then only the loss
        scale moves, if there is one.

        The first update is decided on the host: a fused optimizer that left out its first one would
        go on with momentum that was never written (torch 2.13), and would have a state that an
        undisturbed run has not.
        """
        if self.ahead and self._updated:
            self.optimizer.found_inf = gate.left_out  # as torch's GradScaler tells it
            self.optimizer.step()
            del self.optimizer.found_inf
        elif gate.finite:
            self.optimizer.step()  # gradients are unscaled already
            self._updated = True
        self.scaler.update()
        self.boundary = []

    def undo(self, boundary: list[Tensor] | None = None) -> None:
        """Put running statistics and the loss scale back: a window changes them long before it is
        known whether it counts.

        Args:
            boundary: what `boundary` was while the window was worked on; by default that of the
                present one. Empty: nothing is undone.
        """
        for value, before in zip(
            self._running, self.boundary if boundary is None else boundary, strict=False
        ):
            value.copy_(before)
        # forget what was unscaled, so that a window can be made again
        self.scaler.update(new_scale=self._scale)

    def _scale_and_growth(self) -> list[Tensor]:
        """The scaler's two tensors, which it makes at its first use."""
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
        self.optimizer.zero_grad(set_to_none=True)
        self.trace = Trace(window.step)
        if self.layout.kind == "logical":
            self._assign(self.parallel.tree_sum(self._tree(window, 0, len(window.shards))))
        else:
            self._shard(window, *window.shards[0])
        if not self._complete:
            self._require_gradients()

    def _tree(self, window: Window, first: int, last: int) -> Tensor:
        """Flat gradient [values of all P] of logical shards [first, last), added as a balanced
        binary tree.
        """
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
        """Passes that add nothing, where another rank's share makes one micro-batch more: of a
        sharded model every pass is collective.
        """
        size = self.train.micro_batch_size or len(window.rows)
        most = -(-len(window.rows) // self.parallel.world_size)
        for _ in range(len(spans(most, size)) - len(spans(rows, size))):
            with self.layout.exchanging(False):
                with self.layout.autocast():
                    scores = self.layout.call(
                        {name: tensor[:1] for name, tensor in window.batch.items()}
                    )
                (self.loss.per_row(scores.float(), window.label[:1]) * 0).sum().backward()

    def _backward(self, window: Window, begin: int, end: int, last: bool) -> None:
        batch = {name: tensor[begin:end] for name, tensor in window.batch.items()}
        if self.augment is not None:
            batch = self.augment(batch)
        with self.layout.autocast():
            scores = self.layout.call(batch)
        scores = scores.float() if scores.dtype in HALF.values() else scores
        row_losses = self.loss.per_row(scores, window.label[begin:end])
        # float64, as the coefficients are
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


def _pairwise(values: list[Tensor]) -> Tensor:
    """Sum [] of a power of two of values, added as the gradients are."""
    while len(values) > 1:
        values = [left + right for left, right in zip(values[::2], values[1::2], strict=True)]
    return values[0]
