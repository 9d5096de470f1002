"""One optimizer step, in this order: zero_grad, micro-batches, clip, finite gate, update.

The gradient of a window is that of one big weighted batch over all ranks, `sum(w l) / sum(w)`: each row's loss is
multiplied by its final coefficient (training.batches), so micro-batches and ranks only ever add. Gradients are
exchanged in the last micro-batch only. The learning rate moves after the step (training.schedule).

The gate is the step's one wait for the device: loss, gradient norm and the stop flag are summed over ranks and
read. A value that is not finite on any rank makes the sum not finite on every rank, before any parameter changed.

S rows of this rank's share, M micro-batches, P trainable parameters.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from schemas.config import TrainConfig
from schemas.errors import TrainingError, first_few
from training import keys
from training.batches import Window
from training.losses import Loss
from training.parallel import Parallel
from training.sampling import spans

HALF = (torch.bfloat16, torch.float16)


@dataclass
class Trace:
    """What a step computed on this rank: kept until the next step, for the log and for the dump.

    `row_losses`, `scores`: per micro-batch, [M] of [rows] and [rows, K]. `losses`: per micro-batch, its part of the
    window's loss times the number of ranks, float64 []. `gradients`, `norms`: by parameter, [P]; norms before clipping.
    """

    losses: list[Tensor] = field(default_factory=list)
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
    `stop`: a stop was asked for on some rank.
    """

    loss: float
    weight_sum: float
    grad_norm: float
    stop: bool

    @property
    def finite(self) -> bool:
        """Whether the update may be made."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Step:
    """The parts that a step works on, and the step itself.

    Args:
        model: the network; `wrapped` the same one as `parallel.wrap` returned it.
        loss: per-row loss.
        optimizer: over all trainable parameters.
        parallel: the ranks.
        train: micro-batch size, clipping and precision.
    """

    def __init__(self, model: nn.Module, wrapped: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, *, parallel: Parallel, train: TrainConfig) -> None:
        self.model, self.wrapped, self.loss, self.optimizer, self.parallel, self.train = model, wrapped, loss, optimizer, parallel, train
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.trace = Trace()
        self._complete = False

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
        self._accumulate(window, self.train.micro_batch_size)
        self._require_gradients()
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, value in buffers:
            buffer.copy_(value)
        keys.restore(state, self.parallel.device)

    def gradients(self, window: Window) -> None:
        """Leave the gradient of the global window in `.grad`, and its norms in `trace`. Collective."""
        self.optimizer.zero_grad(set_to_none=True)
        self._accumulate(window, self.train.micro_batch_size)
        if not self._complete:
            self._require_gradients()
        self.trace.gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        self.trace.norms = torch._foreach_norm(list(self.trace.gradients.values()))

    def clip(self) -> Tensor:
        """Clip as declared; the gradient norm before clipping, []. A gradient that is not finite is left as it is, for the dump."""
        total = torch.linalg.vector_norm(torch.stack(self.trace.norms))
        if self.train.clip == "norm":
            factor = (self.train.clip_at / (total + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(list(self.trace.gradients.values()), torch.where(torch.isfinite(total), factor, 1.0))
        elif self.train.clip == "value":
            torch.nn.utils.clip_grad_value_(self.parameters.values(), self.train.clip_at)
        return total

    def gate(self, window: Window, grad_norm: Tensor, stop: bool) -> Gate:
        """Agree on loss, gradient norm and stop over ranks. Collective; waits for the device."""
        loss = torch.stack(self.trace.losses).sum()
        parts = torch.stack([loss, grad_norm.to(torch.float64), window.weight_sum, torch.full_like(loss, float(stop))])
        values = (self.parallel.all_reduce_sum(parts) / self.parallel.world_size).tolist()
        return Gate(loss=values[0], grad_norm=values[1], weight_sum=values[2], stop=values[3] > 0)

    def update(self) -> None:
        """Change the parameters."""
        self.optimizer.step()

    def _accumulate(self, window: Window, micro_batch_size: int | None) -> None:
        self.trace = Trace()
        parts = spans(len(window.label), micro_batch_size or len(window.label))
        for begin, end in parts[:-1]:
            with self.parallel.no_sync(self.wrapped):
                self._backward(window, begin, end)
        self._backward(window, *parts[-1])

    def _backward(self, window: Window, begin: int, end: int) -> None:
        batch = {name: tensor[begin:end] for name, tensor in window.batch.items()}
        with torch.autocast(self.parallel.device.type, torch.bfloat16) if self.train.precision == "bf16" else nullcontext():
            scores = self.wrapped(batch)
        scores = scores.float() if scores.dtype in HALF else scores
        row_losses = self.loss.per_row(scores, window.label[begin:end])
        loss = (row_losses * window.coefficient[begin:end]).sum()  # float64, as the coefficients are
        loss.backward()
        self.trace.losses.append(loss.detach())
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
