"""Train and held-out rows of a network: shared rows, and transformers fitted on both."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from training.watch.events import Call, Listener, Place
from training.watch.held_out import beside, scaled
from training.watch.loaders import hashes
from training.watch.patches import around
from training.watch.record import Watch

MOST, MOST_VALUES = 50_000, 50_000_000  # most rows and values kept per network
LARGEST = 20_000  # most values of a row
FEW = 20  # least number of rows per split
SHARED, STRAY = 0.02, 0.1  # least share of train rows in a leaky evaluation; most in a clean one
# count of a repeated train row, in epochs; tolerance in standard deviations of a share
REPEATED, SIGMAS = 1.5, 4.0
LABELLED, WIDEST = 64, 4096  # least rows with labels; most values of such a row
COPY = 1 - 1e-9  # squared correlation of a column that equals the label
SUPERVISED = (
    "sklearn.feature_selection.",
    "sklearn.cross_decomposition.",
    "sklearn.preprocessing._target_encoder",
)
SHORTEST, KINDS = 5, 8  # mean number of changes in a row of tokens; least number of distinct tokens


@dataclass(eq=False)
class Batches:
    """Rows by hash, with their values."""

    rows: dict[bytes, Tensor] = field(default_factory=dict)
    times: Counter[bytes] = field(default_factory=Counter)  # times each row was given
    shapes: set[torch.Size] = field(default_factory=set)  # shapes of a row
    place: Place | None = None

    def add(self, values: Tensor, place: Place) -> list[bytes]:
        """Add rows [N, ...] and return their hashes, for tokens without the padding at the end."""
        self.place = place
        self.shapes.add(values.shape[1:])
        flat = values.detach().flatten(1).cpu()
        keys = hashes(flat)
        if not values.is_floating_point():
            keys = [bytes(str(row.unique_consecutive()[:-1].tolist()), "ascii") for row in flat]
        if len(self.rows) < MOST and len(self.rows) * flat.shape[1] < MOST_VALUES:
            self.rows.update(zip(keys, flat, strict=True))
            self.times.update(keys)
        return keys

    def table(self, without: Batches | None = None) -> Tensor:
        """Return distinct rows [N, ...] that `without` lacks; empty if shapes differ."""
        known = without.rows if without is not None else {}
        rows = [row for key, row in self.rows.items() if key not in known]
        if len(rows) < FEW or len(self.shapes) > 1 or not rows[0].is_floating_point():
            return torch.empty(0)
        return torch.stack(rows).reshape(-1, *next(iter(self.shapes)))

    def by_chance(self, share: float, total: int) -> bool:
        """Check that this share of other rows may be among these by chance. Then rows repeat within
        one split too.
        """
        # estimate of the epochs; a dropped last batch may skip some rows
        once = sorted(self.times.values())[len(self.times) // 20]
        repeated = sum(n for n in self.times.values() if n >= REPEATED * once) / self.times.total()
        return bool(share <= repeated + SIGMAS * (repeated * (1 - repeated) / total) ** 0.5)


@dataclass(eq=False)
class Phase:
    """An evaluation: rows between two training steps. A batch of train rows only is a train metric
    and is not counted.
    """

    batches: Batches = field(default_factory=Batches)
    known: int = 0
    total: int = 0
    # sizes of batches with several rows; single rows may be steps of a game
    sizes: list[int] = field(default_factory=list)
    for_step: bool = False  # a single batch, as large as that of the next step


@dataclass(eq=False)
class History:
    """Rows, losses and evaluations of one network."""

    module: weakref.ref[nn.Module]
    trained: Batches = field(default_factory=Batches)
    phases: list[Phase] = field(default_factory=list)
    open: bool = False
    steps: int = 0
    inputs: list[Tensor] = field(default_factory=list)  # [B, D], inputs of losses
    labels: list[Tensor] = field(default_factory=list)  # [B]
    windows: bool = False  # true if a row has more than one axis
    place: Place | None = None


class Rows(Listener):
    """Listener for networks whose first input is a float tensor or tokens, rows first."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.of: dict[int, History] = {}  # by network id
        self.all: list[History] = []  # includes networks that no longer exist
        self.pending: list[Call] = []
        # networks that receive a batch first
        self.leading: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def forwarded(self, call: Call) -> None:
        """Keep calls until a step shows that they are for training."""
        if not call.rows or not told_apart(call):
            return
        if call.grad and call.training:
            if not self.pending:
                self.leading.add(call.module)
            self.pending = [*self.pending[-3:], call]
        elif not call.grad and call.module in self.leading:
            self._evaluated(call)  # other networks receive computed inputs

    def _history(self, call: Call) -> History:
        known = self.of.get(id(call.module))
        # Python reuses the id of a network that no longer exists
        if known is None or known.module() is not call.module:
            known = self.of[id(call.module)] = History(weakref.ref(call.module))
            self.all.append(known)
        return known

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the rows of this step."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for call in self.pending:
            if call.module in self.leading and any(id(p) in held for p in call.module.parameters()):
                history = self._history(call)
                history.trained.add(call.inputs[0], call.place)
                if history.open:
                    history.phases[-1].for_step = history.phases[-1].sizes == [call.rows]
                history.open = False
                history.steps += 1
        self.pending.clear()

    def _evaluated(self, call: Call) -> None:
        history = self._history(call)
        if not history.open:
            history.phases = [*history.phases[-7:], Phase()]
            history.open = True
        phase = history.phases[-1]
        keys = phase.batches.add(call.inputs[0], call.place)
        known = sum(k in history.trained.rows for k in keys)
        phase.sizes += [len(keys)] if len(keys) > 1 else []
        if known < len(keys):
            phase.known += known
            phase.total += len(keys)

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Record the inputs and labels of a loss, to find a column that contains the label."""
        if not call.grad or not call.rows or call.inputs[0].ndim < 2 or target.numel() != call.rows:
            return
        x, history = call.inputs[0].detach().flatten(1), self._history(call)
        history.place, history.windows = call.place, call.inputs[0].ndim > 2
        if sum(map(len, history.inputs)) < LABELLED * 8 and x.shape[1] <= WIDEST:
            history.inputs.append(x.double().cpu())
            history.labels.append(target.detach().reshape(-1).double().cpu())

    def first(self, most: int = 200) -> list[str]:
        """Return hashes of the first rows that the first network was trained on."""
        history = next((h for h in self.all if h.trained.rows), None)
        return [key.hex() for key in list(history.trained.rows)[:most]] if history else []

    def ended(self) -> None:
        """Report the findings of the whole run."""
        for history in self.all:
            self._label(history)
            if history.steps and history.phases:
                self._shared(history)
                self._sides(history)

    def _label(self, history: History) -> None:
        """Report an input column that equals the label, on any scale."""
        widths = {x.shape[1] for x in history.inputs}
        if sum(map(len, history.labels)) < LABELLED or len(widths) > 1 or widths == {1}:
            return
        x, y = torch.cat(history.inputs), torch.cat(history.labels)
        keep = x.isfinite().all(1) & y.isfinite()
        x, y = x[keep], y[keep]
        # too few distinct rows; or windows with a binary label that repeats with a period
        if len(torch.unique(x, dim=0)) < FEW or (history.windows and len(y.unique()) == 2):
            return
        x, y = x - x.mean(0), y - y.mean()
        squared = (x * y[:, None]).sum(0) ** 2 / ((x**2).sum(0) * (y**2).sum()).clamp(min=1e-300)
        for column in (squared > COPY).nonzero().flatten().tolist()[:1]:
            told = f"column {column} of {x.shape[1]} that the network is given is the label itself"
            self.watch.tell("BH805", told, history.place)

    def _shared(self, history: History) -> None:
        """Report evaluations that all contain train rows. Rows scored for the next step, as for a
        target, are no evaluation.
        """
        trained, phases = history.trained, [p for p in history.phases if p.total >= FEW]
        if (
            len(trained.rows) >= FEW
            and phases
            and all(p.known / p.total >= SHARED and p.known >= FEW / 2 for p in phases)
            and not all(p.for_step for p in history.phases)
            and not all(trained.by_chance(p.known / p.total, p.total) for p in phases)
        ):
            last = phases[-1]
            told = f"{last.known} of {last.total} rows of the evaluation are rows that were trained"
            self.watch.tell("BH803", f"{told} on", last.batches.place)

    def _sides(self, history: History) -> None:
        """Compare the values of held-out rows with those of train rows."""
        trained, place = history.trained, history.phases[-1].batches.place
        train = trained.table()
        apart = [p for p in history.phases if p.sizes and p.known <= STRAY * p.total]
        for ask, phases in ((scaled, history.phases), (beside, apart)):
            sides = [p.batches.table(trained) for p in phases]
            held = [rows for rows in sides if len(rows) and rows.shape[1:] == train.shape[1:]]
            for rule, told in ask(train, held) if held and len(train) else ():
                self.watch.tell(rule, told, place)


def told_apart(call: Call) -> bool:
    """Check that the rows of a network's input can be identified by their values."""
    first = call.inputs[0]
    if first.dtype == torch.int64 and first.ndim == 2 and first.numel():
        changes = (first.diff(dim=1) != 0).sum(1).double().mean()
        return len(first.unique()) >= KINDS and float(changes) >= SHORTEST
    plain = first.is_floating_point() and first.ndim > 1 and not first.requires_grad
    return plain and first[0].numel() <= LARGEST and len(call.inputs) <= 2 and not is_noise(call)


def is_noise(call: Call) -> bool:
    """Check for a denoising call on the network's own output, with one time for all rows."""
    time, shapes = call.inputs[-1], [t.shape for t in (call.inputs[0], *call.outputs[:1])]
    alone = time.numel() == call.rows and bool((time == time.reshape(-1)[0]).all())
    return not call.grad and len(call.inputs) > 1 and alone and len(set(shapes)) == 1


class Fits(Listener):
    """Listener for supervised scikit-learn transformers after the program imports them."""

    def __init__(self, watch: Watch, rows: Rows) -> None:
        self.watch, self.rows = watch, rows
        self.made: set[tuple[str, int, Place]] = set()  # class, rows, place
        self.known: set[type] = set()

    def imported(self) -> None:
        """Wrap the classes that are new."""
        base = getattr(sys.modules.get("sklearn.base"), "TransformerMixin", None)
        pending = [base] if base is not None else []
        while pending:
            kind = pending.pop()
            pending += kind.__subclasses__()
            supervised = kind.__module__.startswith(SUPERVISED)
            if supervised and kind not in self.known and kind.__name__ != "VarianceThreshold":
                self.known.add(kind)
                for name in {"fit", "fit_transform"} & vars(kind).keys():
                    around(kind, name, self._fit)

    def _fit(self, original: Callable[..., Any], learner: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values(), None, None]
        if not self.watch.quiet and not self.watch.steps and given[1] is not None:
            rows = getattr(given[0], "shape", [0])[0]
            self.made.add((type(learner).__name__, int(rows), self.watch.here()))
        return original(learner, *args, **kwargs)

    def ended(self) -> None:
        """Report fits before the first step on as many rows as both splits together have."""
        for history in (h for h in self.rows.all if h.steps):
            trained = history.trained.rows.keys()
            held = {key for p in history.phases for key in p.batches.rows} - trained
            for name, size, place in self.made:
                if len(held) >= FEW and size == len(trained) + len(held):
                    told = f"{name} learns from the labels of all {size} rows"
                    self.watch.tell("BH501", f"{told}, {len(held)} of which are held out", place)
