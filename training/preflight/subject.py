"""What preflight looks at: a network, and rows that are few, spread over the labels, never twice
the same inputs; and the forward passes and steps that its checks make.

B rows; a batch is array name → tensor, as the network takes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from schemas.config import Declaration
from schemas.errors import PreflightError
from schemas.records import Statistics
from training.models.build import build_model
from training.models.shape import ModelShape, model_shape
from training.objectives.losses import Loss, make_loss
from training.objectives.targets import Targets
from training.optim.optimizer import make_optimizer

TARGETS = ("label", "weight")
CANDIDATES = 2048


@dataclass(frozen=True)
class Probe:
    """A batch of inputs with its labels [B], copied from the train arrays."""

    inputs: dict[str, Tensor]
    label: Tensor

    def __len__(self) -> int:
        return len(self.label)

    def first(self, rows: int) -> Probe:
        """The first rows alone."""
        return Probe({name: t[:rows] for name, t in self.inputs.items()}, self.label[:rows])


def first_rows(arrays: dict[str, np.ndarray], rows: int) -> Probe:
    """The first rows of a side: a random sample, because rows lie in the order of a hash."""
    return _take(arrays, np.arange(min(rows, len(arrays["label"]))))


def spread_rows(arrays: dict[str, np.ndarray], rows: int, labels: Targets = ()) -> Probe:
    """Up to so many rows with pairwise different inputs, spread over the labels.

    Classes take turns, so that any first few rows are balanced too; values are taken at equal steps
    of their order. Of several labels a row takes the turn of the rarest class that it has (a value:
    above or below its mean). Where rows share their inputs only the first is kept: no batch holds a
    contradiction that nobody could learn.

    Args:
        arrays: of the train side.
        rows: most rows.
        labels: of a task of several labels.

    Raises:
        PreflightError: fewer than two rows have different inputs.
    """
    label = rarest_class(arrays["label"], labels) if labels else arrays["label"]
    candidates = _distinct(
        arrays,
        _by_class(label) if label.dtype.kind == "i" else np.arange(min(CANDIDATES, len(label))),
    )
    if len(candidates) < 2:
        raise PreflightError(
            f"all of the {len(label)} train rows looked at have the same inputs; nothing can be"
            " learned from them: declare features that differ between rows"
        )
    chosen = (
        _take_turns(label, candidates)[:rows]
        if label.dtype.kind == "i"
        else candidates[_interleaved(label[candidates], rows)]
    )
    return _take(arrays, chosen)


def rarest_class(label: np.ndarray, labels: Targets) -> np.ndarray:
    """For each row [N] of several labels [N, L] a number of the rarest class that it has; -1 for a
    row without any.
    """
    codes = np.full(label.shape, -1, dtype=np.int64)
    start = 0
    for i, target in enumerate(labels):
        known = ~np.isnan(label[:, i])
        codes[known, i] = start + (
            label[known, i] > 0 if target.kind == "regression" else label[known, i]
        ).astype(np.int64)
        start += max(2, len(target.statistics.classes))
    # the last stands for -1
    counts = np.append(np.bincount(codes[codes >= 0], minlength=start), len(codes) + 1)
    return np.asarray(
        np.take_along_axis(codes, counts[codes].argmin(axis=1)[:, None], axis=1)[:, 0]
    )


def _by_class(label: np.ndarray) -> np.ndarray:
    """The first rows of each class, as many as fit, in row order."""
    classes = np.unique(label)
    each = max(1, CANDIDATES // len(classes))
    return np.sort(np.concatenate([np.flatnonzero(label == c)[:each] for c in classes]))


def _distinct(arrays: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Those of the rows whose inputs no earlier one has."""
    parts = [
        np.ascontiguousarray(a[rows]).reshape(len(rows), -1).view(np.uint8)
        for name, a in arrays.items()
        if name not in TARGETS
    ]
    _, first = np.unique(np.concatenate(parts, axis=1), axis=0, return_index=True)
    return rows[np.sort(first)]


def _take_turns(label: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows ordered so that classes alternate: first of each class, second of each class, ..."""
    order = np.argsort(label[rows], kind="stable")
    ordered = label[rows][order]
    turn = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return rows[order][np.argsort(turn, kind="stable")]


def _interleaved(values: np.ndarray, rows: int) -> np.ndarray:
    """Positions of values at equal steps of their order; the ends come first, so that any first few
    differ much.
    """
    order = np.argsort(values, kind="stable")
    steps = np.unique(np.linspace(0, len(values) - 1, min(rows, len(values))).round().astype(int))
    middle_out = np.argsort(-np.abs(steps - (len(values) - 1) / 2), kind="stable")
    return np.asarray(order[steps[middle_out]])


def _take(arrays: dict[str, np.ndarray], rows: np.ndarray) -> Probe:
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(a[rows]))
        for name, a in arrays.items()
        if name != "weight"
    }
    return Probe({name: t for name, t in tensors.items() if name != "label"}, tensors["label"])


def copied(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch of its own for a network, which may change what it is given."""
    return {name: t.clone() for name, t in inputs.items()}


def scored(network: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Scores in eval mode without gradient, [B, K]."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    # a network that keeps what it computed must not keep inference tensors here: its next pass
    # would raise
    with torch.no_grad():
        scores: Tensor = network(copied(inputs))
        scores = scores.detach() if isinstance(scores, Tensor) else scores
    for module, mode in modes:
        module.training = mode
    return scores


def mean_loss(network: nn.Module, loss: Loss, rows: Probe, weight: float | Tensor = 1.0) -> Tensor:
    """The mean over rows of their losses times a weight [B], with its graph, []."""
    return (loss.per_row(network(copied(rows.inputs)), rows.label) * weight).mean()


def student_of(
    network: nn.Module, lr: float, fused: bool = False
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A copy in train mode without dropout, and AdamW without weight decay for what it learns.

    Args:
        network: not changed; some parameter of it is trainable.
        lr: the rate.
        fused: go once over each tensor, where torch can.
    """
    student = without_dropout(copy.deepcopy(network))
    parameters = [p for p in student.parameters() if p.requires_grad]
    fused = fused and all(p.dtype in (torch.float32, torch.float64) for p in parameters)
    return student, torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=fused)


def update(
    optimizer: torch.optim.Optimizer, loss: Tensor, clip: str = "norm", clip_at: float = 1.0
) -> None:
    """One optimizer step down a loss: backward, clip as `train.clip` says, update."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    trained = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    if clip == "norm":
        nn.utils.clip_grad_norm_(trained, clip_at)
    elif clip == "value":
        nn.utils.clip_grad_value_(trained, clip_at)
    optimizer.step()


@contextmanager
def hooked(
    network: nn.Module,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
    kind: type[nn.Module] | tuple[type[nn.Module], ...] = nn.Module,
) -> Iterator[None]:
    """Watch the modules of a network until left.

    Args:
        network: whose modules are watched.
        before: takes name, module and inputs of a call; what it returns takes the inputs' place.
        after: takes name, module, inputs and result; what it returns takes the result's place.
        kind: of the modules.
    """
    handles = list[RemovableHandle]()
    for name, module in network.named_modules():
        if isinstance(module, kind):
            if before is not None:
                handles.append(module.register_forward_pre_hook(partial(before, name)))
            if after is not None:
                handles.append(module.register_forward_hook(partial(after, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def scored_alone(network: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Scores in eval mode of each row in a batch of its own."""
    rows = range(len(next(iter(inputs.values()))))
    parts = [{name: t[i : i + 1] for name, t in inputs.items()} for i in rows]
    return torch.cat([scored(network, part) for part in parts])


def shifted(values: Tensor) -> Tensor:
    """Other values of the same type."""
    return 255 - values if values.dtype == torch.uint8 else values * -1.5 + 1.0


def with_other_first_row(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch with other values in its first row; categories are those of its last row."""
    changed = copied(inputs)
    for name, t in changed.items():
        t[0] = inputs[name][-1] if name == "categorical" else shifted(inputs[name][0])
    return changed


def without_dropout(network: nn.Module) -> nn.Module:
    """The network in train mode with every dropout module set to 0."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return network.train()


@dataclass(frozen=True)
class Subject:
    """What is checked, and on which rows: `sample` for the initial loss, `spread` for all else."""

    declaration: Declaration
    statistics: Statistics
    network: nn.Module
    sample: Probe
    spread: Probe

    @cached_property
    def shape(self) -> ModelShape:
        """Of what goes into the network, and comes out."""
        return model_shape(self.declaration, self.statistics)

    @cached_property
    def loss(self) -> Loss:
        """The declared loss, by row."""
        return make_loss(self.declaration, self.statistics)


@dataclass(frozen=True)
class Trial:
    """What is tried, and the rows for it: `probe`, a few; `window`, those of a micro-batch, for
    what they cost; of `rows` on the train side.
    """

    declaration: Declaration
    statistics: Statistics
    loss: Loss
    probe: Probe
    window: Probe
    rows: int

    def fresh(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The network with its initial weights in train mode, and its optimizer at the peak
        rates.
        """
        network = build_model(self.declaration, self.statistics).train()
        return network, make_optimizer(
            self.declaration.optimizer.scaled(self.declaration.train.batch_size), network
        )

    def step(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        rows: Probe | None = None,
        clipped: bool = True,
    ) -> float:
        """One step as declared, in float32, or without its clipping; the loss before it."""
        train, loss = self.declaration.train, mean_loss(network, self.loss, rows or self.probe)
        update(optimizer, loss, train.clip if clipped else "none", train.clip_at)
        return float(loss.detach())
