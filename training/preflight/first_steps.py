"""The first steps of the declared training, tried before it starts: its rates, and what it costs.

On a network of its own, built as every rank builds it; on the CPU, in float32, in one process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from schemas.config import Declaration, TrainConfig
from schemas.errors import first_few
from schemas.records import CheckResult, Statistics
from training.data.engine.in_memory import available_memory
from training.engine.sampling import Sampler
from training.formatting import duration
from training.objectives.losses import make_loss
from training.preflight.gradient_checks import check_gradient
from training.preflight.resume import check_export, check_resume
from training.preflight.subject import Trial, first_rows, without_dropout
from training.preflight.verdict import Check, Figure

RATES = Check("rates")
COST = Check("cost")
ROWS, TEXTS = 32, 4  # of a step: classes of fewer rows are separated at any rate, however high
STEPS = 10  # at a rate that rises to its peak
DIVERGED, ROSE = 10.0, 2.0  # loss after these steps, as a multiple of the first
# of a weight, by weight decay in one step: more than any batch can write back
ERASED, SHRUNK = 0.05, 0.01
HEAVY = 1.0  # weight decay that is at fault itself, where a rate that is too high may be with less
# of the weights' size, in the whole run: of the network, of one group
LEAST_MOVE, FROZEN_MOVE = 0.01, 1e-6
MEMORY_SHARE = 0.9  # of what is free
WINDOW_ROWS, WINDOW_OF_LARGE = 128, 32  # most rows of a step that is timed
TIMED_STEPS, TRIAL_SECONDS = 5, 0.25


def make_trial(
    declaration: Declaration,
    statistics: Statistics,
    train: dict[str, np.ndarray],
    large: bool = False,
) -> Trial:
    """What the checks below are made on.

    Args:
        declaration: of the run.
        statistics: fitted on train.
        train: arrays of the train side.
        large: whether the network has so many weights that each step is dear.
    """
    rows = len(train["label"])
    few, most = ROWS, WINDOW_OF_LARGE if large else WINDOW_ROWS
    if statistics.tokens is not None:
        few = most = TEXTS
    window = first_rows(train, min(micro_rows(declaration.train, rows), most))
    loss = make_loss(declaration, statistics)
    return Trial(declaration, statistics, loss, first_rows(train, few), window, rows)


def first_steps(trial: Trial) -> dict[str, Callable[[], CheckResult]]:
    """Checks of export, rates, gradient and resume by the name of their result, for a network whose
    gradients were found sound.
    """
    checks = {
        "export": check_export,
        "rates": check_rates,
        "gradcheck": check_gradient,
        "resume": check_resume,
    }
    return {name: partial(_seeded, check, trial) for name, check in checks.items()}


def _seeded(check: Callable[[Trial], CheckResult], trial: Trial) -> CheckResult:
    """Each check draws the same numbers wherever and after whichever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.declaration.train.seed)
        return check(trial)


def check_rates(trial: Trial) -> CheckResult:
    """The declared optimizer at its peak rates neither drives the loss away nor leaves the weights
    where they are, of no group.
    """
    _, optimizer = trial.fresh()
    decay = judge_decay({g["name"]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups})
    if decay is not None and max(g["weight_decay"] for g in optimizer.param_groups) >= HEAVY:
        return decay
    losses, moves = rising_steps(trial)
    judged = judge_rates(losses, max(g["lr"] for g in optimizer.param_groups), moves)
    if judged.verdict == "pass" and decay is not None:
        return decay
    train = trial.declaration.train
    if (
        judged.verdict == "pass"
        or train.clip == "none"
        or not moves[""] < LEAST_MOVE
        or rising_steps(trial, clipped=False)[1][""] < LEAST_MOVE
    ):
        return judged
    return RATES.failed(
        f"with gradients clipped to {train.clip_at:g} the weights could move by {moves['']:.2g} of"
        " their size in the whole run: the clipping takes what the rate would do.",
        "raise train.clip_at, to 1 for a norm",
        **judged.figures,
    )


def judge_decay(groups: dict[str, tuple[float, float]]) -> CheckResult | None:
    """Whether weight decay erases the weights faster than batches write them; None where it does
    not.

    Args:
        groups: peak rate and weight decay by name.
    """
    name, (rate, decay) = max(groups.items(), key=lambda item: item[1][0] * item[1][1])
    if rate * decay < SHRUNK:
        return None
    return (RATES.failed if rate * decay >= ERASED else RATES.warned)(
        f"group {name}: weight decay {decay:g} at rate {rate:g} takes {rate * decay:.0%} of each"
        " weight in one step.",
        "lower optimizer.weight_decay" if decay >= 1 else "lower optimizer.lr",
    )


def rising_steps(trial: Trial, clipped: bool = True) -> tuple[list[float], dict[str, float]]:
    """Ten steps on one batch with rates that rise to their peaks: the losses, and by how much of
    their size weights could move in the whole run.

    Returns:
        The loss of each step; the movement by group that has moving weights, of all weights under
        "".
    """
    network, optimizer = trial.fresh()
    without_dropout(network)
    groups = {str(g["name"]): list(g["params"]) for g in optimizer.param_groups}
    before = {name: [p.detach().clone() for p in parameters] for name, parameters in groups.items()}
    peaks, losses = [group["lr"] for group in optimizer.param_groups], list[float]()
    for step in range(STEPS):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * (step + 1) / STEPS
        losses.append(trial.step(network, optimizer, clipped=clipped))
        if not math.isfinite(losses[-1]):
            break
    # the rates rose from a tenth of the peak to the peak: the steps made here count for about half
    # as many
    updates = _updates(trial.declaration, trial.rows) / (STEPS / 2)
    moves = {name: updates * _share(before[name], after) for name, after in groups.items()}
    every = ([p for group in held.values() for p in group] for held in (before, groups))
    return losses, {**moves, "": updates * _share(*every)}


def _share(before: list[Tensor], after: list[Tensor]) -> float:
    """Movement of weights relative to their size."""
    moved = _norm([a.detach() - b for a, b in zip(after, before, strict=True)])
    return moved / max(_norm(before), _norm([a.detach() for a in after]), 1e-30)


def judge_rates(losses: list[float], peak: float, moves: dict[str, float]) -> CheckResult:
    """Whether a rate is in the range where training works.

    Args:
        losses: of each step on one batch.
        peak: largest rate.
        moves: by how much of their size the weights could move in the whole run, by group, of all
            under "".
    """
    first, last, share = losses[0], losses[-1], moves[""]
    figures: dict[str, Figure] = {
        "rate": peak,
        "first_loss": first,
        "last_loss": last if math.isfinite(last) else None,
        "movement": share,
    }
    did = f"{len(losses)} steps on one batch up to the peak rate {peak:.3g}: loss"
    did += f" {first:.4g} → {last:.4g}"
    if not math.isfinite(last) or last > ROSE * first:
        judge = RATES.warned if last <= DIVERGED * first else RATES.failed
        told = f"{did}: the rate is too high, the loss is driven away."
        return judge(told, "lower optimizer.lr, by ten first", **figures)
    if share < LEAST_MOVE:
        return RATES.warned(
            f"{did}: the rate is so low that in the whole run the weights could move by {share:.2g}"
            " of their size.",
            "raise optimizer.lr or train.epochs",
            **figures,
        )
    if still := [name for name, move in moves.items() if move < FROZEN_MOVE]:
        return RATES.warned(
            f"{did}: the rates of {len(still)} groups ({first_few(still)}) are so low that their"
            " weights stay where they are.",
            "raise lr of their rule in optimizer.modules, or freeze them openly",
            **figures,
        )
    return RATES.passed(f"{did}.", **figures)


def micro_rows(train: TrainConfig, train_rows: int) -> int:
    """Rows that go through the network of a rank at once, at most."""
    share = -(-min(train.batch_size, train_rows) // train.ranks)
    return min(train.micro_batch_size or share, share)


def _norm(values: list[Tensor]) -> float:
    norms = torch.stack([torch.linalg.vector_norm(v.float()) for v in values])
    return float(torch.linalg.vector_norm(norms))


def _updates(declaration: Declaration, train_rows: int) -> int:
    train = declaration.train
    sampler = Sampler(train_rows, train.batch_size, train.seed, train.drop_last)
    return train.epochs * sampler.steps_per_epoch


def check_cost(trial: Trial) -> CheckResult:
    """Time and memory of the run, estimated from steps here; a warning where the memory is not
    there.
    """
    train = trial.declaration.train
    network, optimizer = trial.fresh()
    # the first step also makes the optimizer's state, and is not timed
    with _saved_bytes(network) as saved:
        trial.step(network, optimizer, trial.window)
    steps, started = 0, time.monotonic()
    while steps < TIMED_STEPS and (not steps or time.monotonic() - started < TRIAL_SECONDS):
        trial.step(network, optimizer, trial.window)
        steps += 1
    a_row = (time.monotonic() - started) / steps / len(trial.window)
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    states = sum(
        t.numel() * t.element_size()
        for state in optimizer.state.values()
        for t in state.values()
        if isinstance(t, Tensor)
    )
    shared = train.ranks if train.parallel == "fsdp" else 1
    exchanged = weights if train.ranks > 1 and shared == 1 else 0  # DDP's buckets
    activations = saved.total / len(trial.window) * micro_rows(train, trial.rows)
    needed = (2 * weights + states + exchanged) / shared + activations
    return judge_cost(trial.declaration, a_row * trial.rows * train.epochs, needed)


def judge_cost(declaration: Declaration, seconds: float, needed: float) -> CheckResult:
    """What the run will take.

    Args:
        declaration: of the run.
        seconds: of all epochs in one process on this machine's cores.
        needed: bytes of weights, gradients, optimizer and activations, a rank.
    """
    train = declaration.train
    figures: dict[str, Figure] = {"seconds": seconds, "bytes_a_rank": needed}
    on_cpu = train.device == "cpu" or (train.device == "auto" and not torch.cuda.is_available())
    told = f"About {needed / 1e6:,.0f} MB a rank next to data and libraries"
    if on_cpu:
        told += f", and at most about {duration(seconds)} of training for {train.epochs} epochs on"
        told += " this machine"
    told += "."
    free, here = _free_bytes(on_cpu), train.ranks // train.nodes if on_cpu else 1
    if needed * here > MEMORY_SHARE * free:
        return COST.warned(
            f"{told} {here} ranks here need {needed * here / 1e9:.1f} GB, {free / 1e9:.1f} GB"
            " are free.",
            "set train.micro_batch_size, train.recompute_activations or train.parallel: fsdp",
            **figures,
        )
    return COST.passed(told, **figures)


def _free_bytes(on_cpu: bool) -> float:
    """Memory that new processes can have: on the CPU with what the page cache would give back,
    which free pages leave out.
    """
    if not on_cpu:
        return float(torch.cuda.mem_get_info()[0])
    return available_memory()


class _saved_bytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that the backward pass keeps of the forward pass, each storage once, weights
    left out.
    """

    def __init__(self, network: nn.Module) -> None:
        self.total = 0
        self._seen = {p.untyped_storage().data_ptr() for p in network.parameters()}
        super().__init__(self._count, lambda tensor: tensor)

    def __enter__(self) -> _saved_bytes:
        super().__enter__()
        return self

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.total += storage.nbytes()
        return tensor
