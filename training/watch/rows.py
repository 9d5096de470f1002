"""Which rows a network was trained on and evaluated on, how both are scaled, and whether a column
holds the label.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from training.watch.forwards import Call
from training.watch.near import near_copies
from training.watch.record import Listener, Place, Watch
from training.watch.windows import beside

MOST, MOST_VALUES = 50_000, 50_000_000  # rows, and values, that are kept of a network
FEW = 20
SHARED = 0.02
LEVELS = 16  # values of a column: rows of such columns may well be equal by chance
# times an epoch, of a row that the train rows hold twice; deviations of a share
REPEATED, SIGMAS = (1.5, 4.0)
# deviations between means, and ratio of deviations, of rows that are scaled alike
FAR, WIDER = (4.0, 8.0)
# of deviations that differ by one factor: columns, its logarithm, how far they are from it
MANY_COLUMNS, FACTOR, ALIKE = (8, 0.9, 0.2)
EXACT, CLOSE = 1e-4, 2e-3
COPY = 1 - 1e-9  # squared correlation of a column that is the label
LABELLED = 64
SPARE = 0.1  # of the rows may hold a value that another one holds as well
STRAY = 0.1  # of the rows of a held-out batch may be equal to train rows
# of the train rows; of the rows of an evaluation: train rows are measured on purpose
COVERED, MOSTLY = (0.5, 0.95)
# values that are forecast, batches that are looked at and their rows, values that are given
HORIZON, BATCHES, FEWEST, WIDEST = (3, 4, 8, 512)
AGAIN = 10  # times that a row is given
DIGITS = 4  # after the point, of a sine that comes round
HALF = 0.5  # of the values
# that are scaled so, before it is told; one more for each so many, since of hundreds a few are so
# by chance
COLUMNS, MANY = (
    2,
    100,
)


@dataclass(eq=False)
class Batches:
    """Rows by hash, with their values where they are a table."""

    rows: dict[bytes, Tensor] = field(default_factory=dict)
    times: Counter[bytes] = field(default_factory=Counter)  # that each of them was given
    shapes: set[torch.Size] = field(default_factory=set)  # of one row
    place: Place | None = None

    def add(self, values: Tensor, place: Place) -> list[bytes]:
        """Add rows [N, ...]; their hashes."""
        self.place = place
        self.shapes.add(values.shape[1:])
        flat = values.detach().reshape(len(values), -1).cpu()
        keys = [
            hashlib.blake2b(row.tobytes(), digest_size=12).digest()
            for row in flat.contiguous().view(torch.uint8).reshape(len(flat), -1).numpy()
        ]
        if len(self.rows) < MOST and len(self.rows) * flat.shape[1] < MOST_VALUES:
            self.rows.update(zip(keys, flat, strict=True))
            self.times.update(keys)
        return keys

    def by_chance(self, known: int, total: int) -> bool:
        """Whether so many of other rows may be among these though both were drawn apart: rows of
        few levels repeat each other within one side, too.

        What a row finds among the others of its own side is what an independent row would find
        among them.
        """
        values = list(self.rows.values())
        if (
            len({v.shape for v in values}) != 1
            or max(len(column.unique()) for column in torch.stack(values).T) > LEVELS
        ):
            return False
        return self.repeats(known, total)

    def repeats(self, known: int, total: int) -> bool:
        """Whether rows find themselves among each other as often as these other ones do."""
        # as often as there were epochs; a dropped last batch may leave some rows out
        once = sorted(self.times.values())[len(self.times) // 20]
        repeated = sum(n for n in self.times.values() if n >= REPEATED * once) / self.times.total()
        return bool(known / total <= repeated + SIGMAS * (repeated * (1 - repeated) / total) ** 0.5)


@dataclass(eq=False)
class Asked:
    """Rows that one line of an evaluation gave to a network."""

    total: int = 0
    known: set[bytes] = field(default_factory=set)
    times: int = 0  # that rows which were trained on were given


@dataclass(eq=False)
class Phase:
    """An evaluation: rows between two steps of training. A batch of nothing but train rows is a
    train metric, and not counted.
    """

    batches: Batches
    known: int = 0
    total: int = 0
    sets: dict[Place, Asked] = field(default_factory=dict)  # by line
    # rows of batches without train rows; one row at a time may be a step of a game
    apart: set[bytes] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)  # of its batches of several rows
    for_step: bool = False  # one batch, as large as that of the step after it


@dataclass(eq=False)
class History:
    """Of one network."""

    module: weakref.ref[nn.Module]
    trained: Batches
    phases: list[Phase] = field(default_factory=list)
    open: bool = False
    steps: int = 0
    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    shape: tuple[int, ...] = ()  # of one row of the inputs
    # of labels [B, H] those that are among the inputs, by batch
    copied: list[list[int]] = field(default_factory=list)
    place: Place | None = None


class Rows(Listener):
    """Listens to networks that take one float tensor, rows first."""

    batches: type[Batches] = Batches

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.of: dict[int, History] = {}  # by id of the network
        self.all: list[History] = []  # those of networks that are gone, too
        self.pending: list[Call] = []
        # networks that are the first to see a batch
        self.leading: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def forwarded(self, call: Call) -> None:
        """Keep calls until it is known whether they were for training."""
        if (
            not call.inputs
            or not call.inputs[0].is_floating_point()
            or call.inputs[0].ndim < 2
            or call.inputs[0].requires_grad
            or call.rows < 1
        ):
            return
        if call.inputs[0][0].numel() > 20_000 or len(call.inputs) > 2:
            return
        if not call.grad and is_sampling(call):
            return
        self._forwarded(call)

    def _forwarded(self, call: Call) -> None:
        if call.grad and call.training:
            if not self.pending:
                self.leading.add(call.module)
            self.pending = [*self.pending[-3:], call]
        elif (
            not call.grad and call.module in self.leading
        ):  # what other networks are given was computed
            self._evaluated(call)

    def _history(self, call: Call) -> History:
        known = self.of.get(id(call.module))
        # an id is given again once its network is gone
        if known is None or known.module() is not call.module:
            known = self.of[id(call.module)] = History(weakref.ref(call.module), self.batches())
            self.all.append(known)
        return known

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """The rows of this step."""
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
            history.phases = [*history.phases[-7:], Phase(self.batches())]
            history.open = True
        phase = history.phases[-1]
        keys = phase.batches.add(call.inputs[0], call.place)
        known = sum(k in history.trained.rows for k in keys)
        if len(keys) > 1 and known <= STRAY * len(keys):
            phase.apart.update(keys)
        phase.sizes += [len(keys)] if len(keys) > 1 else []
        asked = phase.sets.setdefault(call.place, Asked())
        asked.total += len(keys) if len(keys) > 1 else 0
        asked.times += known if len(keys) > 1 else 0
        asked.known |= {k for k in keys if k in history.trained.rows}
        if known < len(keys):
            phase.known += known
            phase.total += len(keys)

    def lost(self, call: Call, scores: Tensor, target: Tensor) -> None:
        """Inputs and labels of a loss, for a column that holds the label."""
        if not call.inputs or call.inputs[0].ndim < 2 or not call.grad:
            return
        if (
            target.ndim == 2
            and target.is_floating_point()
            and len(target) == len(call.inputs[0]) >= FEWEST
        ):
            self._forecast(call, target)
        if target.numel() != len(call.inputs[0]):
            return
        x = call.inputs[0].detach().flatten(1)
        history = self._history(call)
        history.place = call.place
        if (
            x.dtype != torch.bool
            and sum(map(len, history.inputs)) < LABELLED * 8
            and x.shape[1] <= 4096
        ):
            history.shape = tuple(call.inputs[0].shape[1:])
            history.inputs.append(x.double().cpu())
            history.labels.append(target.detach().reshape(-1).double().cpu())

    def _forecast(self, call: Call, target: Tensor) -> None:
        """Which of several values to be forecast [B, H] the network is given; a sequence of labels
        as long as that of the inputs is another task.
        """
        x, history = call.inputs[0].detach().flatten(1), self._history(call)
        if (
            len(history.copied) < BATCHES
            and target.shape[1] >= HORIZON
            and target.shape[1] not in call.inputs[0].shape[1:]
            and x.shape[1] <= WIDEST
        ):
            y = target.detach().to(x.dtype)
            equal = (y.unsqueeze(2) == x.unsqueeze(1)).all(0).any(1) & (y != y[:1]).any(0)
            history.copied.append(equal.nonzero().flatten().tolist())
            history.place = call.place
            count, last = (
                len(history.copied[0]),
                x.shape[1] > target.shape[1] and torch.equal(x[:, -target.shape[1] :], y),
            )
            if (
                len(history.copied) == BATCHES
                and (0 < count <= target.shape[1] - 2 or last)
                and all(c == history.copied[0] for c in history.copied)
            ):
                told = (
                    f"{count} of the {target.shape[1]} values that are to be forecast are among"
                    " those that the network is given"
                )
                self.watch.tell("BH805", told, call.place)

    def first(self, most: int = 200) -> list[str]:
        """Hashes of the first rows that the first network was trained on."""
        history = next((h for h in self.all if h.trained.rows), None)
        return (
            [key.hex() for key in list(history.trained.rows)[:most]] if history is not None else []
        )

    def counts(self) -> list[tuple[int, int]]:
        """Of each network the distinct rows that it was trained on, and those that it was evaluated
        on alone.
        """
        return [
            (
                len(h.trained.rows),
                len({k for p in h.phases for k in p.batches.rows} - h.trained.rows.keys()),
            )
            for h in self.all
            if h.steps
        ]

    # -------------------------------------------------------------------------------------------
    # end

    def ended(self) -> None:
        """What the whole run shows."""
        for history in self.all:
            self._copies(history)
            if history.steps and history.phases:
                self._shared(history)
                self._at_last(history)
                self._scaled(history)
                self._windows(history)

    def _copies(self, history: History) -> None:
        if (
            sum(map(len, history.labels)) < LABELLED
            or len({x.shape[1] for x in history.inputs}) != 1
        ):
            return
        x, y = torch.cat(history.inputs), torch.cat(history.labels)
        keep = x.isfinite().all(1) & y.isfinite()
        # the same rows over and over: each column tells them apart
        if len(torch.unique(x[keep], dim=0)) < FEW:
            return
        x, y = x[keep] - x[keep].mean(0), y[keep] - y[keep].mean()
        same = (
            [i for i in range(x.shape[1]) if one_order(x[:, i], y)]
            if 1 < x.shape[1] <= MANY_COLUMNS * FEW
            else []
        )
        if same:
            told = (
                f"column {same[0]} of {x.shape[1]} that the network is given has the order of the"
                " label: it is the label, on another scale"
            )
            self.watch.tell("BH805", told, history.place)
            return
        squared = (x * y[:, None]).sum(0) ** 2 / ((x**2).sum(0) * (y**2).sum()).clamp(min=1e-300)
        found = (squared > COPY).nonzero().flatten().tolist() if float((y**2).sum()) > 0 else []
        # day or night, a period ago, is what it is now
        if len(y.unique()) == 2 and len(history.shape) == 2:
            found = [i for i in found if at_last(i, history.shape)]
        if found and x.shape[1] > 1:
            self.watch.tell(
                "BH805",
                f"column {found[0]} of {x.shape[1]} that the network is given is the label itself",
                history.place,
            )

    def _shared(self, history: History) -> None:
        """Evaluations of which each holds some rows of the training, and none is free of them."""
        phases = [p for p in history.phases if p.total >= FEW]
        if (
            len(history.trained.rows) < FEW
            or not phases
            or any(p.known == 0 for p in phases)
            or drawn_for_steps(history.phases)
        ):
            return
        part = [p for p in phases if SHARED <= p.known / p.total < 1 and p.known >= FEW / 2]
        if len(part) == len(phases) and not all(
            history.trained.by_chance(p.known, p.total) for p in part
        ):
            phase = part[-1]
            self.watch.tell(
                "BH803",
                f"{phase.known} of {phase.total} rows of the evaluation are rows that were"
                " trained on",
                phase.batches.place,
            )

    def _at_last(self, history: History) -> None:
        """Lines that evaluate after the last step, of which one is given a part of the train rows;
        one that is given most of them shows all rows.
        """
        trained = history.trained
        if (
            not self.watch.complete
            or not history.open
            or len(trained.rows) < FEW
            or any(rule == "BH803" for rule, _ in self.watch.found)
        ):
            return
        once = sorted(trained.times.values())[len(trained.times) // 20]
        repeated = (
            sum(n for n in trained.times.values() if n >= REPEATED * once) / trained.times.total()
        )
        for place, asked in history.phases[-1].sets.items():
            if (
                asked.total < FEW
                or asked.times < FEW / 2
                or len(asked.known) > COVERED * len(trained.rows)
            ):
                continue
            if asked.times > AGAIN * len(asked.known):
                continue  # a state that a game comes back to, as the corner in which it is stuck
            expected = repeated + SIGMAS * (repeated * (1 - repeated) / asked.total) ** 0.5
            if max(STRAY, expected) <= asked.times / asked.total < MOSTLY:
                told = (
                    f"{asked.times} of {asked.total} rows of the evaluation are rows that were"
                    " trained on"
                )
                self.watch.tell("BH803", told, place)

    def _scaled(self, history: History) -> None:
        train = (
            torch.stack(list(history.trained.rows.values())).double()
            if len({t.shape for t in history.trained.rows.values()}) == 1
            else None
        )
        held_out = {
            k: v
            for p in history.phases
            for k, v in p.batches.rows.items()
            if k not in history.trained.rows
        }
        if (
            train is None
            or len(held_out) < FEW
            or len(train) < FEW
            or len({v.shape for v in held_out.values()}) != 1
        ):
            return
        other = torch.stack(list(held_out.values())).double()
        if other.shape[1] != train.shape[1]:
            return
        place = history.phases[-1].batches.place
        spread = train.std(0).clamp(min=1e-12)
        moving = (train.std(0) > 0) & (other.std(0) > 0)
        apart = ((other.mean(0) - train.mean(0)).abs() / spread > FAR) | (
            (other.std(0) / spread).log().abs() > torch.tensor(WIDER).log()
        )
        together = torch.cat([train, other])
        if moving.any() and (
            apart[moving].double().mean() > 0.5 or one_factor((other.std(0) / spread)[moving])
        ):
            self.watch.tell(
                "BH820",
                "evaluated rows are scaled otherwise than the train rows: most columns differ in"
                " mean or deviation by several times",
                place,
            )
        elif any(
            scaled_alone(rows, train)
            for rows in ([] if in_folds(history) else [other])
            + [*self._phases_alone(history, len(train[0]))]
        ):
            self.watch.tell(
                "BH502",
                f"{len(other)} held-out rows have mean 0 and deviation 1: they are scaled by"
                " statistics of their own",
                place,
            )
        elif int((standard(together) & ~standard(train)).sum()) >= _enough(train):
            self.watch.tell(
                "BH503",
                "train and held-out rows have mean 0 and deviation 1 together, train rows alone"
                " have not: the scaling was fitted on both",
                place,
            )
        elif (
            moving.any()
            and bool(bounded(together)[moving].all())
            and int((spread_out(together) & ~bounded(train)).sum()) >= COLUMNS
        ):
            self.watch.tell(
                "BH503",
                "train and held-out rows reach from 0 to 1 together, train rows alone do not: the"
                " scaling was fitted on both",
                place,
            )

    def _phases_alone(self, history: History, width: int) -> Iterator[Tensor]:
        """The held-out rows of each evaluation: validation and test rows may each be scaled by
        themselves.
        """
        for phase in history.phases:
            rows = [v for k, v in phase.batches.rows.items() if k not in history.trained.rows]
            if len(rows) >= FEW and {v.shape for v in rows} == {(width,)}:
                yield torch.stack(rows).double()

    def _windows(self, history: History) -> None:
        train = history.trained
        held_out = {
            k: v
            for p in history.phases
            for k, v in p.batches.rows.items()
            if k in p.apart and k not in train.rows
        }
        shapes = train.shapes.union(*(p.batches.shapes for p in history.phases))
        if len(held_out) < FEW or len(train.rows) < FEW or len(shapes) != 1:
            return
        shape = shapes.pop()
        sides = [
            torch.stack(list(rows.values())).reshape(-1, *shape) for rows in (train.rows, held_out)
        ]
        if share := near_copies(*sides):
            told = (
                f"{share:.0%} of the held-out pictures have a train picture six times nearer than"
                " its tenth: copies were made before rows were split"
            )
            self.watch.tell("BH505", told, history.phases[-1].batches.place)
        count = beside(*sides)
        if count:
            told = (
                f"{count} of {len(held_out)} held-out windows overlap a window that was trained on:"
                " overlapping windows were split at random"
            )
            self.watch.tell("BH508", told, history.phases[-1].batches.place)


def in_folds(history: History) -> bool:
    """Whether more sets than those of validation and test were evaluated, none with a row of
    another: folds, which have mean 0 together where each is scaled by the others.
    """
    seen: set[bytes] = set()
    sets = 0
    for phase in history.phases:
        if seen.isdisjoint(phase.batches.rows):
            sets += bool(phase.batches.rows)
            seen |= phase.batches.rows.keys()
    return sets > 2


def is_sampling(call: Call) -> bool:
    """Whether a network takes noise away at one time for all rows: what it is given is what it gave
    before, and no row of the data.
    """
    if len(call.inputs) < 2 or not call.outputs or call.outputs[0].shape != call.inputs[0].shape:
        return False
    time = call.inputs[1]
    return time.numel() == call.rows and bool((time == time.reshape(-1)[0]).all())


def at_last(index: int, shape: tuple[int, ...]) -> bool:
    """Whether a flat index lies in the last step of a window [T, C] or, where that is the longer
    axis, [C, T].
    """
    first, second = divmod(index, shape[1])
    return first == shape[0] - 1 if shape[0] >= shape[1] else second == shape[1] - 1


def one_order(column: Tensor, labels: Tensor) -> bool:
    """Whether numbers rise with the labels, or fall, one for each of many, as their logarithm does.

    >>> y = torch.rand(60)
    >>> one_order(y.exp(), y), one_order(torch.rand(60), y), one_order(y.round(decimals=1), y)
    (True, False, False)
    """
    values = len(labels.unique())
    if values < LEVELS + FEW or len(column.unique()) != values:
        return False
    steps = labels[column.argsort()].diff()
    return bool((steps >= 0).all() or (steps <= 0).all())


def drawn_for_steps(phases: list[Phase]) -> bool:
    """Whether rows were asked about for the step that came next, and others for each, as those that
    a target is made of: that is no evaluation.
    """
    phases = [p for p in phases if p.sizes]
    return (
        len(phases) > 1
        and all(p.for_step for p in phases)
        and len({frozenset(p.batches.rows) for p in phases}) == len(phases)
    )


def one_factor(ratios: Tensor) -> bool:
    """Whether the deviations of many columns differ by one factor, as where a division was left out
    on one side.

    >>> (one_factor(torch.full((20,), 0.2)), one_factor(torch.ones(20)),
    ...     one_factor(torch.tensor([0.2, 5.0] * 10)))
    (True, False, False)
    """
    logs = ratios.double().log()
    return (
        len(logs) >= MANY_COLUMNS
        and float(logs.median().abs()) > FACTOR
        and float((logs - logs.median()).abs().mean()) < ALIKE
    )


def standard(values: Tensor) -> Tensor:
    """Which columns have mean 0 and deviation 1 to four digits, as a sample hardly has by chance.

    >>> x = torch.randn(500, 3, dtype=torch.float64)
    >>> standard(x).tolist(), standard((x - x.mean(0)) / x.std(0)).tolist()
    ([False, False, False], [True, True, True])
    """
    close = max(CLOSE, 2 / len(values))  # a deviation may count one row less, in each of two parts
    return (values.mean(0).abs() < EXACT) & ((values.std(0, unbiased=False) - 1).abs() < close)


def scaled_alone(rows: Tensor, train: Tensor) -> bool:
    """Whether several columns have mean 0 and deviation 1 in these rows, and values that train rows
    do not have.

    What comes round, as the sine of the hour does, has that mean on every side, and the same
    values.

    >>> x, hour = torch.randn(480, 2, dtype=torch.float64), torch.arange(480.0, dtype=torch.float64)
    >>> turns = 2**0.5 * torch.stack([(hour * torch.pi / 12).sin(), (hour * torch.pi / 12).cos()],
    ...     dim=1)
    >>> scaled_alone((x - x.mean(0)) / x.std(0), turns), scaled_alone(turns, turns)
    (True, False)

    Of hundreds of columns, as those of a window are, a few have it by chance.

    >>> wide = torch.randn(480, 600, dtype=torch.float64)
    >>> some = torch.cat([((wide - wide.mean(0)) / wide.std(0))[:, :3], wide[:, 3:]], 1)
    >>> scaled_alone(some, wide), scaled_alone((wide - wide.mean(0)) / wide.std(0), wide)
    (False, True)
    """
    columns = standard(rows).nonzero().reshape(-1).tolist()
    return sum(not _comes_round(rows[:, c], train[:, c]) for c in columns) >= _enough(rows)


def _enough(rows: Tensor) -> int:
    """How many columns have to be scaled so: more of many, of which some are so by chance.

    >>> [_enough(torch.zeros(9, columns)) for columns in (3, 600)]
    [2, 8]
    """
    return COLUMNS + int(rows.shape[1]) // MANY


def _comes_round(values: Tensor, train: Tensor) -> bool:
    """Whether a column has few values, and mostly those of train rows."""
    values, train = (t.double().round(decimals=DIGITS) for t in (values, train))
    return (
        len(values.unique()) < HALF * len(values)
        and float(torch.isin(values, train).double().mean()) >= HALF
    )


def bounded(values: Tensor) -> Tensor:
    """Which columns reach from exactly 0 to exactly 1."""
    return (values.min(0).values.abs() < 1e-7) & ((values.max(0).values - 1).abs() < 1e-6)


def spread_out(values: Tensor) -> Tensor:
    """Which columns hardly hold a value twice: one of few levels, as of pixels, may reach its ends
    by any row.

    >>> spread_out(torch.tensor([[0.0, 0.5], [1.0, 0.1], [1.0, 0.7], [0.0, 0.3]])).tolist()
    [False, True]
    """
    ordered = values.sort(0).values
    return (ordered[1:] == ordered[:-1]).double().mean(0) < SPARE
