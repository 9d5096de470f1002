"""Section of the report on what the score rests on: importance, and partial dependence."""

from __future__ import annotations

from typing import Any

import numpy as np

from schemas.reason_records import ImportantGroup, PartialCurve, Reasons
from schemas.records import EvaluationReport
from training.formatting import capital, count, interval, metric_name, number, plain, share
from training.report.blocks import Block, Callout, Gallery, Words
from training.report.svg import BASELINE, INK, MODEL, WIDE, Picture, canvas_for

SHOWN = 12


def reason_blocks(test: EvaluationReport) -> list[Block]:
    """Show what the metric loses without each group of columns, and how the strongest act."""
    reasons = test.reasons
    if reasons is None:
        return []
    if not reasons.groups:
        return [Words(f"{capital(reasons.note)}.")]
    blocks: list[Block] = []
    if reasons.question:
        blocks.append(Callout("warn", "One group carries the score", reasons.question))
    blocks.append(Gallery((importance_bars(reasons),)))
    rest = sum(not group.counts for group in reasons.groups)
    blocks.append(
        Words(
            f"Loss of {metric_name(reasons.metric)} on {count(reasons.rows)} sampled test rows when"
            " the values of a group are shuffled over them. Columns that go together are shuffled"
            " together. Intervals hold for all groups at once;"
            f" {count(rest)} of {count(len(reasons.groups))} include 0 (grey): nothing shows that"
            f" the model needs them. {reasons.note}".rstrip()
        )
    )
    if reasons.curves:
        blocks += [
            Gallery((partial_dependence(reasons.curves),)),
            Words(
                "Mean prediction when the column is set to each value for every sampled row"
                " (partial dependence). It shows what the model does, not what causes the label."
            ),
        ]
    return blocks


def _name(group: ImportantGroup) -> str:
    names = [plain(name, 34) for name in group.columns]
    return names[0] + (f" + {len(names) - 1} more" if len(names) > 1 else "")


def importance_bars(reasons: Reasons) -> Picture:
    """Draw the loss of each group with its interval, the largest on top."""
    shown = reasons.groups[:SHOWN]
    with canvas_for("importance", (WIDE[0], 0.8 + 0.27 * len(shown))) as canvas:
        axis = canvas.axes[0]
        for row, group in enumerate(shown):
            colour = MODEL if group.counts else BASELINE
            value = group.loss.value or 0.0
            axis.barh(row, value, color=colour, height=0.6, alpha=0.85)
            if group.loss.low is not None and group.loss.high is not None:
                axis.plot([group.loss.low, group.loss.high], [row, row], color=INK, lw=1.1)
        axis.axvline(0, color=BASELINE, lw=1)
        axis.set(
            yticks=range(len(shown)),
            yticklabels=[_name(group) for group in shown],
            ylim=(len(shown) - 0.4, -0.6),
            xlabel=f"loss of {metric_name(reasons.metric)}",
        )
        axis.grid(axis="y", visible=False)
        words = "; ".join(
            f"{_name(g)} {interval(g.loss)}"
            + (f", {share(g.share)} of the score" if g.share is not None and g.counts else "")
            for g in shown
        )
        more = len(reasons.groups) - len(shown)
        return canvas.done(
            f"Loss of {metric_name(reasons.metric)} without each group of columns: {words}.",
            "What the metric loses when a group of columns is shuffled, with intervals."
            + (f" {count(more)} weaker groups are in evaluation.json." if more > 0 else ""),
        )


def partial_dependence(curves: tuple[PartialCurve, ...]) -> Picture:
    """Draw a panel for each curve, on one scale where all predict the same."""
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    same = len({curve.what for curve in curves}) == 1
    size = (WIDE[0], 0.4 + 2.1 * rows)
    with canvas_for("partial", size, rows, columns, squeeze=False, sharey=same) as canvas:
        for axis, curve in zip(canvas.axes, curves, strict=False):
            _panel(axis, curve)
        for axis in canvas.axes[len(curves) :]:
            axis.set_axis_off()
        words = "; ".join(
            f"{plain(c.column, 40)}: {plain(c.what, 60)} from {number(min(c.means))} to"
            f" {number(max(c.means))}"
            for c in curves
        )
        what = plain(curves[0].what, 60) if same else "prediction"
        return canvas.done(
            f"Partial dependence of the strongest columns. {words}.",
            f"Mean {what} against the strongest columns.",
        )


def _panel(axis: Any, curve: PartialCurve) -> None:
    if curve.numbers:
        axis.plot(curve.numbers, curve.means, color=MODEL, marker="o", ms=3)
    else:
        order = np.argsort(curve.means)[::-1][:8]
        axis.plot([curve.means[i] for i in order], "o", color=MODEL, ms=5)
        names = [plain(curve.at[i], 12) for i in order]
        axis.set_xticks(range(len(order)), labels=names, rotation=35, ha="right")
        axis.margins(x=0.1)
    axis.set_title(plain(curve.column, 34))
