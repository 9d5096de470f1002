"""Pictures of the result, the split, and the training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from schemas.config import SplitName
from schemas.records import EvaluationReport
from training.formatting import capital, count, instant, metric_name, number, plain, plural, share
from training.report.curves import History, kept_index
from training.report.data import Floats, Side
from training.report.svg import (
    ALARM,
    BASELINE,
    INK,
    MODEL,
    MUTED,
    PAPER,
    SIDE_COLOURS,
    SIDE_NAMES,
    WIDE,
    Picture,
    canvas_for,
    count_axis,
    date_axis,
    log_axis,
)

DAY = 86_400.0


# -------------------------------------------------------------------------------------------
# metrics


def forest(report: EvaluationReport, metrics: Sequence[tuple[str, bool]]) -> Picture:
    """Draw the model's interval next to each baseline, a panel per (metric, greater is better)."""
    names = ["model", *report.baselines]
    columns = 2 if len(metrics) in (2, 4) else min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    with canvas_for(
        "forest", (WIDE[0], 0.75 + rows * (0.55 + 0.24 * len(names))), rows, columns, squeeze=False
    ) as canvas:
        for axis, (metric, greater) in zip(canvas.axes, metrics, strict=False):
            _forest_panel(axis, report, metric, greater, names)
        for axis in canvas.axes[len(metrics) :]:
            axis.set_axis_off()
        first = report.metrics[metrics[0][0]]
        beside = ", ".join(
            f"{plain(n)} {number(b.get(metrics[0][0]))}" for n, b in report.baselines.items()
        )
        alt = (
            f"{metric_name(metrics[0][0])} of the model {number(first.value)}, interval"
            f" {number(first.low)} to {number(first.high)}; baselines: {beside or 'none'}."
        )
        return canvas.done(
            alt,
            "The model with its interval (bar and shaded band) next to baselines fitted on the same"
            " train rows and scored on the same test rows.",
        )


def _forest_panel(
    axis: Any, report: EvaluationReport, metric: str, greater: bool, names: list[str]
) -> None:
    value = report.metrics[metric]
    if value.low is not None and value.high is not None:
        axis.axvspan(value.low, value.high, color=MODEL, alpha=0.10, lw=0)
        axis.plot([value.low, value.high], [0, 0], color=MODEL, lw=2.4, solid_capstyle="butt")
    if value.value is not None:
        axis.plot(value.value, 0, "o", color=MODEL, ms=7)
    for row, name in enumerate(names[1:], start=1):
        found = report.baselines[name].get(metric)
        if found is not None:
            axis.plot(found, row, "D", color=BASELINE, ms=5.5)
    axis.set(
        yticks=range(len(names)),
        yticklabels=[plain(n, 24) for n in names],
        ylim=(len(names) - 0.4, -0.6),
    )
    axis.grid(axis="y", visible=False)
    axis.margins(x=0.08)
    axis.set_title(f"{metric_name(metric)} ({'higher' if greater else 'lower'} is better)")


# ---------------------------------------------------------------------------------------------
# split


def side_bars(sides: dict[SplitName, Side]) -> Picture:
    """Draw the rows of each split as a bar with its fraction."""
    total = sum(s.rows for s in sides.values())
    with canvas_for("sides", (WIDE[0], 1.7)) as canvas:
        axis = canvas.axes[0]
        for row, side in enumerate(sides.values()):
            axis.barh(row, side.rows, color=SIDE_COLOURS[side.name], height=0.62)
            axis.annotate(
                f"{count(side.rows)}  ({share(side.rows / total)})",
                (side.rows, row),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
            )
        axis.set(
            yticks=range(len(sides)),
            yticklabels=[SIDE_NAMES[n] for n in sides],
            ylim=(len(sides) - 0.4, -0.6),
            xlabel="rows",
        )
        axis.margins(x=0.16)
        axis.grid(axis="y", visible=False)
        count_axis(axis.xaxis)
        words = ", ".join(f"{SIDE_NAMES[s.name]} {count(s.rows)}" for s in sides.values())
        return canvas.done(
            f"Rows per side: {words}.", "Rows per side, counted in the materialised arrays."
        )


def timeline(
    sides: dict[SplitName, Side], timestamp: bool, cuts: Sequence[float], embargo: float
) -> Picture:
    """Draw rows per unit of time, stacked by split, with cut points and the embargo after each."""
    unit = DAY if timestamp else 1.0
    timed = {n: s.times / unit for n, s in sides.items() if s.times is not None and len(s.times)}
    edges = time_edges(list(timed.values()), [c / unit for c in cuts], embargo / unit)
    with canvas_for("timeline", WIDE) as canvas:
        axis, bottom = canvas.axes[0], np.zeros(len(edges) - 1)
        for name, times in timed.items():
            rate = np.histogram(times, edges)[0] / np.diff(edges)
            label = f"{SIDE_NAMES[name]} ({plural(sides[name].rows, 'row')})"
            axis.bar(
                edges[:-1],
                rate,
                np.diff(edges),
                bottom,
                align="edge",
                color=SIDE_COLOURS[name],
                label=label,
                lw=0.3,
                edgecolor=PAPER,
            )
            bottom = bottom + rate
        for place, cut in enumerate(cuts):
            axis.axvline(
                cut / unit, color=INK, lw=1.0, ls=(0, (4, 3)), label=None if place else "cut"
            )
            if embargo:
                axis.axvspan(
                    cut / unit,
                    (cut + embargo) / unit,
                    facecolor=ALARM,
                    alpha=0.22,
                    lw=0,
                    label=None if place else "embargo",
                )
        axis.set(
            xlim=(edges[0], edges[-1]),
            ylim=(0, bottom.max() * 1.04),
            ylabel="rows per day" if timestamp else "rows per unit of time",
        )
        axis.grid(axis="x", visible=False)
        if timestamp:
            date_axis(axis.xaxis)
        else:
            axis.set_xlabel("time (units of the column)")
        canvas.legend(axis, columns=5)
        words = "; ".join(
            f"{SIDE_NAMES[n]} from {instant(sides[n].first, timestamp)} to"
            f" {instant(sides[n].last, timestamp)}"
            for n in timed
        )
        return canvas.done(
            f"Timeline of the split: {words}.",
            "When the rows of each side were observed, from the materialised files.",
        )


def time_edges(
    times: Sequence[Floats], cuts: Sequence[float], embargo: float, bins: int = 72
) -> Floats:
    """Return edges of about `bins` bins of similar width over all times. Cut points and embargo
    ends are edges, so no bar crosses one.
    """
    low, high = min(float(t.min()) for t in times), max(float(t.max()) for t in times)
    high = high if high > low else low + 1.0
    marks = sorted({low, high, *(m for c in cuts for m in (c, c + embargo) if low < m < high)})
    pieces = [
        np.linspace(a, b, 1 + max(1, round(bins * (b - a) / (high - low))))
        for a, b in pairwise(marks)
    ]
    return np.unique(np.concatenate(pieces))


# -------------------------------------------------------------------------------------------
# training


def overfit_curve(losses: Sequence[float], expected: float | None) -> Picture:
    """Draw the loss by step while overfitting one batch, on a logarithmic axis."""
    with canvas_for("overfit", (WIDE[0], 2.5)) as canvas:
        axis = canvas.axes[0]
        axis.plot(range(1, len(losses) + 1), np.maximum(losses, 1e-12), color=MODEL)
        if expected is not None and expected > 0:
            axis.axhline(expected, color=BASELINE, lw=1.1, ls="--")
            axis.annotate(
                "uninformed model",
                (1.0, expected),
                xycoords=("axes fraction", "data"),
                xytext=(-2, 3),
                textcoords="offset points",
                ha="right",
                color=MUTED,
                fontsize=8,
            )
        axis.set(xlabel="step on the same batch", ylabel="loss")
        log_axis(axis.yaxis)
        alt = (
            f"Loss on one batch falls from {number(losses[0])} to {number(losses[-1])} in"
            f" {plural(len(losses), 'step')}."
        )
        return canvas.done(
            alt, "One batch, trained on over and over: a sound network brings its loss near zero."
        )


def learning_curve(
    history: History, metric: str, kept_step: int, name: str, unit: str = "step"
) -> Picture | None:
    """Draw a loss or metric in eval mode on train rows and validation rows.

    The gap is shaded, the kept step marked. `unit`: what is counted, iterations for trees.
    """
    of_axis = "optimizer step" if unit == "step" else unit
    steps, val = history.series("evaluations", f"val/{metric}")
    train_steps, train = history.series("evaluations", f"train_eval/{metric}")
    if not steps:
        return None
    with canvas_for(f"curve-{name}") as canvas:
        axis = canvas.axes[0]
        marker = "o" if len(steps) <= 40 else None
        if train_steps == steps:
            axis.fill_between(steps, train, val, color=BASELINE, alpha=0.18, lw=0, label="gap")
        for label, x, y in (("train", train_steps, train), ("val", steps, val)):
            axis.plot(x, y, color=SIDE_COLOURS[label], label=SIDE_NAMES[label], marker=marker, ms=3)
        kept = kept_index(history, kept_step)
        shown = metric_name(metric) if metric != "loss" else "loss"
        alt = f"{shown} by {of_axis} on train and validation rows."
        if kept is not None:
            axis.axvline(kept_step, color=INK, lw=1, ls=(0, (2, 2)))
            axis.annotate(
                f"kept: {unit} {count(kept_step)}",
                (kept_step, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=INK,
            )
            at = history.evaluations[kept].values
            alt += (
                f" At the kept {unit} {count(kept_step)}: train"
                f" {number(at.get(f'train_eval/{metric}'))}, validation"
                f" {number(at.get(f'val/{metric}'))}."
            )
        axis.set(xlabel=of_axis, ylabel=shown)
        count_axis(axis.xaxis)
        canvas.legend(axis, lift=1.6)  # above the words that name the kept step
        return canvas.done(
            alt,
            f"{capital(shown)} in eval mode on a fixed slice of train rows and on all validation"
            " rows.",
        )


def peaks(x: Floats, y: Floats, buckets: int) -> tuple[Floats, Floats]:
    """Return at most `buckets` points: the first place and the largest value of each stretch."""
    if len(x) <= buckets:
        return x, y
    starts = np.linspace(0, len(x), buckets, endpoint=False).astype(int)
    return x[starts], np.maximum.reduceat(y, starts)


def step_curve(
    history: History,
    key: str,
    label: str,
    name: str,
    *,
    log: bool = False,
    limit: float | None = None,
    buckets: int = 500,
) -> Picture | None:
    """Draw a value logged at optimizer steps.

    Long runs show the largest value of each stretch, so that no spike is lost.
    """
    steps, values = history.series("steps", key)
    if not steps:
        return None
    x, y = peaks(np.asarray(steps, dtype=np.float64), np.asarray(values), buckets)
    with canvas_for(f"step-{name}") as canvas:
        axis = canvas.axes[0]
        axis.plot(x, y, color=MODEL, lw=1.3)
        if limit is not None:
            axis.axhline(
                limit, color=ALARM, lw=1.1, ls="--", label=f"clipped above {number(limit)}"
            )
            canvas.legend(axis)
        axis.set(xlabel="optimizer step", ylabel=label)
        if log and (y > 0).all():
            log_axis(axis.yaxis)
        count_axis(axis.xaxis)
        note = (
            " Each point is the largest value of its stretch of steps."
            if len(steps) > buckets
            else ""
        )
        return canvas.done(
            f"{label} by optimizer step, from {number(values[0])} to {number(values[-1])}, largest"
            f" {number(max(values))}.",
            f"{capital(label)} by optimizer step.{note}",
        )
