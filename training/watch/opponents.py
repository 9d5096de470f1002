"""Networks that are trained against each other: in which direction each pushes the scores of made
rows, and what the maker is given.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from training.watch.forwards import Call
from training.watch.gradients import Gradients
from training.watch.losses import Functions
from training.watch.record import Place, Watch, guarded

SOME = 10  # steps
MOST = 0.9  # of them
ROWS = 0.95  # of a batch that are pushed the same way
# share of a gradient's squares that a line over the scores leaves: below, it is that of a squared
# distance
STRAIGHT, NEAR = (
    1e-9,
    1e-9,
)
NOTHING = 1e-12
LARGEST = 1_000_000  # values that are hashed
DRAWS = (
    "randn", "rand", "randn_like", "rand_like", "normal", "normal_", "uniform_", "bernoulli",
    "bernoulli_", "dropout", "randint", "multinomial",
)  # fmt: skip
KEPT = 32  # outputs
TWICE = 2


@dataclass(eq=False)
class Made:
    """What a network gave: where it lies, whose parameters made it, of what."""

    storage: StorageWeakRef
    owners: frozenset[int]
    key: bytes  # of what it was made of; empty where that does not tell
    alike: bool  # all rows of that are equal


@dataclass(eq=False)
class Scored:
    """Scores of rows: who gave them, and how a backward pass pushes them."""

    owners: frozenset[int]
    made: Made | None  # None: rows that no other network made
    attached: bool  # a gradient goes on to what made them
    key: bytes
    scores: Tensor
    alone: bool  # the judge is given nothing else
    sign: int = 0
    labelled: bool = False  # all have the same label
    place: Place | None = None
    spoiled: bool = False  # differentiated by itself, as for a penalty


@dataclass(eq=False)
class Pair:
    """A judge and a maker."""

    # steps of the judge, by whether it pushes made and real rows apart
    against: Counter[bool] = field(default_factory=Counter)
    # the same, by whether it pushes them alike, where all rows of a side have one label
    alike: Counter[bool] = field(default_factory=Counter)
    # steps of the maker, by whether it pushes made rows as the judge does
    helping: Counter[bool] = field(default_factory=Counter)
    down: int = 0  # how the judge pushed them last
    at: Place | None = None
    judged_at: Place | None = None
    given: bytes = b""
    same: int = 0  # steps of the maker on what it was given at the one before
    of_one: int = 0  # steps of the maker on rows that are all equal
    reals: set[bytes] = field(default_factory=set)


class Opponents:
    """Listens to calls, backward passes and steps of at least two optimizers."""

    def __init__(self, watch: Watch, gradients: Gradients, functions: Functions) -> None:
        self.watch, self.gradients, self.forwards = watch, gradients, gradients.forwards
        # draw their noise themselves
        self.drawing: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        functions.listen(DRAWS, after=self._drew)
        self.made: list[Made] = []
        self.scored: list[Scored] = []
        self.pairs: dict[tuple[frozenset[int], frozenset[int]], Pair] = {}
        self.place: Place | None = None  # of the backward pass that runs
        self.stepping_since = False

    def _drew(self, *_: Any, **__: Any) -> None:
        if self.forwards.stack:
            self.drawing.add(self.forwards.stack[0])

    def _owners(self, call: Call) -> frozenset[int]:
        mine = {id(p) for p in call.module.parameters()}
        return frozenset(
            key
            for key, held in self.gradients.held.items()
            if any(id(p) in mine for group in held.optimizer.param_groups for p in group["params"])
        )

    def forwarded(self, call: Call) -> None:
        """Keep what was made, and listen to the gradient of scores of something that a network may
        have made.
        """
        if len(self.gradients.held) < TWICE or not call.outputs:
            return
        owners, out = self._owners(call), call.outputs[0]
        if type(out) is not Tensor or not owners:
            return
        self.made = [m for m in self.made if not m.storage.expired()][-KEPT:]
        made = next(
            (m for t in call.inputs for m in self.made if _lies_in(t, m) and not m.owners & owners),
            None,
        )
        key = _key(call.inputs)
        if call.grad and out.requires_grad and out.is_floating_point() and call.inputs:
            record = Scored(
                owners,
                made,
                any(t.requires_grad for t in call.inputs),
                key,
                out.detach(),
                len(call.inputs) == 1,
            )
            out.register_hook(self._pushed(record))
        if out.layout == torch.strided and out.numel():
            told = call.module not in self.drawing and all(
                t.is_floating_point() for t in call.inputs
            )
            self.made.append(
                Made(
                    StorageWeakRef(out.untyped_storage()),
                    owners,
                    key if told else b"",
                    told and _rows_alike(call.inputs),
                )
            )

    def _pushed(self, record: Scored) -> Callable[[Tensor], None]:
        def listen(gradient: Tensor) -> None:
            self._listen(record, gradient)

        listen.__dict__["__torch_unserializable__"] = (
            True  # torch warns of other hooks where a program saves these scores
        )
        return listen

    @guarded
    def _listen(self, record: Scored, gradient: Tensor) -> None:
        if self.place is None:
            record.spoiled = True
        if record.spoiled:
            return
        with self.watch.unwatched(), torch.no_grad():
            record.sign, record.place = _direction(gradient), self.place
            record.labelled = _of_one_label(gradient, record.scores, record.alone)
        self.scored.append(record)

    def backing(self, place: Place) -> None:
        """A backward pass begins: what was used by a step is done with."""
        if self.stepping_since:
            self.scored, self.stepping_since = [], False
        self.place = place

    def backed(self, *_: Any) -> None:
        """It is over."""
        self.place = None

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """What the step of a judge or a maker was made on."""
        self.stepping_since = True
        key = id(optimizer)
        if not self.scored:
            return
        for made in {s.made.owners for s in self.scored if s.made is not None}:
            judges = {s.owners for s in self.scored if s.made is not None and s.made.owners == made}
            for judge in judges:
                pair = self.pairs.setdefault((judge, made), Pair())
                fakes = [
                    s
                    for s in self.scored
                    if s.owners == judge and s.made is not None and s.made.owners == made
                ]
                if key in judge and key not in made:
                    self._of_judge(pair, judge, fakes)
                elif key in made and key not in judge:
                    self._of_maker(pair, [s for s in fakes if s.attached])

    def _of_judge(self, pair: Pair, judge: frozenset[int], fakes: list[Scored]) -> None:
        cut = [s for s in fakes if not s.attached] or fakes
        reals = [s for s in self.scored if s.owners == judge and s.made is None]
        pair.reals |= {s.key for s in reals}
        down, up = _agreed(cut), _agreed(reals)
        pair.down, pair.judged_at = down, cut[-1].place
        if down and up:
            pair.against[down != up] += 1
            if all(s.labelled for s in (*cut, *reals)):
                pair.alike[down == up] += 1

    def _of_maker(self, pair: Pair, fakes: list[Scored]) -> None:
        if not fakes:
            return
        way, pair.at = _agreed(fakes), fakes[-1].place
        if way and pair.down:
            pair.helping[way == pair.down] += 1
        first = fakes[0].made
        if first is not None and first.key:
            pair.same += first.key == pair.given
            pair.of_one += first.alike
            pair.given = first.key

    def ended(self) -> None:
        """What the whole run shows of each pair."""
        for pair in self.pairs.values():
            steps = pair.helping.total()
            if steps >= SOME and mostly(pair.against) and mostly(pair.helping):
                told = (
                    f"in {pair.helping[True]} of {steps} steps what makes rows pushes their scores"
                    " as the judge does, away from those of other rows"
                )
                self.watch.tell("BH856", f"{told}: it learns to be found out", pair.at)
            elif steps >= SOME and pair.alike.total() >= SOME and mostly(pair.alike):
                told = (
                    f"in {pair.alike[True]} of {pair.alike.total()} steps the judge pushes the"
                    " scores of made rows the way in which it pushes those of the others"
                )
                self.watch.tell("BH856", f"{told}: it learns no difference", pair.judged_at)
            if steps >= SOME and pair.of_one >= MOST * steps:
                self.watch.tell(
                    "BH857",
                    f"in {pair.of_one} of {steps} steps all rows that are given to what makes rows"
                    " are equal: it learns to make one",
                    pair.at,
                )
            elif steps >= SOME and pair.same >= MOST * (steps - 1) and len(pair.reals) >= SOME:
                told = (
                    f"in {pair.same} of {steps} steps what makes rows is given the values of the"
                    " step before, while those it is compared with change"
                )
                self.watch.tell("BH857", told, pair.at)


def mostly(counts: Counter[bool]) -> bool:
    """Whether nearly all are true.

    >>> mostly(Counter({True: 19, False: 1})), mostly(Counter())
    (True, False)
    """
    return counts[True] >= max(SOME, MOST * counts.total())


def _agreed(scored: list[Scored]) -> int:
    """The direction of all of them; 0 where they differ."""
    signs = {s.sign for s in scored}
    return signs.pop() if len(signs) == 1 else 0


def _direction(gradient: Tensor) -> int:
    """1 where nearly all scores are pushed up, -1 where down, 0 for anything else."""
    moved = gradient[gradient != 0]
    if not moved.numel():
        return 0
    share = float((moved < 0).double().mean())
    return 1 if share >= ROWS else -1 if share <= 1 - ROWS else 0


def _of_one_label(gradient: Tensor, scores: Tensor, alone: bool) -> bool:
    """Whether a gradient is that of a cross-entropy with the same label for all scores, logits or
    probabilities; or, of rows `alone`, of their mean.

    Each row's own target, as in a value network, gives another gradient; a distance to one target
    gives a straight line, whose sign tells nothing.
    """
    y, x = gradient.double().flatten(), scores.double().flatten()
    total = float((y * y).sum())
    if float((y - y.mean()).square().sum()) <= NOTHING * total:
        return alone
    one = torch.ones_like(x)
    curves = [torch.stack([one, x.sigmoid()], 1)]
    if float(x.min()) > 0 and float(x.max()) < 1:
        curves.append(torch.stack([1 / x, 1 / (1 - x)], 1))
    straight = _left(torch.stack([one, x], 1), y)
    return straight > STRAIGHT * total and any(
        _left(c, y) < straight / TWICE and _left(c, y) < NEAR * total for c in curves
    )


def _left(basis: Tensor, values: Tensor) -> float:
    """What the best combination of two curves leaves of the squares of values."""
    return float((values - basis @ (torch.linalg.pinv(basis) @ values)).square().sum())


def _lies_in(tensor: Tensor, made: Made) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and not made.storage.expired()
        and StorageWeakRef(tensor.untyped_storage()).cdata == made.storage.cdata
    )


def _key(tensors: list[Tensor]) -> bytes:
    """Of the values; empty where there are too many."""
    if (
        not tensors
        or any(t.layout != torch.strided or t.dtype in (torch.bfloat16,) for t in tensors)
        or sum(t.numel() for t in tensors) > LARGEST
    ):
        return b""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()


def _rows_alike(tensors: list[Tensor]) -> bool:
    """Whether all rows of all of them are equal, and there are several."""
    return bool(tensors) and all(
        t.ndim > 0 and len(t) >= TWICE and bool((t == t[:1]).all()) for t in tensors
    )
