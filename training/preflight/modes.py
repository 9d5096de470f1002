"""The preflight check of what train mode and eval mode make of the same rows: two names of one
function, but for dropout and batch norm.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from schemas.config import TrainConfig
from schemas.errors import first_few
from schemas.records import CheckResult
from training.preflight.dropped import Dropped, dropped_unscaled
from training.preflight.first_steps import micro_rows
from training.preflight.overfit import without_dropout
from training.preflight.scores import scored, with_other_first_row
from training.preflight.verdict import SAME, failed, largest_difference, passed

ALL_DROPPED = 0.95  # of a dropout: what is left cannot be learned from
# for the mean and variance of a batch norm: with fewer, what is learned is mostly who the
# neighbours are
FEW_ROWS = 8
ONE_BATCH = 0.8  # momentum of a batch norm, with which its statistics are those of its last batch
# share of the first values that is left at the end of the run, where the momentum is smaller than
# any usual one
UNSETTLED, SLOW = (
    0.5,
    0.01,
)
# rows for the statistics of a batch norm; mean difference of scores, in their standard deviations
NORM_ROWS, OTHER = (
    128,
    0.25,
)
# of a power iteration or a running mean; share of the difference that may be left
SETTLING_PASSES, FADED = (30, 0.1)


def check_modes(
    network: nn.Module, rows: dict[str, Tensor], train: TrainConfig, train_rows: int
) -> CheckResult:
    """Train mode, with dropout off, gives the scores of eval mode; a warning where it computes
    something else, or batch norm has too few rows.

    Args:
        network: not changed.
        rows: inputs of a few rows.
        train: how many rows go through the network at once, and on how many ranks.
        train_rows: rows of the train side; 0 where they are no measure of what a batch norm sees.
    """
    heavy = [
        f"{name}, p {m.p:g}"
        for name, m in network.named_modules()
        if isinstance(m, nn.modules.dropout._DropoutNd) and m.p >= ALL_DROPPED
    ]
    if heavy:
        return failed(
            "train_eval",
            f"in train mode dropout leaves next to nothing ({first_few(heavy)}).",
            "give the share that is dropped, about 0.1 to 0.5",
        )
    if (
        unsettled := _running_statistics(network, train.epochs * -(-train_rows // train.batch_size))
    ) is not None:
        return unsettled
    student = without_dropout(copy.deepcopy(network))
    trained, difference = _trained(student, rows), _apart(student, rows)
    if difference <= SAME:
        return passed("train_eval", "Without dropout, train and eval mode give the same scores.")
    random = largest_difference(_trained(student, rows, seed=1), trained) > SAME
    dropped = dropped_unscaled(student, rows) if random else None
    if dropped is not None:
        return _unscaled(dropped)
    if largest_difference(_trained(student, with_other_first_row(rows))[1:], trained[1:]) > SAME:
        unlike = None if random else _other_function(student, rows)
        return unlike or judge_mixing(student, train, train_rows, difference)
    if random:
        return passed(
            "train_eval",
            "Train mode draws at random, as dropout does; eval mode does not.",
            difference=difference,
        )
    if _apart(student, rows, SETTLING_PASSES) <= max(SAME, FADED * difference):
        return passed(
            "train_eval",
            "Train and eval mode give the same scores once what train mode updates has settled.",
            difference=difference,
        )
    summary = (
        f"train and eval mode differ by up to {difference:.2g}, though nothing is random and no"
        " rows mix: what is trained is not what is evaluated."
    )
    remedy = (
        "look for self.training in forward; dropout of one's own must divide by the share that is"
        " kept"
    )
    return CheckResult(
        name="train_eval",
        verdict="warn",
        summary=summary,
        remedy=remedy,
        figures={"difference": difference},
    )


def _running_statistics(network: nn.Module, updates: int) -> CheckResult | None:
    """What is wrong with how layers that normalise keep statistics for eval mode: they never
    arrive, or are those of one batch.

    Args:
        network: with such layers, or without.
        updates: steps of the whole run; 0 where they are not known.
    """
    learning = {
        n: m
        for n, m in copy.deepcopy(network).train().named_modules()
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.training
    }
    norms = {n: m for n, m in learning.items() if m.track_running_stats and m.momentum is not None}
    left = {
        n: (1 - (m.momentum or 0)) ** max(updates, 1) if m.momentum else 1.0
        for n, m in norms.items()
    }
    still = [
        n
        for n, share in left.items()
        if share == 1 or (updates and share > UNSETTLED and (norms[n].momentum or 0) < SLOW)
    ]
    last = [n for n, m in norms.items() if (m.momentum or 0) >= ONE_BATCH]
    if still:
        momentum = norms[still[0]].momentum or 0
        told = (
            f"the running mean and variance of {first_few(still)} stay near 0 and 1, where they"
            f" began (momentum {momentum:g}): eval mode does not normalise by what was trained on."
        )
        return failed(
            "train_eval",
            told,
            "give batch norm its usual momentum of 0.1, or None for the mean of all batches; a"
            " frozen one belongs in eval mode",
        )
    if last:
        told = (
            f"the running mean and variance of {first_few(last)} are those of the last batch alone"
            f" (momentum {norms[last[0]].momentum:g}): eval mode depends on it."
        )
        return CheckResult(
            name="train_eval",
            verdict="warn",
            summary=told,
            remedy="torch's momentum is the share of the new batch: 0.1, not 0.9",
        )
    return None


def _other_function(network: nn.Module, rows: dict[str, Tensor]) -> CheckResult | None:
    """A warning where eval mode gives other scores than train mode though batch norms know mean and
    variance of just these rows.

    Args:
        network: deterministic; its rows mix in train mode.
        rows: inputs of a few rows.
    """
    # the variance that is kept is that of n - 1
    many = {name: torch.cat([t] * -(-NORM_ROWS // len(t))) for name, t in rows.items()}
    settled = copy.deepcopy(network).train()
    norms = {
        name: m
        for name, m in settled.named_modules()
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.training and m.track_running_stats
    }
    calls: dict[str, int] = dict.fromkeys(norms, 0)

    def counted(name: str) -> Callable[[nn.Module, object], None]:
        def count(_module: nn.Module, _given: object) -> None:
            calls[name] += 1

        return count

    for name, norm in norms.items():
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all calls
        norm.register_forward_pre_hook(counted(name))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        trained = settled(many).detach()
        once = dict(calls)
        # a norm of the user's own
        for _ in range(SETTLING_PASSES if len(norms) < _holding(settled) else 0):
            settled({name: t.clone() for name, t in many.items()})
    evaluated = scored(settled, many)
    apart = float((evaluated - trained).abs().mean() / trained.std(0).mean().clamp(min=1e-12))
    if not torch.isfinite(evaluated).all() or apart <= OTHER:
        return None
    shared = [name for name, count in once.items() if count > 1]
    if shared:
        told = (
            f"{first_few(shared)} normalises {max(once.values())} different inputs in one pass: in"
            " train mode each by its own mean and variance, in eval mode all by their mixture"
        )
        remedy = "give each input its own norm"
    elif any(
        largest_difference(evaluated, squash(trained)) < FADED
        for squash in (torch.sigmoid, lambda s: s.softmax(-1))
    ):
        told, remedy = (
            (
                "eval mode gives probabilities, train mode scores: loss and metrics make"
                " probabilities of them once more"
            ),
            "return raw scores in both modes",
        )
    else:
        told = (
            "train and eval mode compute something else, also where batch norm knows these very"
            " rows"
        )
        remedy = "look for self.training in forward"
    summary = (
        f"{told}. Scores differ by {apart:.2g} of their standard deviation: what is trained is not"
        " what is evaluated."
    )
    return CheckResult(
        name="train_eval",
        verdict="warn",
        summary=summary,
        remedy=remedy,
        figures={"difference": apart},
    )


def _holding(network: nn.Module) -> int:
    """Layers that hold floating point buffers of their own, as norms do."""
    return sum(
        any(b.is_floating_point() for b in m.buffers(recurse=False)) for m in network.modules()
    )


def judge_mixing(
    network: nn.Module, train: TrainConfig, train_rows: int, difference: float
) -> CheckResult:
    """What is said of a network whose rows mix in train mode: nothing, but of several ranks, or of
    few rows at a batch norm.

    Args:
        network: in train mode; batch norms that it keeps in eval mode are frozen.
        train: how many rows go through it at once.
        train_rows: of the train side, or 0.
        difference: between the scores of both modes.
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
    figures: dict[str, float | int | str | None] = {"difference": difference}
    if norms and 0 < rows < FEW_ROWS:
        summary = (
            f"batch norm{where} is trained on {rows} rows at a time: their mean and variance are"
            " mostly chance, and eval mode, which has running ones, gives other scores."
        )
        remedy = (
            f"give at least {FEW_ROWS} rows to a rank at once (train.batch_size,"
            " train.micro_batch_size), or use group or layer norm"
        )
        return CheckResult(
            name="train_eval",
            verdict="warn",
            summary=summary,
            remedy=remedy,
            figures={**figures, "rows": rows},
        )
    if train.ranks == 1:
        return passed(
            "train_eval",
            f"In train mode rows of a batch mix{where}, in eval mode they do not.",
            difference=difference,
        )
    summary = (
        f"train and eval mode differ by up to {difference:.2g} with dropout off{where}: each rank"
        " normalises with the statistics of its rows alone, so results depend on the number of"
        " ranks."
    )
    return CheckResult(
        name="train_eval",
        verdict="warn",
        summary=summary,
        remedy="use group or layer norm",
        figures=figures,
    )


def _unscaled(dropped: Dropped) -> CheckResult:
    told = (
        f"in train mode {1 - dropped.kept:.0%} of {dropped.where} is dropped at random and the rest"
        f" multiplied by {dropped.factor:.3g}, not by {1 / dropped.kept:.2g}"
    )
    return CheckResult(
        name="train_eval",
        verdict="warn",
        summary=(
            f"{told}: a missing rescaling, so that in eval mode values are"
            f" {1 / (dropped.kept * dropped.factor):.2g} times as large as those that were"
            " trained on."
        ),
        remedy="divide by the share that is kept, or use nn.Dropout",
        figures={"kept": dropped.kept, "factor": dropped.factor},
    )


def _trained(network: nn.Module, inputs: dict[str, Tensor], seed: int = 0) -> Tensor:
    """Scores of a copy in train mode, [B, K]: running statistics stay as they were."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scores: Tensor = copy.deepcopy(network).train()(
            {name: t.clone() for name, t in inputs.items()}
        )
        return scores.detach()


def _apart(network: nn.Module, inputs: dict[str, Tensor], passes: int = 0) -> float:
    """Largest difference of a copy's scores in eval and train mode, after so many passes in train
    mode that nothing is learned from.
    """
    settled = copy.deepcopy(network).train()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for _ in range(passes):
            settled({name: t.clone() for name, t in inputs.items()})
    return largest_difference(_trained(settled, inputs), scored(settled, inputs))
