"""Learning curves: read `metrics.jsonl`, and describe over- or underfitting in words.

The rule of the reading (`read_curves`), on losses measured in eval mode on fixed train rows (T) and
on validation rows (V). All sizes are shares of U, the loss of an uninformed model (the theoretical
initial loss, else the measured one), so that the rule means the same for every task and scale.

1. too short: fewer than `MIN_EVALUATIONS` evaluations.
2. overfitting: at the kept step V - T >= `GAP` of U, or after the lowest V the median of the last
  three V rose
   by >= `RISE` of U while T went on falling.
3. underfitting: at the kept step T is less than `LEARNED` of U below U (hardly anything was
  learned), or the
   run ended by its epoch limit while V still fell by >= `FALLING` of U over its last quarter and V
   ended at its lowest.
4. healthy: none of these.
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
    """Interpretation of the curves: a word, a sentence, and the figures behind it."""

    kind: Literal["too short", "overfitting", "underfitting", "healthy", "unknown"]
    words: str
    figures: dict[str, float] = field(default_factory=dict)


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
    train: list[float], val: list[float], kept: int, uninformed: float, ended_early: bool
) -> Reading:
    """Decide over- or underfitting by the rule in the module docstring.

    Args:
        train: loss in eval mode on fixed train rows, one per evaluation.
        val: loss on validation rows at the same evaluations.
        kept: position of the evaluation whose weights were kept.
        uninformed: loss of an uninformed model, above 0.
        ended_early: the run stopped before its epoch limit (patience, interruption).
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
        "last_quarter_fall": (val[-1 - max(1, len(val) // 4)] - val[-1]) / uninformed,
    }
    return (
        _overfitting(figures, train[kept], val[kept])
        or _underfitting(figures, lowest == len(val) - 1, ended_early)
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


def _underfitting(
    figures: dict[str, float], ends_lowest: bool, ended_early: bool
) -> Reading | None:
    if figures["learned"] < LEARNED:
        words = (
            f"The train loss ended only {share(max(figures['learned'], 0.0))} below that of an"
            " uninformed model. Either the features say little about the label, or the learning"
            " rate, the size of the network or the number of epochs is too small; the comparison"
            " with the baselines tells which."
        )
        return Reading("underfitting", words, figures)
    if ends_lowest and not ended_early and figures["last_quarter_fall"] >= FALLING:
        words = (
            "The run ended by its epoch limit while the validation loss was still falling (by"
            f" {share(figures['last_quarter_fall'])} of the loss of an uninformed model over the"
            " last quarter). More epochs would probably improve it."
        )
        return Reading("underfitting", words, figures)
    return None


def _healthy(figures: dict[str, float], train: float, val: float) -> Reading:
    side = "above" if figures["gap"] >= 0 else "below"
    words = (
        f"At the kept step the validation loss ({number(val)}) is {share(abs(figures['gap']))} of"
        f" the loss of an uninformed model {side} the train loss ({number(train)}), and it had"
        " levelled off: no sign of over- or underfitting in these curves."
    )
    return Reading("healthy", words, figures)
