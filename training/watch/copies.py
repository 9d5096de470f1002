"""Copies of a trained network that are evaluated in its place: whether anything of the training has
reached them.
"""

from __future__ import annotations

import hashlib
import math
import re
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from training.watch.forwards import Call, Forwards, Norm
from training.watch.gradients import Gradients
from training.watch.record import Listener, Place, Watch

SOME = 10  # steps of training, batches of a norm
OFTEN = 0.25  # of all steps: what is called so often teaches
# share and number of weights that training moves out of the bounds of the start
OUTSIDE, LEAST = (0.01, 20)
ROUNDED = 1e-5
FAR = 0.1  # deviations between running means
MOST_ROWS = 20_000
UNTRAINED = re.compile(
    r"untrained|not_trained|random_init|randomly initiali[sz]ed|fresh_init", re.IGNORECASE
)


@dataclass(eq=False)
class Evaluated:
    """A network that is evaluated and that no optimizer steps."""

    module: weakref.ref[nn.Module]
    name: str
    place: Place
    fresh: bool = False
    # it was called in eval mode: its calls in train mode make goals, and are no evaluations
    evaluates: bool = False
    at: set[int] = field(default_factory=set)  # steps
    rows: set[bytes] = field(default_factory=set)
    values: float = 0.0  # sums of its parameters and of its buffers
    buffers: float = 0.0
    counted: int = (
        0  # batches that the norms of the trained network had seen at the first evaluation
    )
    stale: int = 0  # evaluations with other weights and the same statistics


class Copies(Listener):
    """Listens to evaluations of networks of the class of a trained one."""

    def __init__(self, watch: Watch, forwards: Forwards, gradients: Gradients) -> None:
        self.watch, self.forwards, self.gradients = watch, forwards, gradients
        self.trained: dict[type[nn.Module], list[weakref.ref[nn.Module]]] = {}
        self.of: dict[int, Evaluated] = {}
        # rows that were given to networks that hold what was learned
        self.learned: set[bytes] = set()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The network of this step is trained."""
        call = self.forwards.last
        if call is None or not call.grad:
            return
        known = self.trained.setdefault(type(call.module), [])
        if all(ref() is not call.module for ref in known):
            known.append(weakref.ref(call.module))

    def forwarded(self, call: Call) -> None:
        """An evaluation, once a step of each network."""
        if call.grad or self.watch.steps < SOME or not call.inputs or not call.rows:
            return
        module = call.module
        twins = [t for ref in self.trained.get(type(module), []) if (t := ref()) is not None]
        if not call.training:
            self._norms(call, twins)
        if not twins:
            return
        if call.inputs[0].layout is not torch.strided:
            return  # an adjacency matrix, which has no rows of the batch
        rows = hashes(call.inputs[0])
        if any(id(p) in self.forwards.trained for p in module.parameters()):
            self._add(self.learned, rows)
            return
        known = self.of.get(id(module))
        if known is None or known.module() is not module:
            known = self.of[id(module)] = Evaluated(
                weakref.ref(module), type(module).__name__, call.place
            )
        if known.evaluates and call.training:
            return
        if not call.training and not known.evaluates:
            known.evaluates, known.place = True, call.place
            known.at.clear()
            known.rows.clear()
        if self.watch.steps not in known.at:
            self._judge(known, module, twins)
        self._add(known.rows if known.fresh else self.learned, rows)

    def _add(self, known: set[bytes], rows: set[bytes]) -> None:
        if len(known) < MOST_ROWS:
            known |= rows

    def _judge(self, known: Evaluated, module: nn.Module, twins: list[nn.Module]) -> None:
        values, buffers = (
            sum(float(t.detach().double().sum()) for t in ts)
            for ts in (module.parameters(), statistics_of(module))
        )
        counted = max(batches_of(t) for t in twins)
        if known.at and known.buffers != buffers:
            known.stale = -len(known.at) - self.watch.steps  # they follow
        elif (
            known.at
            and known.values != values
            and counted - known.counted >= SOME
            and any(apart(module, t) for t in twins)
        ):
            known.stale += 1
        known.fresh = not (known.at and known.values != values) and self._fresh(module, twins)
        if not known.at:
            known.counted = counted
        known.at.add(self.watch.steps)
        known.values, known.buffers = values, buffers

    # ------------------------------------------------------------------------------------ what is
    # learned

    def _fresh(self, module: nn.Module, twins: list[nn.Module]) -> bool:
        """Whether a network is as a trained one was before its first step, or as the layers of
        torch are made.
        """
        if any(part in self.forwards.loaded for part in module.modules()):
            return False
        first: dict[int, list[Tensor]] = {}
        for held in self.gradients.held.values():
            for p, before in held.before if held.steps else []:
                first.setdefault(id(p), []).append(before)
        return any(as_before(module, twin, first) for twin in twins) or (
            as_made(module) and all(beyond(t) for t in twins)
        )

    def _norms(self, call: Call, twins: list[nn.Module]) -> None:
        """Norms in eval mode whose statistics are those of the start."""
        still = [(n, m) for n, m in norms(call.module) if not m.training and at_start(m)]
        if not still:
            return
        counting = [n for n, m in still if int(m.num_batches_tracked or 0) >= SOME]
        others = [dict(norms(t)) for t in twins if t is not call.module]
        behind = [
            n for n, _ in still if any(n in known and not at_start(known[n]) for known in others)
        ]
        name = type(call.module).__name__
        if counting:
            told = (
                f"after {SOME} batches and more the running mean of {counting[0]} in {name} is 0"
                " and its variance 1: it does not follow them (momentum)"
            )
            self.watch.tell("BH845", told, call.place)
        elif (
            behind
            and not self._fresh(call.module, twins)
            and not says_untrained(self.watch.program)
        ):
            told = (
                f"the running mean of {behind[0]} in {name} is 0 and its variance 1, those of the"
                " network that was trained are not"
            )
            self.watch.tell("BH845", told, call.place)

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """What the whole run shows."""
        for known in self.of.values():
            often = len(known.at) > max(2, OFTEN * self.watch.steps)
            module = known.module()
            if often or (
                module is not None
                and any(id(p) in self.forwards.trained for p in module.parameters())
            ):
                continue
            if (
                known.fresh
                and not known.rows & self.learned
                and not says_untrained(self.watch.program)
            ):
                told = (
                    f"the {known.name} that is evaluated holds nothing of what was learned in"
                    f" {self.watch.steps} steps: no optimizer steps it, and nothing was copied"
                )
                self.watch.tell("BH844", f"{told} into it since it was made", known.place)
            elif known.stale > 0:
                told = (
                    f"the {known.name} that is evaluated takes over the weights of the one that is"
                    " trained, and keeps the running statistics of an earlier one"
                )
                self.watch.tell("BH845", told, known.place)


def says_untrained(program: Path) -> bool:
    """Whether a program compares with a network that has learned nothing, and says so."""
    return bool(UNTRAINED.search(program.read_text(encoding="utf-8", errors="replace")))


def norms(module: nn.Module) -> list[tuple[str, Norm]]:
    """Batch norms that keep statistics."""
    return [
        (n, m)
        for n, m in module.named_modules()
        if isinstance(m, Norm) and m.track_running_stats and m.running_mean is not None
    ]


def statistics_of(module: nn.Module) -> list[Tensor]:
    """Running means of its norms."""
    return [m.running_mean for _, m in norms(module) if m.running_mean is not None]


def batches_of(module: nn.Module) -> int:
    """The most batches that one of its norms has seen."""
    return max((int(m.num_batches_tracked or 0) for _, m in norms(module)), default=0)


def at_start(norm: Norm) -> bool:
    """Whether its statistics are those that it was made with.

    >>> at_start(nn.BatchNorm1d(3))
    True
    """
    if norm.running_mean is None or norm.running_var is None:
        return False
    return not bool(norm.running_mean.any()) and bool((norm.running_var == 1).all())


def apart(module: nn.Module, twin: nn.Module) -> bool:
    """Whether the running means of two networks are far from each other, in deviations."""
    theirs = dict(norms(twin))
    pairs = [(m, theirs[n]) for n, m in norms(module) if n in theirs]
    return any(
        bool(((a.running_mean - b.running_mean).abs() > FAR * b.running_var.sqrt()).any())
        for a, b in pairs
        if a.running_mean is not None
        and b.running_mean is not None
        and b.running_var is not None
        and a.running_mean.shape == b.running_mean.shape
    )


def as_before(module: nn.Module, twin: nn.Module, first: dict[int, list[Tensor]]) -> bool:
    """Whether a network has the weights that its trained twin had before the first step, and the
    twin others by now.
    """
    theirs = dict(twin.named_parameters())
    pairs = [
        (p, theirs[n])
        for n, p in module.named_parameters()
        if n in theirs and id(theirs[n]) in first
    ]
    if not pairs or not all(
        any(p.shape == then.shape and torch.equal(p, then) for then in (*first[id(t)], t))
        for p, t in pairs
    ):
        return False
    return any(p.ndim > 1 and not torch.equal(p, t) for p, t in pairs)


def outside(module: nn.Module) -> tuple[int, int]:
    """How many weights of linear layers and convolutions are beyond the bounds in which torch makes
    them, and of how many.
    """
    beyond_it = total = 0
    for m in module.modules():
        if (
            not isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
            or type(m.weight.detach()) is not Tensor
        ):
            continue
        bound = (1 + ROUNDED) / math.sqrt(max(m.weight[0].numel(), 1))
        for p in m.parameters(recurse=False):
            beyond_it, total = beyond_it + int((p.detach().abs() > bound).sum()), total + p.numel()
    return beyond_it, total


def as_made(module: nn.Module) -> bool:
    """Whether all weights are such as torch makes them.

    >>> as_made(nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(30)))
    True
    """
    plain = [
        m
        for m in module.modules()
        if isinstance(m, nn.LayerNorm | Norm) and m.weight is not None and m.bias is not None
    ]
    if any(bool((m.weight != 1).any() or (m.bias != 0).any()) for m in plain):
        return False
    beyond_it, total = outside(module)
    return total >= LEAST / OUTSIDE / 10 and beyond_it == 0


def beyond(module: nn.Module) -> bool:
    """Whether many weights have left the bounds in which torch makes them."""
    beyond_it, total = outside(module)
    return beyond_it >= max(LEAST, OUTSIDE * total)


def hashes(rows: Tensor) -> set[bytes]:
    """One of each of the first rows."""
    flat = rows.detach()[:256].reshape(min(len(rows), 256), -1)[:, :4096].cpu().contiguous()
    return {
        hashlib.blake2b(row.tobytes(), digest_size=8).digest()
        for row in flat.view(torch.uint8).reshape(len(flat), -1).numpy()
    }
