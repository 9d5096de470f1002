"""End a run after a step that is not finite or out of memory; first save the progress."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from schemas.config import Declaration
from schemas.errors import BulkheadError, NonFiniteError, OutOfMemoryError, first_few
from schemas.records import RunSpec
from training.distributed.parallel import is_peer_failure
from training.engine.batches import Window
from training.engine.dump import contents, write_dump
from training.engine.step import Gate, Step

log = logging.getLogger("training")


def non_finite(
    spec: RunSpec, run_dir: Path, step: Step, window: Window, gate: Gate, rate: float
) -> NonFiniteError:
    """Write this rank's dump, agree on the cause, and return the error for every rank.
    Collective.
    """
    parallel = step.parallel
    found = contents(step, window, rate, spec.arrays.train)
    folder = write_dump(run_dir, found)
    rows = found["wrong_row_ids"] or found["row_ids"]
    cause = (
        f"{found['cause']} on rank {parallel.rank} (first rows: {first_few(rows)})"
        if found["cause"]
        else ""
    )
    causes = [text.decode() for text in parallel.gather_bytes(cause.encode()) if text]
    # After the exchange every rank has the non-finite gradient; the loss shows where it began.
    what = (
        min(causes, key=lambda text: not text.startswith("loss"))
        if causes
        else f"loss is {gate.loss}, gradient norm is {gate.grad_norm}"
    )
    message = (
        f"{what}, at step {found['step']}, epoch {found['epoch']}, learning rate {rate:.3g}; no"
        " parameter was changed by this step"
    )
    return NonFiniteError(
        f"{message}; see {folder.parent}, lower optimizer.lr, or check those rows"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an allocation failed, on the device or on the host."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def explained(
    error: Exception, declaration: Declaration, step: int, rank: int, save: Callable[[], str]
) -> Exception:
    """Save what can be saved, and return the error to raise in place of the one that ended
    training.

    Args:
        error: error on this rank.
        declaration: for the advice in the message.
        step: completed steps.
        rank: rank of this process.
        save: commits the last boundary without the other ranks and describes it; called if memory
            ran out here, or if a peer is gone (killed, or out of memory).
    """
    out_of_memory = is_out_of_memory(error)
    if isinstance(error, BulkheadError) or not (out_of_memory or is_peer_failure(error)):
        return error
    saved = _tried(save)
    if not out_of_memory:
        return error
    if torch.cuda.is_available():
        log.error("%s", torch.cuda.memory_summary())
    return OutOfMemoryError(
        f"rank {rank} ran out of memory after step {step}; {saved}. {_advice(declaration)}"
        f" ({str(error).splitlines()[0]})"
    )


def _tried(save: Callable[[], str]) -> str:
    try:
        return save()
    except Exception as error:  # must not hide the cause; the last checkpoint is complete anyway
        log.error("the state could not be saved after a failure: %s", error)
        return "the last checkpoint stands"


def _advice(declaration: Declaration) -> str:
    train = declaration.train
    size = train.micro_batch_size or -(-train.batch_size // train.ranks)
    ways = [
        f"Lower train.micro_batch_size (now {size}) to {max(1, size // 2)}: the gradient stays that"
        f" of batch_size {train.batch_size}"
    ]
    ways += ["set train.recompute_activations"] * (not train.recompute_activations)
    ways += ["set train.precision: bf16"] * (train.precision == "fp32")
    ways += ["set train.parallel: fsdp"] * (
        train.ranks > 1 and train.parallel == "ddp" and train.mode != "elastic"
    )
    return "; or ".join(ways)
