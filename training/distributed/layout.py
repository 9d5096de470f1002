"""Distribution of a network over the ranks. Only this file names DDP or `fully_shard`.

- whole: one rank has it all.
- replicated (DDP): every rank has it; gradients are averaged in the last backward pass of a step.
- sharded (FSDP2): every rank has a slice along dimension 0 of each parameter, its gradient and its
  optimizer state; a block's parameters are gathered while it computes.
- logical (mode elastic): every rank has it, and the step itself sums gradients of logical shards in
  a fixed tree.

Between steps parameters are `Parameter`s (whole, replicated, logical) or `DTensor`s (sharded).
"Collective" in a docstring means: call on every rank.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from schemas.config import TrainConfig
from schemas.errors import ConfigError, first_few
from training.distributed.parallel import Parallel

Kind = Literal["whole", "replicated", "sharded", "logical"]
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated parts of a network.

    They are composite elements with parameters of its outermost lists and sequences.

    >>> block = lambda: nn.Sequential(nn.Linear(2, 2), nn.GELU())
    >>> len(blocks(nn.Sequential(nn.Linear(2, 2), nn.ModuleList([block(), block()]))))
    2
    """
    found: list[nn.Module] = []
    for child in model.children():
        elements = (
            list(child.children()) if isinstance(child, nn.ModuleList | nn.Sequential) else []
        )
        composite = [
            e
            for e in elements
            if any(True for _ in e.children()) and any(True for _ in e.parameters())
        ]
        found += composite or blocks(child)
    return found


class Layout:
    """Network distributed over the ranks as declared. Collective.

    Args:
        model: the network on the ranks' device, with equal weights on every rank; it stays the
            owner of its parameters, whose names never change.
        parallel: the ranks.
        train: mode, parallel, precision, compile and recompute_activations.

    Attributes:
        call: callable that a step uses in place of the model.

    Raises:
        ConfigError: as `require_layout`.
    """

    def __init__(self, model: nn.Module, parallel: Parallel, train: TrainConfig) -> None:
        self.model, self.parallel, self.train = model, parallel, train
        self.kind: Kind = _kind(train, parallel.world_size)
        require_layout(model, train)
        for block in blocks(model) if train.recompute_activations else ():
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if self.kind == "sharded":
            self._shard()
        # Static shapes: the kernel for a batch must not depend on the shapes that a process
        # happened to see before.
        called = (
            torch.compile(model, dynamic=None if train.mode == "fast" else False)
            if train.compile
            else model
        )
        self.call: nn.Module = self._replicate(called) if self.kind == "replicated" else called

    @property
    def sharded(self) -> bool:
        """Return True if a forward pass is collective and parameters are slices."""
        return self.kind == "sharded"

    def _replicate(self, called: nn.Module) -> nn.Module:
        device = self.parallel.device
        return DistributedDataParallel(
            called,
            device_ids=[device.index] if device.type == "cuda" else None,
            forward_sync_buffers=bool(running_buffers(self.model)),
            gradient_as_bucket_view=True,
        )

    def _shard(self) -> None:
        # Gathered parameters are half if the step is; gradients are summed in full precision.
        # Inputs stay unchanged: autocast casts them.
        policy = MixedPrecisionPolicy(
            param_dtype=HALF.get(self.train.precision),
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for block in blocks(self.model):
            fully_shard(block, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """Exchange gradients of backward passes over ranks in a step's last micro-batch.

        In other micro-batches, backward passes only add to them.
        """
        if isinstance(self.call, DistributedDataParallel) and not last:
            with self.call.no_sync():
                yield
            return
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        yield

    def autocast(self) -> torch.autocast:
        """Use half precision inside, if declared."""
        return torch.autocast(
            self.parallel.device.type,
            HALF.get(self.train.precision),
            enabled=self.train.precision in HALF,
        )

    def grad_norms(self, gradients: list[Tensor]) -> Tensor:
        """Return 2-norms [P] of each parameter's whole gradient, from this rank's part of them.

        Collective if sharded.
        """
        norms = torch.stack(torch._foreach_norm(gradients))
        return self.parallel.all_reduce_sum(norms.square()).sqrt() if self.sharded else norms

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Run forward passes outside of a step. Collective.

        Running statistics are those of rank 0; slices are slices again afterwards.
        """
        for buffer in running_buffers(self.model) if self.parallel.world_size > 1 else ():
            self.parallel.broadcast(buffer)
        if not isinstance(self.model, FSDPModule):
            yield
            return
        with self.autocast():
            yield
        self.model.reshard()

    def full_weights(self) -> dict[str, Tensor]:
        """Return the whole state dict. Collective.

        If sharded, it is gathered on the CPU, and on rank 0 only (empty elsewhere).
        """
        if not self.sharded:
            return dict(self.model.state_dict())
        whole = {}
        # one at a time: the whole model fits on the host, not on the device
        for name, tensor in self.model.state_dict().items():
            gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.parallel.is_main:
                whole[name] = gathered.cpu()
        return whole

    def load_slices(
        self,
        model: dict[str, list[Tensor]],
        optimizer: torch.optim.Optimizer,
        states: list[dict[str, Any]],
    ) -> None:
        """Load a sharded state: as saved, or divided again if the number of ranks has changed.

        Args:
            model: by name, only this rank's own slice, or the slices of all ranks that saved.
            optimizer: over the sharded parameters.
            states: its state dicts, of this rank alone or of all ranks that saved.
        """
        self.copy_slices(self.model.state_dict(), model)
        optimizer.load_state_dict(
            _join(states, [p for group in optimizer.param_groups for p in group["params"]])
        )

    def copy_slices(self, tensors: dict[str, Tensor], slices: dict[str, list[Tensor]]) -> None:
        """Copy saved slices, as in `load_slices`, into tensors that are sharded over the ranks."""
        with torch.no_grad():
            for name, tensor in tensors.items():
                local(tensor).copy_(local(_like(tensor, slices[name])))


def require_layout(model: nn.Module, train: TrainConfig) -> None:
    """Refuse a network that cannot be distributed as declared; also used in preflight.

    Raises:
        ConfigError: mode elastic with running statistics, activations to recompute without blocks,
            or no compiler.
    """
    names = [name for name, _ in model.named_buffers() if name in model.state_dict()]
    if train.mode == "elastic" and names:
        raise ConfigError(
            f"train.mode elastic: the model keeps running statistics ({first_few(names)}), which"
            " depend on what each rank saw; use group or layer norm in place of batch norm, or"
            " mode: exact"
        )
    if train.recompute_activations and not blocks(model):
        raise ConfigError(
            "train.recompute_activations needs a model with repeated blocks (resmlp, cnn,"
            " ft_transformer, …); this one has none: unset it"
        )
    on_cpu = train.device == "cpu" or not torch.cuda.is_available()
    if (
        train.compile
        and on_cpu
        and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))
    ):
        raise ConfigError(
            "train.compile on the CPU needs a C++ compiler, and there is no g++ or clang++ on the"
            " path: install one, or unset it"
        )


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a parameter or gradient, or the tensor itself if not sharded.

    It shares memory.
    """
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_state(value: Any) -> Any:
    """Return a state dict with this rank's parts in place of sharded tensors."""
    if isinstance(value, dict):
        return {key: local_state(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [local_state(inner) for inner in value]
    return local(value) if isinstance(value, Tensor) else value


def running_buffers(model: nn.Module) -> list[Tensor]:
    """Return buffers that training changes: those in the state dict."""
    saved = model.state_dict(keep_vars=True)
    return [buffer for name, buffer in model.named_buffers() if name in saved]


def progress_buffers(model: nn.Module) -> list[Tensor]:
    """Return buffers `progress` [] outside of the state dict, which follow the run's progress.

    A module that registers one, as training.models.scheduled_dropout does, finds in it the share of
    all steps that were made.
    """
    saved = model.state_dict(keep_vars=True)
    return [
        buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] == "progress" and name not in saved and buffer.ndim == 0
    ]


def _kind(train: TrainConfig, world_size: int) -> Kind:
    if train.mode == "elastic":
        return "logical"
    if world_size == 1:
        return "whole"
    return "sharded" if train.parallel == "fsdp" else "replicated"


def _like(target: Tensor, slices: list[Tensor]) -> Tensor:
    """Return saved slices as a tensor that is distributed over ranks like the target."""
    if not isinstance(target, DTensor):
        return slices[0]
    if len(slices) == 1:
        return DTensor.from_local(
            slices[0].to(target.device),
            target.device_mesh,
            target.placements,
            shape=target.shape,
            stride=target.stride(),
        )
    whole = (
        torch.cat([part for part in slices if part.numel()])
        if target.numel()
        else torch.empty(target.shape)
    )
    return distribute_tensor(
        whole.to(target.device), target.device_mesh, target.placements, src_data_rank=None
    )


def _join(states: list[dict[str, Any]], parameters: list[nn.Parameter]) -> dict[str, Any]:
    """Join the ranks' optimizer state dicts of sharded tensors to one."""
    joined = {}
    for number, first in states[0]["state"].items():
        parameter = parameters[number]
        joined[number] = {
            key: (
                _like(parameter, [state["state"][number][key] for state in states])
                if isinstance(value, Tensor) and value.ndim
                else value
            )
            for key, value in first.items()
        }
    return {"state": joined, "param_groups": states[0]["param_groups"]}
