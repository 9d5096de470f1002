"""What optimizers do beside following the gradient: decay, moments, and the state that they keep of
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.watch.forwards import Call
from training.watch.gradients import Gradients
from training.watch.record import Listener, Place, Watch

FEW, SOME, MANY = 3, 5, 10  # times lost, steps with betas, steps that decay
LARGE = 0.01  # of a weight at each step
PENALTY = 0.25  # of Adam, whose steps do not grow with it
PAIR = 2  # betas: of the mean and of the square; others have more, and other meanings
LEAST = 50  # weights
REPEATS = (
    "reproduc",
    "deterministic",
    "determinism",
    "bit for bit",
    "bit-for-bit",
    "identical",
    "torch.equal",
    "allclose",
    "array_equal",
    "resume",
    "checkpoint",
)
DECAYING, PENALISED = (
    ("SGD", "AdamW", "Muon"),
    (
        "Adam",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adagrad",
        "RMSprop",
    ),
)


@dataclass(eq=False)
class Updated:
    """Steps of one optimizer."""

    optimizer: torch.optim.Optimizer
    steps: int = 0
    decayed: int = 0  # steps that take a large part of each weight
    decay: str = ""
    swapped: tuple[float, float] | None = None
    turned: bool = False  # vectors decay, and matrices do not
    had: bool = False  # a state of its weights after the last step
    lost: int = 0
    place: Place | None = None
    # lowest and highest of each group
    rates: list[tuple[float, float]] = field(default_factory=list)
    scheduled: bool = False
    given: set[int] = field(default_factory=set)  # groups with gradients
    version: tuple[Tensor, int] | None = None  # of the first weight after the last step


class Updates(Listener):
    """Listens to optimizers."""

    def __init__(self, watch: Watch, gradients: Gradients) -> None:
        self.watch, self.gradients = watch, gradients
        self.of: dict[int, Updated] = {}
        # steps of the program when a weight was last used without a gradient, by its id
        self.asked: dict[int, int] = {}

    def forwarded(self, call: Call) -> None:
        """A network that is used."""
        if not call.grad:
            self.asked.update((id(p), self.watch.steps) for p in call.module.parameters())

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a step: its decay and betas, and whether the state of the last step is still
        there.
        """
        known = self.of.get(id(optimizer))
        if known is None or known.optimizer is not optimizer:
            known = self.of[id(optimizer)] = Updated(optimizer)
        known.steps += 1
        known.place = self.watch.here()
        known.lost += known.had and not has_state(optimizer)
        decays = [told for group in optimizer.param_groups if (told := erased(optimizer, group))]
        known.decayed += bool(decays)
        known.decay = decays[0] if decays else known.decay
        known.turned = known.turned or decays_vectors_alone(optimizer)
        self._rates(known)
        for group in optimizer.param_groups:
            betas = group.get("betas", ())
            if len(betas) == PAIR and float(betas[0]) > float(betas[1]):
                known.swapped = (float(betas[0]), float(betas[1]))

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step."""
        if id(optimizer) in self.of:
            known = self.of[id(optimizer)]
            known.had = has_state(optimizer)
            first = next((p for group in optimizer.param_groups for p in group["params"]), None)
            known.version = None if first is None else (first, first._version)

    def _rates(self, known: Updated) -> None:
        groups = known.optimizer.param_groups
        rates = [float(group.get("lr") or 0.0) for group in groups]
        known.scheduled |= bool(getattr(known.optimizer.step, "_wrapped_by_lr_sched", False))
        known.rates = (
            [(min(a, r), max(b, r)) for (a, b), r in zip(known.rates, rates, strict=False)]
            if len(known.rates) == len(rates)
            else [(r, r) for r in rates]
        )
        known.given |= {
            i for i, group in enumerate(groups) if any(p.grad is not None for p in group["params"])
        }

    def ended(self) -> None:
        """What the whole run shows."""
        self.alike()
        for known in self.of.values():
            name = type(known.optimizer).__name__
            held = self.gradients.held.get(id(known.optimizer))
            made = held.made if held is not None else known.place
            if known.steps >= MANY and known.decayed > known.steps / 2:
                self.watch.tell(
                    "BH839",
                    f"in {known.decayed} of {known.steps} steps of {name} {known.decay}",
                    made,
                )
            if known.steps >= SOME and known.swapped is not None:
                first, second = known.swapped
                told = (
                    f"{name} takes the mean of gradients with {first:g} and that of their squares"
                    f" with {second:g}"
                )
                self.watch.tell(
                    "BH840",
                    f"{told}: the squares are those of a few batches, and the mean that of far"
                    " more",
                    made,
                )
            if known.steps >= SOME and known.turned:
                self.watch.tell(
                    "BH875",
                    f"{name} decays every bias and scale of a norm, and none of the matrices: the"
                    " groups are the wrong way round",
                    made,
                )
            self._part(known, made)
            if known.lost >= max(FEW, (known.steps - 1) / 2):
                self.watch.tell(
                    "BH123",
                    f"before {known.lost} of {known.steps} steps of {name} its state was emptied:"
                    " momentum and moments are lost",
                    known.place,
                )

    def _part(self, known: Updated, made: Place | None) -> None:
        """Groups whose rate is 0 throughout, or stays while that of the first is set by hand."""
        name, groups = type(known.optimizer).__name__, known.optimizer.param_groups
        if known.steps < MANY or len(known.rates) < PAIR:
            return
        still = [
            i
            for i, (_, highest) in enumerate(known.rates)
            if highest == 0.0 and i in known.given and groups[i]["params"]
        ]
        if still and len(still) < len(groups):
            count = sum(len(groups[i]["params"]) for i in still)
            told = (
                f"the rate of group {still[0]} of {name} is 0 in all {known.steps} steps: its"
                f" {count} parameters get gradients and never move"
            )
            self.watch.tell("BH881", told, made)
        changed = [i for i, (lowest, highest) in enumerate(known.rates) if lowest != highest]
        others = sorted(known.given - {0} - set(still))
        if changed == [0] and others and not known.scheduled:
            lowest, highest = known.rates[0]
            told = (
                f"the rate of group 0 of {name} goes from {lowest:.2g} to {highest:.2g}, and that"
                f" of {len(others)} other groups stays {known.rates[others[0]][1]:.2g}"
            )
            self.watch.tell("BH881", told, made)

    def alike(self) -> None:
        """Networks that optimizers made at one line have trained to the same bits, and that are
        used when all have been trained.
        """
        known = [
            (self.gradients.held[i], k)
            for i, k in self.of.items()
            if k.steps >= MANY and i in self.gradients.held
        ]
        last = max((held.last_at for held, _ in known), default=0)
        trained = [
            (held.made, k)
            for held, k in known
            if k.version is not None and self.asked.get(id(k.version[0]), -1) >= last
        ]
        for at, (made, first) in enumerate(trained):
            if (
                any(other == made and is_same(first, k) for other, k in trained[at + 1 :])
                and not self._on_purpose()
            ):
                count = 1 + sum(
                    other == made and is_same(first, k) for other, k in trained[at + 1 :]
                )
                self.watch.tell(
                    "BH885",
                    f"{count} networks that were trained one by one are the same, bit for bit: they"
                    " were seeded alike",
                    made,
                )
                return

    def _on_purpose(self) -> bool:
        """Whether the program is about training that can be repeated."""
        text = self.watch.program.read_text(encoding="utf-8", errors="replace").lower()
        return any(word in text for word in REPEATS)


def is_same(a: Updated, b: Updated) -> bool:
    """Whether two optimizers left the same weights in different tensors, and nothing else has
    written to these since.
    """
    if any(k.version is None or k.version[0]._version != k.version[1] for k in (a, b)):
        return False
    mine, others = (
        [p for group in k.optimizer.param_groups for p in group["params"]] for k in (a, b)
    )
    if len(mine) != len(others) or any(
        p is q or p.shape != q.shape for p, q in zip(mine, others, strict=True)
    ):
        return False
    return sum(p.numel() for p in mine) >= LEAST and all(
        torch.equal(p.detach(), q.detach()) for p, q in zip(mine, others, strict=True)
    )


def decays_vectors_alone(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the groups with decay hold vectors only, and those without matrices only."""
    kept, decayed = (
        [
            p
            for g in optimizer.param_groups
            if bool(g.get("weight_decay")) is decay
            for p in g["params"]
        ]
        for decay in (False, True)
    )
    return (
        bool(kept)
        and bool(decayed)
        and all(p.ndim <= 1 for p in decayed)
        and all(p.ndim > 1 for p in kept)
    )


def has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps anything of a weight that it is about to step, or has stepped."""
    return any(
        p in optimizer.state and bool(optimizer.state[p])
        for g in optimizer.param_groups
        for p in g["params"]
        if p.grad is not None
    )


def erased(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> str:
    """How the decay of a group erases its weights; empty where it does not."""
    decay, rate = float(group.get("weight_decay") or 0.0), float(group.get("lr") or 0.0)
    kinds = {
        kind.__name__
        for kind in type(optimizer).__mro__
        if kind.__module__.startswith("torch.optim")
    }
    given = [p for p in group["params"] if p.grad is not None]
    if not decay or not given:
        return ""
    if group.get("decoupled_weight_decay") or kinds & set(DECAYING):
        told = (
            f"a rate of {rate:g} with weight_decay={decay:g} takes {min(rate * decay, 1.0):.0%} of"
            " every weight"
        )
        return told if rate * decay >= LARGE else ""
    if (
        decay >= PENALTY
        and kinds & set(PENALISED)
        and decay * size([p.detach() for p in given]) > size([p.grad for p in given])
    ):
        return (
            f"weight_decay={decay:g} is added to the gradients {decay:g} times the weights, which"
            " outweighs them: steps lead to 0"
        )
    return ""


def size(tensors: list[Tensor]) -> float:
    """Of all values together, the root of the sum of squares."""
    return float(
        torch.stack(
            [t.detach().float().norm() for t in tensors if not t.is_sparse] or [torch.zeros(())]
        ).norm()
    )
