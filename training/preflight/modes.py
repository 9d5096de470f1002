"""Preflight checks of train and eval mode, which must agree except for dropout and batch norm.

Custom dropout without rescaling is searched at the inputs and outputs of each module. Everything
before the module runs as in eval mode. Scores do not show it: behind a layer norm, correct dropout
changes their mean as much.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from schemas.config import TrainConfig
from schemas.errors import first_few
from schemas.records import CheckResult
from training.preflight.first_steps import micro_rows
from training.preflight.subject import (
    copied,
    hooked,
    joined,
    scored,
    with_other_first_row,
    without_dropout,
)
from training.preflight.verdict import SAME, Check, largest_difference

TRAIN_EVAL = Check("train_eval")
ALL_DROPPED = 0.95  # dropout rate that leaves nothing to learn from
# least rows for mean and variance of a batch norm; with fewer, they depend on the neighbors
FEW_ROWS = 8
ONE_BATCH = 0.8  # momentum of a batch norm that only keeps its last batch
# share of the initial statistics left at the end of the run; a momentum below any usual one
UNSETTLED, SLOW = 0.5, 0.01
# rows for the statistics of a batch norm; mean difference in standard deviations of the scores
NORM_ROWS, OTHER = 128, 0.25
# passes for a power iteration or running mean; share of the difference left
SETTLING_PASSES, FADED = 30, 0.1
PASSES = 32
FEWEST_DROPPED = 0.02  # least share of dropped values
LIKE = 1e-3  # relative difference of values that are equal up to rounding
# largest distance from 1 of the mean in train mode over that in eval mode
UNSCALED = 0.25
Place = tuple[str, str, int]  # module, "input" or "output", number of the call


def check_modes(
    network: nn.Module, rows: dict[str, Tensor], train: TrainConfig, train_rows: int
) -> CheckResult:
    """Check that train mode without dropout gives the scores of eval mode, and that batch norm has
    enough rows.

    Args:
        network: network, which is not changed.
        rows: inputs of a few rows.
        train: settings with the batch size and the number of ranks.
        train_rows: rows of the train split; 0 if they do not limit the rows of a batch norm.
    """
    updates = train.epochs * -(-train_rows // train.batch_size)
    if (wrong := _heavy_dropout(network) or _running_statistics(network, updates)) is not None:
        return wrong
    student = without_dropout(copy.deepcopy(network))
    trained, difference = _trained(student, rows), _apart(student, rows)
    if difference <= SAME:
        return TRAIN_EVAL.passed("Without dropout, train and eval mode give the same scores.")
    random = largest_difference(_trained(student, rows, seed=1), trained) > SAME
    dropped = dropped_unscaled(student, rows) if random else None
    if dropped is not None:
        return _unscaled(dropped)
    if largest_difference(_trained(student, with_other_first_row(rows))[1:], trained[1:]) > SAME:
        unlike = None if random else _other_function(student, rows)
        return unlike or judge_mixing(student, train, train_rows, difference)
    if random:
        return TRAIN_EVAL.passed(
            "Train mode draws at random, as dropout does; eval mode does not.",
            difference=difference,
        )
    if _apart(student, rows, SETTLING_PASSES) <= max(SAME, FADED * difference):
        return TRAIN_EVAL.passed(
            "Train and eval mode give the same scores once what train mode updates has settled.",
            difference=difference,
        )
    return TRAIN_EVAL.warned(
        f"train and eval mode differ by up to {difference:.2g}, though nothing is random and no"
        " rows mix: what is trained is not what is evaluated.",
        "look for self.training in forward; dropout of one's own must divide by the share that is"
        " kept",
        difference=difference,
    )


def _heavy_dropout(network: nn.Module) -> CheckResult | None:
    """Report dropout that leaves almost nothing."""
    heavy = [
        f"{name}, p {m.p:g}"
        for name, m in network.named_modules()
        if isinstance(m, nn.modules.dropout._DropoutNd) and m.p >= ALL_DROPPED
    ]
    if not heavy:
        return None
    return TRAIN_EVAL.failed(
        f"in train mode dropout leaves next to nothing ({first_few(heavy)}).",
        "give the share that is dropped, about 0.1 to 0.5",
    )


def _batch_norms(network: nn.Module) -> dict[str, nn.modules.batchnorm._NormBase]:
    """Return the norm layers in train mode that keep statistics for eval mode, by name."""
    return {
        name: m
        for name, m in network.named_modules()
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.training and m.track_running_stats
    }


def _running_statistics(network: nn.Module, updates: int) -> CheckResult | None:
    """Report norm layers whose running statistics never settle, or only keep one batch.

    Args:
        network: network with or without such layers.
        updates: steps of the whole run; 0 if unknown.
    """
    norms = _batch_norms(copy.deepcopy(network).train())
    momenta = {n: m.momentum for n, m in norms.items() if m.momentum is not None}
    left = {n: (1 - momentum) ** max(updates, 1) for n, momentum in momenta.items()}
    still = [
        n
        for n, share in left.items()
        if share == 1 or (updates and share > UNSETTLED and momenta[n] < SLOW)
    ]
    last = [n for n, momentum in momenta.items() if momentum >= ONE_BATCH]
    if still:
        return TRAIN_EVAL.failed(
            f"the running mean and variance of {first_few(still)} stay near 0 and 1, where they"
            f" began (momentum {momenta[still[0]]:g}): eval mode does not normalise by what was"
            " trained on.",
            "give batch norm its usual momentum of 0.1, or None for the mean of all batches; a"
            " frozen one belongs in eval mode",
        )
    if last:
        return TRAIN_EVAL.warned(
            f"the running mean and variance of {first_few(last)} are those of the last batch alone"
            f" (momentum {momenta[last[0]]:g}): eval mode depends on it.",
            "torch's momentum is the share of the new batch: 0.1, not 0.9",
        )
    return None


def _other_function(network: nn.Module, rows: dict[str, Tensor]) -> CheckResult | None:
    """Warn if eval mode gives other scores although batch norm has the statistics of these rows.

    Args:
        network: deterministic network whose rows mix in train mode.
        rows: inputs of a few rows.
    """
    trained, evaluated, calls = _settled_scores(network, rows)
    apart = float((evaluated - trained).abs().mean() / trained.std(0).mean().clamp(min=1e-12))
    if not torch.isfinite(evaluated).all() or apart <= OTHER:
        return None
    if shared := [name for name, count in calls.items() if count > 1]:
        told = (
            f"{first_few(shared)} normalises {max(calls.values())} different inputs in one pass: in"
            " train mode each by its own mean and variance, in eval mode all by their mixture"
        )
        remedy = "give each input its own norm"
    elif any(
        largest_difference(evaluated, squash(trained)) < FADED
        for squash in (torch.sigmoid, lambda s: s.softmax(-1))
    ):
        told = "eval mode gives probabilities, train mode scores: loss and metrics make"
        told += " probabilities of them once more"
        remedy = "return raw scores in both modes"
    else:
        told = "train and eval mode compute something else, also where batch norm knows these very"
        told, remedy = f"{told} rows", "look for self.training in forward"
    return TRAIN_EVAL.warned(
        f"{told}. Scores differ by {apart:.2g} of their standard deviation: what is trained is not"
        " what is evaluated.",
        remedy,
        difference=apart,
    )


def _settled_scores(
    network: nn.Module, rows: dict[str, Tensor]
) -> tuple[Tensor, Tensor, dict[str, int]]:
    """Return scores of a copy in train mode, then in eval mode with statistics of these rows. Also
    return the calls of each batch norm per pass.
    """
    # the running variance divides by n - 1
    many = {name: torch.cat([t] * -(-NORM_ROWS // len(t))) for name, t in rows.items()}
    settled = copy.deepcopy(network).train()
    norms = _batch_norms(settled)
    calls = dict[str, int]()

    def count(name: str, _module: nn.Module, _given: object) -> None:
        calls[name] = calls.get(name, 0) + 1

    for norm in norms.values():
        norm.reset_running_stats()
        norm.momentum = None  # averages over all calls
    # custom norms have buffers too
    holding = [any(b.is_floating_point() for b in m.buffers(False)) for m in settled.modules()]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        with hooked(settled, count):
            trained = joined(settled, settled(many).detach())
        for _ in range(SETTLING_PASSES if len(norms) < sum(holding) else 0):
            settled(copied(many))
    return trained, scored(settled, many), {name: calls.get(name, 0) for name in norms}


def judge_mixing(
    network: nn.Module, train: TrainConfig, train_rows: int, difference: float
) -> CheckResult:
    """Report a network whose rows mix in train mode: a warning for several ranks or few rows per
    batch norm.

    Args:
        network: network in train mode; its batch norms in eval mode are frozen.
        train: settings with the batch size.
        train_rows: rows of the train split, or 0.
        difference: difference of the scores of both modes.
    """
    norms = {
        name: m
        for name, m in network.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training
    }
    where = f" ({first_few(norms)})" if norms else ""
    shared = (
        train.ranks if norms and all(isinstance(m, nn.SyncBatchNorm) for m in norms.values()) else 1
    )
    rows = micro_rows(train, train_rows) * shared
    if norms and 0 < rows < FEW_ROWS:
        return TRAIN_EVAL.warned(
            f"batch norm{where} is trained on {rows} rows at a time: their mean and variance are"
            " mostly chance, and eval mode, which has running ones, gives other scores.",
            f"give at least {FEW_ROWS} rows to a rank at once (train.batch_size,"
            " train.micro_batch_size), or use group or layer norm",
            difference=difference,
            rows=rows,
        )
    if train.ranks == 1:
        return TRAIN_EVAL.passed(
            f"In train mode rows of a batch mix{where}, in eval mode they do not.",
            difference=difference,
        )
    return TRAIN_EVAL.warned(
        f"train and eval mode differ by up to {difference:.2g} with dropout off{where}: each rank"
        " normalises with the statistics of its rows alone, so results depend on the number of"
        " ranks.",
        "use group or layer norm",
        difference=difference,
    )


def _unscaled(dropped: Dropped) -> CheckResult:
    return TRAIN_EVAL.warned(
        f"in train mode {1 - dropped.kept:.0%} of {dropped.where} is dropped at random and the rest"
        f" multiplied by {dropped.factor:.3g}, not by {1 / dropped.kept:.2g}: a missing rescaling,"
        f" so that in eval mode values are {1 / (dropped.kept * dropped.factor):.2g} times as large"
        " as those that were trained on.",
        "divide by the share that is kept, or use nn.Dropout",
        kept=dropped.kept,
        factor=dropped.factor,
    )


def _trained(network: nn.Module, inputs: dict[str, Tensor], seed: int = 0) -> Tensor:
    """Return scores [B, K] of a copy in train mode. Running statistics do not change."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scores: Tensor = copy.deepcopy(network).train()(copied(inputs))
        return joined(network, scores.detach())


def _apart(network: nn.Module, inputs: dict[str, Tensor], passes: int = 0) -> float:
    """Return the largest score difference of a copy's modes, after passes in train mode without
    learning.
    """
    settled = copy.deepcopy(network).train()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for _ in range(passes):
            settled(copied(inputs))
    return largest_difference(_trained(settled, inputs), scored(settled, inputs))


@dataclass(frozen=True)
class Dropped:
    """Values that are set to 0 at random in or before a module: place, kept share and factor."""

    where: str
    kept: float
    factor: float


def dropped_unscaled(network: nn.Module, inputs: dict[str, Tensor]) -> Dropped | None:
    """Return the first place where dropout does not keep the mean, or None.

    Args:
        network: network, which is not changed. Its dropout modules keep the mean and may stay on.
        inputs: inputs of a few rows.
    """
    student, clean = copy.deepcopy(network), dict[Place, Tensor]()
    shares = defaultdict[Place, list[tuple[float, float]]](list)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _watched(student.eval(), inputs, clean.setdefault)

        def compare(place: Place, value: Tensor) -> Tensor:
            if place not in clean or clean[place].shape != value.shape:
                return value
            shares[place].append(_masked(value, clean[place]) or (math.nan, math.nan))
            return clean[place]

        for _ in range(PASSES):
            _watched(student.train(), inputs, compare)
    found = (_judge_place(place, measured) for place, measured in shares.items())
    return next(filter(None, found), None)


def _watched(
    network: nn.Module, inputs: dict[str, Tensor], look: Callable[[Place, Tensor], Tensor]
) -> None:
    """Run a forward pass in which `look` replaces the inputs and outputs of each module."""
    calls = defaultdict[tuple[str, str], int](int)

    def seen(name: str, side: str, value: object) -> object:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return value
        calls[name, side] += 1
        return look((name, side, calls[name, side]), value.clone())

    def before(name: str, _: nn.Module, given: tuple[object, ...]) -> tuple[object, ...]:
        return (seen(name, "input", given[0]), *given[1:]) if given else given

    def after(name: str, _: nn.Module, given: object, output: object) -> object:
        return seen(name, "output", output)

    with hooked(network, before, after):
        network(copied(inputs))


def _masked(value: Tensor, clean: Tensor) -> tuple[float, float] | None:
    """Return the kept share and its factor if each of `value` is 0 or the same multiple of `clean`.
    Otherwise return None.
    """
    least = 1e-6 * float(clean.abs().max()) if clean.numel() else 0.0
    alive = clean.abs() > least
    kept = alive & (value != 0)
    if not kept.any() or bool((value[~alive].abs() > least).any()):
        return None
    factors = value[kept] / clean[kept]
    factor = float(factors.mean())
    if float((factors - factor).abs().max()) > LIKE * abs(factor):
        return None
    return float(kept.sum() / alive.sum()), factor


def _judge_place(place: Place, measured: list[tuple[float, float]]) -> Dropped | None:
    """Return the dropout at a place if it does not keep the mean in all passes.

    Args:
        place: place of the values.
        measured: kept share and factor of each pass.
    """
    kept, factor = torch.tensor(measured, dtype=torch.float64).T
    if (
        len(measured) < PASSES
        or not bool(kept.isfinite().all())
        or float((factor - factor.mean()).abs().max()) > LIKE * abs(float(factor.mean()))
    ):
        return None
    mean = kept * factor
    # whole rows or layers may be dropped at once
    unsure = 3 * float(mean.std()) / math.sqrt(len(measured))
    if float(kept.mean()) > 1 - FEWEST_DROPPED or abs(float(mean.mean()) - 1) <= UNSCALED + unsure:
        return None
    name, side, _ = place
    return Dropped(f"the {side} of {name or 'the model'}", float(kept.mean()), float(factor.mean()))
