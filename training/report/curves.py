"""Learning curves: read `metrics.jsonl`, and describe over- or underfitting in words.

The rule of the reading (`read_curves`), on losses measured in eval mode on fixed train rows (T) and
on validation rows (V). All sizes are shares of U, the loss of an uninformed model (the theoretical
initial loss, else the measured one), so that the rule means the same for every task and scale.

1. too short: fewer than `MIN_EVALUATIONS` evaluations.
2. overfitting: at the kept step V - T >= `GAP` of U, or after the lowest V the median of the last
  three V rose
   by >= `RISE` of U while T went on falling.
3. underfitting: at the kept step T is less than `LEARNED` of U below U (hardly anything was
   learned), or the run ended by its epoch limit, V ended at its lowest (within `LEVEL` of it), and
   V had still fallen by >= `FALLING` of its own last value and >= `LEVEL` of U. The fall is
   measured over the last quarter; over the last half where the schedule lowers the learning rate,
   as then every curve is flat at the end. If the verdict says that the training was not finished,
   it was not.
4. healthy: none of these.

The share of V is right where the share of U is not: from 0.12 to 0.10 the loss of standardised
labels falls by 2 % of U and by a fifth of what is left. In runs of networks with 5 to 40 epochs,
those that twice to four times the epochs improved by 3 % or more had fallen by 2 % or more over
their last half in 11 of 17 cases; those that they improved by less than 1 % had never (at most
0.9 %).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from training.formatting import number, share

MIN_EVALUATIONS = 4
GAP = 0.10
RISE = 0.05
LEARNED = 0.02
FALLING = 0.02
LEVEL = 0.002  # a smaller difference is none


@dataclass(frozen=True)
class Point:
    """Logged values of one optimizer step, without values that are not finite."""

    step: int
    epoch: int | None
    values: dict[str, float]


@dataclass(frozen=True)
class Event:
    """Event at a step, in the trainer's words."""

    step: int | None
    message: str


@dataclass(frozen=True)
class History:
    """Content of `metrics.jsonl` by step; a step that a resumed run logged again counts once."""

    steps: tuple[Point, ...] = ()
    evaluations: tuple[Point, ...] = ()
    events: tuple[Event, ...] = ()
    unreadable: int = 0

    def series(
        self, kind: Literal["steps", "evaluations"], name: str
    ) -> tuple[list[int], list[float]]:
        """Return steps and values at which `name` was logged."""
        points = [p for p in getattr(self, kind) if name in p.values]
        return [p.step for p in points], [p.values[name] for p in points]


@dataclass(frozen=True)
class Reading:
    """Interpretation of the curves: a word, a sentence, and the figures behind it.

    `cut_short`: the schedule ended, not the learning.
    """

    kind: Literal["too short", "overfitting", "underfitting", "healthy", "unknown"]
    words: str
    figures: dict[str, float] = field(default_factory=dict)
    cut_short: bool = False


def read_history(path: Path | None) -> History:
    """Read the run's log; count incomplete lines (such as a killed writer's last one)."""
    if path is None or not path.is_file():
        return History()
    points: dict[str, dict[int, Point]] = {"step": {}, "evaluation": {}}
    events: list[Event] = []
    unreadable = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            line = _parse(text)
            if line is None:
                unreadable += 1
            elif line["kind"] == "event":
                events.append(Event(line.get("step"), str(line.get("message", ""))))
            elif line["kind"] in points:
                point = _point(line)
                points[line["kind"]][point.step] = point
    ordered = {kind: tuple(found[s] for s in sorted(found)) for kind, found in points.items()}
    return History(ordered["step"], ordered["evaluation"], tuple(dict.fromkeys(events)), unreadable)


def _parse(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or "kind" not in line:
        return None
    if line["kind"] != "event" and not (
        isinstance(line.get("step"), int) and isinstance(line.get("values"), dict)
    ):
        return None
    return line


def _point(line: dict[str, Any]) -> Point:
    values = {
        k: float(v)
        for k, v in line["values"].items()
        if isinstance(v, int | float) and math.isfinite(v)
    }
    return Point(line["step"], line.get("epoch"), values)


def kept_index(history: History, best_step: int) -> int | None:
    """Return the position among the evaluations of the step whose weights were kept."""
    return next((i for i, p in enumerate(history.evaluations) if p.step == best_step), None)


def read_curves(
    train: list[float],
    val: list[float],
    kept: int,
    uninformed: float,
    ended_early: bool,
    annealed: bool = False,
    unfinished: bool = False,
) -> Reading:
    """Decide over- or underfitting by the rule in the module docstring.

    Args:
        train: loss in eval mode on fixed train rows, one per evaluation.
        val: loss on validation rows at the same evaluations.
        kept: position of the evaluation whose weights were kept.
        uninformed: loss of an uninformed model, above 0.
        ended_early: the run stopped before its epoch limit (patience, interruption).
        annealed: the schedule lowered the learning rate towards the end.
        unfinished: the verdict says that the training was not finished.
    """
    if len(val) < MIN_EVALUATIONS or uninformed <= 0:
        return Reading(
            "too short",
            f"{len(val)} evaluations are too few to say; {MIN_EVALUATIONS} are needed. Train"
            " longer or lower train.eval_every.",
        )
    lowest = min(range(len(val)), key=val.__getitem__)
    tail = slice(max(lowest + 1, len(val) - 3), None)
    figures = {
        "gap": (val[kept] - train[kept]) / uninformed,
        "rise": (median(val[tail]) - val[lowest]) / uninformed if val[tail] else 0.0,
        "train_fall_after_lowest": (
            (train[lowest] - median(train[tail])) / uninformed if train[tail] else 0.0
        ),
        "learned": (uninformed - train[kept]) / uninformed,
        "above_lowest": (val[-1] - val[lowest]) / uninformed,
        **_end(val, uninformed, annealed),
    }
    return (
        _overfitting(figures, train[kept], val[kept])
        or _underfitting(figures, ended_early, annealed, unfinished)
        or _healthy(figures, train[kept], val[kept])
    )


def _overfitting(figures: dict[str, float], train: float, val: float) -> Reading | None:
    gap, rise = figures["gap"], figures["rise"]
    if gap >= GAP:
        words = (
            f"At the kept step the loss is {number(train)} on train rows and {number(val)} on"
            f" validation rows: a gap of {share(gap)} of the loss of an uninformed model. The"
            " network knows its train rows better than new ones: more data, more dropout or weight"
            " decay, or a smaller network would narrow the gap. Validation rows that differ from"
            " the train rows, as later ones may, widen it too."
        )
        return Reading("overfitting", words, figures)
    if rise >= RISE and figures["train_fall_after_lowest"] > 0:
        words = (
            f"After its lowest point the validation loss rose by {share(rise)} of the loss of an"
            " uninformed model while the train loss went on falling. The kept weights are those of"
            " the best validation step, from before most of that rise; training longer would not"
            " help."
        )
        return Reading("overfitting", words, figures)
    return None


def _end(val: list[float], uninformed: float, annealed: bool) -> dict[str, float]:
    """Return how far the validation loss fell over the end of the run, in three units."""
    length = max(1, len(val) // (2 if annealed else 4))
    fall = val[-1 - length] - val[-1]
    return {
        "end_fall": fall / uninformed,
        "end_fall_of_loss": fall / val[-1] if val[-1] > 0 else 0.0,
        "end_slope": -fall / length,
    }


def _underfitting(
    figures: dict[str, float], ended_early: bool, annealed: bool, unfinished: bool
) -> Reading | None:
    if figures["learned"] < LEARNED:
        words = (
            f"The train loss ended only {share(max(figures['learned'], 0.0))} below that of an"
            " uninformed model. Either the features say little about the label, or the learning"
            " rate, the size of the network or the number of epochs is too small; the comparison"
            " with the baselines tells which."
        )
        return Reading("underfitting", words, figures)
    fell = figures["end_fall_of_loss"] >= FALLING and figures["end_fall"] >= LEVEL
    at_lowest = figures["above_lowest"] < LEVEL
    if ended_early or not (unfinished or (fell and at_lowest)):
        return None
    span = "half" if annealed else "quarter"
    slope = (
        f" The validation loss was still falling, by {share(figures['end_fall_of_loss'])} of its"
        f" value over the last {span} of the run ({figures['end_slope']:+.2g} from one evaluation"
        " to the next)."
        if figures["end_fall"] > 0
        else " Its last evaluation was the best."
    )
    words = (
        "The schedule ended, not the learning: the run reached its epoch limit."
        f"{slope} More epochs would probably improve it."
    )
    return Reading("underfitting", words, figures, cut_short=True)


def _healthy(figures: dict[str, float], train: float, val: float) -> Reading:
    side = "above" if figures["gap"] >= 0 else "below"
    words = (
        f"At the kept step the validation loss ({number(val)}) is {share(abs(figures['gap']))} of"
        f" the loss of an uninformed model {side} the train loss ({number(train)}), and it had"
        " levelled off: no sign of over- or underfitting in these curves."
    )
    return Reading("healthy", words, figures)
