"""First steps of the declared training, before it starts: learning rates, time and memory.

They use a new network, built as on every rank, on the CPU, in float32 and in one process.
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
from schemas.errors import counted, first_few
from schemas.init_records import InitialWeights
from schemas.recipes import has_recipe_rates
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
ROWS, TEXTS = 32, 4  # rows of a step: fewer rows per class are separable at any rate
STEPS = 10  # steps of a rate that rises to its peak
DIVERGED, ROSE = 10.0, 2.0  # last loss as a multiple of the first
# share of a weight that decays per step, more than a batch can restore
ERASED, SHRUNK = 0.05, 0.01
HEAVY = 1.0  # weight decay that is too large itself; with less, the rate may be too high
# least relative movement over the whole run: of the network, of one group
LEAST_MOVE, FROZEN_MOVE = 0.01, 1e-6
MEMORY_SHARE = 0.9  # share of the free memory
WINDOW_ROWS, WINDOW_OF_LARGE = 128, 32  # most rows of a timed step
TIMED_STEPS, TRIAL_SECONDS = 5, 0.25


def make_trial(
    declaration: Declaration,
    statistics: Statistics,
    train: dict[str, np.ndarray],
    large: bool = False,
    init: InitialWeights | None = None,
) -> Trial:
    """Prepare the data and loss for the checks below.

    Args:
        declaration: declaration of the run.
        statistics: statistics fitted on train.
        train: arrays of the train split.
        large: true for a network whose steps are expensive.
        init: weights that the network starts from.
    """
    rows = len(train["label"])
    few, most = ROWS, WINDOW_OF_LARGE if large else WINDOW_ROWS
    if statistics.tokens is not None:
        few = most = TEXTS
    window = first_rows(train, min(micro_rows(declaration.train, rows), most))
    loss = make_loss(declaration, statistics)
    return Trial(declaration, statistics, loss, first_rows(train, few), window, rows, init)


def first_steps(trial: Trial) -> dict[str, Callable[[], CheckResult]]:
    """Return the checks of export, rates, gradient and resume by name, for a network with sound
    gradients.
    """
    checks = {
        "export": check_export,
        "rates": check_rates,
        "gradcheck": check_gradient,
        "resume": check_resume,
    }
    return {name: partial(_seeded, check, trial) for name, check in checks.items()}


def _seeded(check: Callable[[Trial], CheckResult], trial: Trial) -> CheckResult:
    """Run a check with its own seed, so that its random numbers do not depend on other checks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.declaration.train.seed)
        return check(trial)


def check_rates(trial: Trial) -> CheckResult:
    """Check that the declared optimizer at its peak rates neither diverges nor leaves a group
    unmoved.
    """
    _, optimizer = trial.fresh()
    # factors of the network are part of its design, and are tested by the steps below
    groups = [g for g in optimizer.param_groups if "factor" not in g] or optimizer.param_groups
    decay = judge_decay({g["name"]: (g["lr"], g["weight_decay"]) for g in groups})
    if decay is not None and max(g["weight_decay"] for g in optimizer.param_groups) >= HEAVY:
        return decay
    losses, moves = rising_steps(trial)
    peak = max(g["lr"] for g in optimizer.param_groups)
    judged = judge_rates(losses, peak, moves, has_recipe_rates(trial.declaration))
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
    """Find weight decay that removes weights faster than batches restore them, or return None.

    Args:
        groups: peak rate and weight decay of each group.
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
    """Make ten steps on one batch with rates that rise to their peaks.

    Returns:
        The loss of each step, and the relative movement of weights in the whole run by group; ""
        is for all weights.
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
    # the rates rise to the peak, so these steps count for about half as many
    updates = _updates(trial.declaration, trial.rows) / (STEPS / 2)
    moves = {name: updates * _share(before[name], after) for name, after in groups.items()}
    every = ([p for group in held.values() for p in group] for held in (before, groups))
    return losses, {**moves, "": updates * _share(*every)}


def _share(before: list[Tensor], after: list[Tensor]) -> float:
    """Return the movement of weights relative to their size."""
    moved = _norm([a.detach() - b for a, b in zip(after, before, strict=True)])
    return moved / max(_norm(before), _norm([a.detach() for a in after]), 1e-30)


def judge_rates(
    losses: list[float], peak: float, moves: dict[str, float], is_recipe: bool = False
) -> CheckResult:
    """Check that a rate is neither too high nor too low for training.

    Args:
        losses: loss of each step on one batch.
        peak: largest rate.
        moves: relative movement of the weights in the whole run, by group; "" is for all weights.
        is_recipe: whether the rates are published ones of the model's kind, which are high for ten
            steps on one batch and fall along its schedule; then only a loss that is not finite is
            a failure.
    """
    first, last, share = losses[0], losses[-1], moves[""]
    figures: dict[str, Figure] = {
        "rate": peak,
        "first_loss": first,
        "last_loss": last if math.isfinite(last) else None,
        "movement": share,
    }
    did = f"{counted(len(losses), 'step')} on one batch up to the peak rate {peak:.3g}: loss"
    did += f" {first:.4g} → {last:.4g}"
    if not math.isfinite(last) or (last > ROSE * first and not is_recipe):
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
            f"{did}: the rates of {counted(len(still), 'group')} ({first_few(still)}) are so low"
            " that their weights stay where they are.",
            "raise lr of their rule in optimizer.modules, or list them under model.freeze",
            **figures,
        )
    return RATES.passed(f"{did}.", **figures)


def micro_rows(train: TrainConfig, train_rows: int) -> int:
    """Return the largest number of rows that a rank's network processes at once."""
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
    """Estimate time and memory of the run from steps, and warn if memory is too small."""
    train = trial.declaration.train
    network, optimizer = trial.fresh()
    # the first step also creates the optimizer's state and is not timed
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
    exchanged = weights if train.ranks > 1 and shared == 1 else 0  # buckets of DDP
    activations = saved.total / len(trial.window) * micro_rows(train, trial.rows)
    held = 4 if train.ema else 2  # gradients; an average, and raw weights while it is scored
    needed = (held * weights + states + exchanged) / shared + activations
    return judge_cost(trial.declaration, a_row * trial.rows * train.epochs, needed)


def judge_cost(declaration: Declaration, seconds: float, needed: float) -> CheckResult:
    """Report time and memory of the run.

    Args:
        declaration: declaration of the run.
        seconds: time of all epochs in one process on this machine.
        needed: bytes per rank of weights, gradients, optimizer and activations.
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
    """Return the memory available to new processes, on the CPU including the page cache."""
    if not on_cpu:
        return float(torch.cuda.mem_get_info()[0])
    return available_memory()


class _saved_bytes(torch.autograd.graph.saved_tensors_hooks):
    """Counter of the bytes saved for the backward pass, each storage once and without weights."""

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
