"""Network and rows for the preflight checks, with helpers for forward passes and steps.

The rows are few, spread over the labels, and have pairwise different inputs. B rows; a batch maps
array names to tensors, as the network takes it.
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
from schemas.init_records import InitialWeights
from schemas.records import Statistics
from training.models.initial import initial_network
from training.models.parameter_names import matching
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
        """Return the first rows."""
        return Probe({name: t[:rows] for name, t in self.inputs.items()}, self.label[:rows])


def first_rows(arrays: dict[str, np.ndarray], rows: int) -> Probe:
    """Return the first rows of a split, a random sample because a hash orders the rows."""
    return _take(arrays, np.arange(min(rows, len(arrays["label"]))))


def spread_rows(arrays: dict[str, np.ndarray], rows: int, labels: Targets = ()) -> Probe:
    """Return at most this many rows with pairwise different inputs, spread over the labels.

    Classes take turns, so that the first rows are balanced too. Values are taken at equal steps of
    their order. With several labels, a row counts for its rarest class; a value counts as above or
    below its mean. Of rows with equal inputs only the first is kept, so no batch contains a
    contradiction.

    Args:
        arrays: arrays of the train split.
        rows: largest number of rows.
        labels: labels of a task with several labels.

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
    """Return a number of each row's [N] rarest class in labels [N, L], or -1 without a label."""
    codes = np.full(label.shape, -1, dtype=np.int64)
    start = 0
    for i, target in enumerate(labels):
        known = ~np.isnan(label[:, i])
        codes[known, i] = start + (
            label[known, i] > 0 if target.kind == "regression" else label[known, i]
        ).astype(np.int64)
        start += max(2, len(target.statistics.classes))
    # the last count is for -1
    counts = np.append(np.bincount(codes[codes >= 0], minlength=start), len(codes) + 1)
    return np.asarray(
        np.take_along_axis(codes, counts[codes].argmin(axis=1)[:, None], axis=1)[:, 0]
    )


def _by_class(label: np.ndarray) -> np.ndarray:
    """Return the first rows of each class, as many as fit, in row order."""
    classes = np.unique(label)
    each = max(1, CANDIDATES // len(classes))
    return np.sort(np.concatenate([np.flatnonzero(label == c)[:each] for c in classes]))


def _distinct(arrays: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Return the rows whose inputs no earlier row has."""
    parts = [
        np.ascontiguousarray(a[rows]).reshape(len(rows), -1).view(np.uint8)
        for name, a in arrays.items()
        if name not in TARGETS
    ]
    _, first = np.unique(np.concatenate(parts, axis=1), axis=0, return_index=True)
    return rows[np.sort(first)]


def _take_turns(label: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Order rows so that classes alternate: first of each class, second of each class, ..."""
    order = np.argsort(label[rows], kind="stable")
    ordered = label[rows][order]
    turn = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    return rows[order][np.argsort(turn, kind="stable")]


def _interleaved(values: np.ndarray, rows: int) -> np.ndarray:
    """Return positions of values at equal steps of their order. Both ends come first, so that the
    first rows differ much.
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
    """Copy a batch for a network, which may change its input."""
    return {name: t.clone() for name, t in inputs.items()}


def scored(network: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return scores [B, K] in eval mode without gradient."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    # a network must not cache inference tensors here, because its next pass would raise
    with torch.no_grad():
        scores: Tensor = network(copied(inputs))
        scores = scores.detach() if isinstance(scores, Tensor) else scores
    for module, mode in modes:
        module.training = mode
    return scores


def joined(network: nn.Module, scores: Tensor) -> Tensor:
    """Return scores [B, K] of a network's scores in train mode, which may be those of members
    [B, M, K].
    """
    join = getattr(network, "join", None)
    return scores if join is None or scores.ndim == 2 else join(scores)


def mean_loss(network: nn.Module, loss: Loss, rows: Probe, weight: float | Tensor = 1.0) -> Tensor:
    """Return the mean [] over rows of their losses times a weight [B], with its graph."""
    return (loss.row_losses(network(copied(rows.inputs)), rows.label) * weight).mean()


def student_of(
    network: nn.Module, lr: float, fused: bool = False
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a copy in train mode without dropout, and AdamW without weight decay for it.

    Args:
        network: network with a trainable parameter. It is not changed.
        lr: learning rate.
        fused: use the fused kernel, if torch can.
    """
    student = without_dropout(copy.deepcopy(network))
    parameters = [p for p in student.parameters() if p.requires_grad]
    fused = fused and all(p.dtype in (torch.float32, torch.float64) for p in parameters)
    return student, torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=fused)


def update(
    optimizer: torch.optim.Optimizer, loss: Tensor, clip: str = "norm", clip_at: float = 1.0
) -> None:
    """Make one optimizer step on a loss: backward, clip as `train.clip` declares, update."""
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
    """Call functions before and after the modules of a network, inside the context.

    Args:
        network: network with the modules.
        before: function of name, module and inputs; its result replaces the inputs.
        after: function of name, module, inputs and result; its result replaces the result.
        kind: type of the modules.
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
    """Return scores in eval mode with each row in a separate batch."""
    rows = range(len(next(iter(inputs.values()))))
    parts = [{name: t[i : i + 1] for name, t in inputs.items()} for i in rows]
    return torch.cat([scored(network, part) for part in parts])


def shifted(values: Tensor) -> Tensor:
    """Return other values of the same type."""
    return 255 - values if values.dtype == torch.uint8 else values * -1.5 + 1.0


def with_other_first_row(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the batch with other values in its first row; codes come from its last row."""
    changed = copied(inputs)
    for name, t in changed.items():
        is_code = name == "categorical" or name.startswith("bag_")
        t[0] = inputs[name][-1] if is_code else shifted(inputs[name][0])
    return changed


def without_dropout(network: nn.Module) -> nn.Module:
    """Return the network in train mode with every dropout rate set to 0."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return network.train()


@dataclass(frozen=True)
class Subject:
    """Network and rows to check: `sample` for the initial loss, `spread` for all else."""

    declaration: Declaration
    statistics: Statistics
    network: nn.Module
    sample: Probe
    spread: Probe

    @cached_property
    def shape(self) -> ModelShape:
        """Shape of the network's inputs and outputs."""
        return model_shape(self.declaration, self.statistics)

    @cached_property
    def loss(self) -> Loss:
        """Declared loss per row."""
        return make_loss(self.declaration, self.statistics)

    @property
    def is_loaded(self) -> bool:
        """Return True if the network starts from weights that exist."""
        return getattr(self.declaration.model, "init", None) is not None

    def thawed(self) -> nn.Module:
        """Return a copy that also learns where the declaration forbids it, or the network itself.

        What a network can learn is a question to all of it.
        """
        model = self.declaration.model
        patterns, lora = getattr(model, "freeze", ()), getattr(model, "lora", None)
        if not patterns and lora is None:
            return self.network
        whole = copy.deepcopy(self.network)
        parameters = dict(whole.named_parameters())
        frozen = parameters if lora else matching(patterns, parameters, "model.freeze")
        for name in frozen:
            parameters[name].requires_grad_(True)
        return whole


@dataclass(frozen=True)
class Trial:
    """Data and loss of a trial: a few rows as `probe`, a micro-batch as `window` for the cost.
    `rows` is the number of train rows, `init` are the weights to start from.
    """

    declaration: Declaration
    statistics: Statistics
    loss: Loss
    probe: Probe
    window: Probe
    rows: int
    init: InitialWeights | None = None

    def network(self) -> nn.Module:
        """Return the network that training starts from."""
        return initial_network(self.declaration, self.statistics, self.init)

    def fresh(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the initial network in train mode, and its optimizer at the peak rates."""
        network = self.network().train()
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
        """Make one step as declared, in float32, or without clipping. Return the loss before it."""
        train, loss = self.declaration.train, mean_loss(network, self.loss, rows or self.probe)
        update(optimizer, loss, train.clip if clipped else "none", train.clip_at)
        return float(loss.detach())
