"""Scores of every row of a split exactly once, on every rank, and the metrics computed from them.

Rows are cut into chunks of `batch_size`; a rank scores consecutive whole chunks, without padding. A
row is therefore always computed with the same other rows, and its score does not depend on the
number of ranks.

N rows, K scores of a row, R ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from schemas.config import Declaration
from schemas.errors import DataError, NonFiniteError, TrainingError, first_few
from schemas.records import SplitArrays, Statistics
from training.data.arrays.shards import load_arrays
from training.distributed.parallel import Parallel
from training.engine.batches import TARGETS, Tensors, as_tensors
from training.engine.dump import row_ids
from training.engine.sampling import share, spans
from training.objectives.losses import Loss


class Interrupted(Exception):
    """A stop was requested on some rank while rows were scored; raised on every rank."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set eval mode and inference mode inside; afterwards restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


def score(model: nn.Module, arrays: SplitArrays, batch_size: int, parallel: Parallel) -> np.ndarray:
    """Return raw scores float32 [N, K] of a split, every row once, on every rank. Collective.

    Args:
        model: not wrapped; on `parallel.device`, with the same weights on every rank.
        arrays: the split.
        batch_size: rows of one forward pass.
        parallel: the ranks that share the work.

    Raises:
        DataError: the split has no rows.
        NonFiniteError: scores are not finite; the message names the first row ids.
        TrainingError: a row was not scored, or more than once.
    """
    inputs = {name: t for name, t in as_tensors(load_arrays(arrays)).items() if name not in TARGETS}
    scores = score_tensors(model, inputs, arrays.rows, batch_size, parallel)
    require_finite(scores, arrays)
    return scores


def score_tensors(
    model: nn.Module,
    inputs: Tensors,
    num_rows: int,
    batch_size: int,
    parallel: Parallel,
    *,
    lockstep: bool = False,
    stop: Callable[[], bool] | None = None,
) -> np.ndarray:
    """Return raw scores float32 [N, K] of the first N rows, like `score`, finite or not.
    Collective.

    Args:
        model: as in `score`, or sharded.
        inputs: inputs with at least N rows.
        num_rows: N.
        batch_size: rows of one forward pass.
        parallel: the ranks that share the work.
        lockstep: a forward pass is collective (sharded model): every rank makes the same number.
        stop: called before each forward pass.

    Raises:
        DataError: no rows.
        Interrupted: a stop was requested on some rank.
        TrainingError: a row was not scored, or more than once.
    """
    if num_rows < 1:
        raise DataError("there are no rows to score; change split.fractions or data.filter")
    chunks = spans(num_rows, batch_size)
    first, last = share(len(chunks), parallel.rank, parallel.world_size)
    mine: list[tuple[int, int, Tensor]] = []
    with evaluating(model):
        for begin, end in chunks[first:last]:
            if not lockstep and stop is not None and stop():
                break
            mine.append((begin, end, _forward(model, inputs, begin, end, parallel.device)))
        if lockstep and last - first < -(-len(chunks) // parallel.world_size):
            _forward(model, inputs, *chunks[0], parallel.device)
    return _gather(mine, num_rows, parallel, stop is not None and stop())


def _gather(
    mine: list[tuple[int, int, Tensor]], num_rows: int, parallel: Parallel, stopped: bool
) -> np.ndarray:
    agreed = parallel.all_reduce_max(
        torch.tensor([float(mine[0][2].shape[1]) if mine else 0.0, float(stopped)])
    )
    if agreed[1]:
        raise Interrupted
    scores, counts = torch.zeros(num_rows, int(agreed[0])), torch.zeros(num_rows)
    for begin, end, values in mine:
        scores[begin:end] = values
        counts[begin:end] += 1
    require_once(parallel.all_reduce_sum(counts))
    return np.asarray(parallel.all_reduce_sum(scores).numpy())


def require_once(counts: Tensor) -> None:
    """Refuse a gathered result in which a row was not scored exactly once.

    Raises:
        TrainingError: the message gives the first row numbers.
    """
    wrong = torch.nonzero(counts != 1).flatten().tolist()
    if wrong:
        raise TrainingError(
            f"expected every row to be scored exactly once; {len(wrong)} of {len(counts)} rows were"
            f" not (first rows: {first_few(wrong)})"
        )


def require_finite(scores: np.ndarray, arrays: SplitArrays) -> None:
    """Refuse scores that are not finite: no metric of them is meaningful.

    Raises:
        NonFiniteError: the message gives the first row ids.
    """
    bad = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if len(bad):
        ids = first_few(row_ids(arrays, bad[:5].tolist()), total=len(bad))
        raise NonFiniteError(
            f"scores of {len(bad)} of {len(scores)} rows are not finite (first ids: {ids}); lower"
            " optimizer.lr, or bound the inputs with normalize.clip"
        )


def _forward(
    model: nn.Module, inputs: Tensors, begin: int, end: int, device: torch.device
) -> Tensor:
    # Copy on the CPU as well: the arrays are mapped read-only, and a model may work in place.
    scores: Tensor = model(
        {name: tensor[begin:end].to(device, copy=True) for name, tensor in inputs.items()}
    )
    return scores.cpu()


def measure(
    declaration: Declaration,
    statistics: Statistics,
    loss: Loss,
    scores: np.ndarray,
    targets: dict[str, np.ndarray],
) -> dict[str, float | None]:
    """Compute `loss` (over all rows) and every metric of the task from the gathered scores.

    Args:
        declaration: gives the task.
        statistics: class names and label scaling.
        loss: the training loss, on the CPU.
        scores: [N, K], or [N, 3] of a language model (training.engine.token_scoring).
        targets: `label` [N] as stored and optionally `weight` [N].
    """
    from training.objectives import metrics, token_metrics

    if declaration.task.kind == "causal_lm":
        return token_metrics.row_metrics(scores, targets.get("weight"))
    tensors = as_tensors(targets)
    with torch.inference_mode():
        whole = loss(torch.from_numpy(scores), tensors["label"], tensors.get("weight"))
    return {
        "loss": float(whole),
        **metrics.compute(declaration, statistics, scores, targets["label"], targets.get("weight")),
    }
