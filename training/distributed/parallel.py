"""Ranks, devices and collectives. Only this file names a process group.

    with Parallel.open(device="auto") as parallel:
        total = parallel.all_reduce_sum(count)

It works the same under `torchrun` and in a plain process (one rank, no process group). Tensors on
the CPU use gloo, tensors on a GPU nccl. "Collective" in a docstring means: call on every rank, in
the same order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from schemas import errors
from schemas.errors import BulkheadError, ConfigError, TrainingError
from training.distributed.lost_peer import LOST_PEER

# longer than the longest work of rank 0 alone: writing a checkpoint, metrics on a large split
TIMEOUT_SECONDS = 600.0
LAST_TENSOR_SECONDS = 0.1
CAUSE_FIRST_SECONDS = 3.0  # torchrun reports the earliest failure, with timestamps in whole seconds

T = TypeVar("T")


class Parallel:
    """This process among the ranks; close it on every exit path (`with`).

    Args:
        rank: number of this process over all machines.
        world_size: number of processes.
        local_rank: number of this process on its machine, which is the number of its GPU.
        local_world_size: processes on this machine.
        device: where this rank computes.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        local_world_size: int = 1,
        device: torch.device | None = None,
    ) -> None:
        self.rank, self.world_size, self.local_rank, self.local_world_size = (
            rank,
            world_size,
            local_rank,
            local_world_size,
        )
        self.device = device or torch.device("cpu")

    @classmethod
    def open(cls, device: str = "auto", timeout_seconds: float = TIMEOUT_SECONDS) -> Parallel:
        """Join the group that `torchrun` announced in the environment; without it, run alone.

        Args:
            device: auto (cuda if there is one), cpu or cuda.
            timeout_seconds: after which a collective that a peer does not join fails.

        Raises:
            ConfigError: cuda is declared but absent, or there are more ranks than GPUs on this
                machine.
        """
        world_size, local_rank = (
            int(os.environ.get("WORLD_SIZE", "1")),
            int(os.environ.get("LOCAL_RANK", "0")),
        )
        parallel = cls(
            int(os.environ.get("RANK", "0")),
            world_size,
            local_rank,
            int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            _device(device, local_rank),
        )
        if parallel.device.type == "cuda":
            torch.cuda.set_device(parallel.device)
        if world_size > 1:
            on_gpu = parallel.device.type == "cuda"
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                timeout=timedelta(seconds=timeout_seconds),
                device_id=parallel.device if on_gpu else None,
            )
        return parallel

    def __enter__(self) -> Parallel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group; a second call does nothing."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
            # gloo's threads outlive the group if a DDP module was made. A thread that still has to
            # drop the tensor of the last collective when Python shuts down aborts the process
            # (SIGABRT): give it time.
            time.sleep(LAST_TENSOR_SECONDS)

    @property
    def is_main(self) -> bool:
        """Return True if this rank writes: the first one."""
        return self.rank == 0

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place. Collective."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.SUM)
        return tensor

    def begin_sum(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to sum over ranks, in place; call the returned function to wait. Collective."""
        work = (
            dist.all_reduce(tensor, dist.ReduceOp.SUM, async_op=True)
            if self.world_size > 1
            else None
        )

        def finish() -> Tensor:
            """Wait for the sum."""
            if work is not None:
                work.wait()
            return tensor

        return finish

    def tree_sum(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, a power of two, in place. Collective.

        The sum is a balanced binary tree of pairs, so it has the same rounding on every rank.
        """
        distance = 1
        while distance < self.world_size:
            other, peer = torch.empty_like(tensor), self.rank ^ distance
            for request in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, other, peer)]
            ):
                request.wait()
            tensor += other
            distance *= 2
        return tensor

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Take the largest over ranks, in place. Collective."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set on any rank. Collective."""
        return bool(self.all_reduce_max(torch.tensor([float(flag)])).item())

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Copy the tensor of rank 0 to all, in place. Collective."""
        if self.world_size > 1:
            dist.broadcast(tensor, 0)
        return tensor

    def barrier(self) -> None:
        """Wait until every rank is here. Collective."""
        self.all_reduce_sum(torch.zeros(1))

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Return each rank's bytes, by rank, on every rank. Collective."""
        if self.world_size == 1:
            return [payload]
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        sizes[self.rank] = len(payload)
        dist.all_reduce(sizes)
        table = torch.zeros((self.world_size, int(sizes.max())), dtype=torch.uint8)
        table[self.rank, : len(payload)] = torch.frombuffer(
            bytearray(payload or b"\0"), dtype=torch.uint8
        )[: len(payload)]
        dist.all_reduce(table)
        return [
            bytes(table[rank, :size].numpy().tobytes()) for rank, size in enumerate(sizes.tolist())
        ]

    def broadcast_text(self, text: str = "") -> str:
        """Return the text of rank 0. Collective."""
        return self.gather_bytes(text.encode() if self.is_main else b"")[0].decode()

    def on_main(self, work: Callable[[], T]) -> T:
        """Run work on rank 0 alone; every rank gets its result or its error. Collective.

        Args:
            work: must return a value that JSON can hold.

        Raises:
            BulkheadError: of the class and with the message that the work raised on rank 0.
        """
        if self.world_size == 1:
            return work()
        if not self.is_main:
            answer: T = _unpack(self.broadcast_text())
            return answer
        try:
            result = work()
        except Exception as error:
            self.broadcast_text(json.dumps({"error": type(error).__name__, "message": str(error)}))
            raise
        self.broadcast_text(json.dumps({"value": result}))
        return result

    def let_the_cause_be_first(self, error: BaseException) -> None:
        """Wait if an error only says that a peer has gone, so that the peer's error comes first.

        It is then reported as the cause.

        Raises:
            TrainingError: in place of such an error.
        """
        if self.world_size > 1 and is_peer_failure(error):
            time.sleep(CAUSE_FIRST_SECONDS)
            raise TrainingError(
                f"rank {self.rank} {LOST_PEER}, which failed or was killed first; see that rank's"
                " message in train.log"
            ) from error


def is_peer_failure(error: BaseException) -> bool:
    """Return True if an error says that another rank has gone or did not answer in time."""
    text = str(error)
    return (
        isinstance(error, RuntimeError)
        and not isinstance(error, BulkheadError)
        and (isinstance(error, dist.DistError) or "gloo" in text or "by peer" in text)
    )


def _unpack(text: str) -> Any:
    answer = json.loads(text)
    if "error" not in answer:
        return answer["value"]
    kind = getattr(errors, answer["error"], None)
    if isinstance(kind, type) and issubclass(kind, BulkheadError):
        raise kind(answer["message"])
    raise TrainingError(f"{answer['error']} on rank 0: {answer['message']}")


def _device(declared: str, local_rank: int) -> torch.device:
    found = torch.cuda.is_available()
    if declared == "cuda" and not found:
        raise ConfigError(
            "train.device is cuda, but torch finds no CUDA device here; set train.device: cpu or"
            " auto"
        )
    if declared == "cpu" or not found:
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank} has no GPU to itself: this machine has"
            f" {torch.cuda.device_count()}; leave train.ranks out, or lower it"
        )
    return torch.device("cuda", local_rank)


def pairwise_sum(values: list[Tensor]) -> Tensor:
    """Add a power of two of values in the order of `Parallel.tree_sum`; return the sum []."""
    while len(values) > 1:
        values = [left + right for left, right in zip(values[::2], values[1::2], strict=True)]
    return values[0]
