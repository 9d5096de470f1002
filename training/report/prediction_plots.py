"""Pictures of the predictions: ROC, precision-recall, calibration; residuals for a regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.formatting import number, plain, plural, share
from training.report.data import Floats, Predictions
from training.report.svg import (
    ALARM,
    BASELINE,
    INK,
    MODEL,
    TALL,
    WIDE,
    Picture,
    canvas_for,
    count_axis,
    date_axis,
    rows_drawn,
    sample_rows,
    thin,
)


def _outcome(rows: Predictions) -> tuple[NDArray[np.int64], Floats]:
    """Return the binary label [N] (1 = positive) and probability of the positive class [N]."""
    if rows.probability is None:
        raise ValueError("expected predictions of classes, got values")
    return rows.label.astype(np.int64), rows.probability[:, 1]


def roc(rows: Predictions, auroc: float | None) -> Picture:
    """Draw true against false positive rate over all thresholds."""
    from sklearn.metrics import roc_curve

    fpr, tpr, _ = roc_curve(*_outcome(rows))
    with canvas_for("roc") as canvas:
        axis = canvas.axes[0]
        x, y = thin(fpr, tpr)
        axis.plot([0, 1], [0, 1], color=BASELINE, lw=1, ls="--", label="chance")
        axis.plot(x, y, color=MODEL, label=f"model, AUROC {number(auroc)}")
        axis.set(
            xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01)
        )
        axis.legend(loc="lower right")
        at = float(np.interp(0.1, fpr, tpr))
        return canvas.done(
            f"ROC curve, AUROC {number(auroc)}; at a false positive rate of 10 % the true positive"
            f" rate is {share(at)}.",
            "Receiver operating characteristic on the test rows.",
        )


def precision_recall(rows: Predictions, pr_auc: float | None) -> Picture:
    """Draw precision against recall over all thresholds; the fraction of positives is the floor."""
    from sklearn.metrics import precision_recall_curve

    label, probability = _outcome(rows)
    precision, recall, _ = precision_recall_curve(label, probability)
    rate = float(label.mean())
    with canvas_for("pr") as canvas:
        axis = canvas.axes[0]
        x, y = thin(recall, precision)
        axis.axhline(
            rate, color=BASELINE, lw=1, ls="--", label=f"share of positives, {share(rate)}"
        )
        axis.plot(x, y, color=MODEL, label=f"model, PR-AUC {number(pr_auc)}")
        axis.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.03))
        axis.legend(loc="upper right")
        return canvas.done(
            f"Precision-recall curve, PR-AUC {number(pr_auc)}, share of positives {share(rate)}.",
            "Precision and recall on the test rows.",
        )


def wilson(hits: Floats, totals: Floats) -> tuple[Floats, Floats]:
    """Compute the 95 % interval of a fraction.

    Source: Wilson, E. B. (1927), Probable inference, the law of succession, and statistical
    inference, JASA 22.
    """
    z = 1.959963984540054
    p, base = hits / totals, 1 + z * z / totals
    middle, half = (
        (p + z * z / (2 * totals)) / base,
        z * np.sqrt(p * (1 - p) / totals + z * z / (4 * totals * totals)) / base,
    )
    return middle - half, middle + half


def calibration(confidence: Floats, hit: NDArray[Any], what: str, bins: int = 10) -> Picture:
    """Draw observed against predicted probability in bins of equal size, with a histogram."""
    order = np.argsort(confidence, kind="stable")
    parts = [p for p in np.array_split(order, min(bins, len(order))) if len(p)]
    totals = np.array([len(p) for p in parts], dtype=np.float64)
    hits = np.array([hit[p].sum() for p in parts], dtype=np.float64)
    said, seen = np.array([confidence[p].mean() for p in parts]), hits / totals
    low, high = wilson(hits, totals)
    with canvas_for("calibration", TALL, 2, 1, sharex=True, height_ratios=(3.2, 1)) as canvas:
        axis, below = canvas.axes
        axis.plot([0, 1], [0, 1], color=BASELINE, lw=1, ls="--", label="perfect")
        axis.errorbar(
            said,
            seen,
            yerr=np.clip([seen - low, high - seen], 0, None),
            color=MODEL,
            marker="o",
            ms=4,
            lw=1.3,
            elinewidth=1,
            label="model (95 % interval)",
        )
        limit = min(1.0, 1.08 * float(max(confidence.max(), high.max())))
        axis.set(ylabel="observed share", xlim=(0, limit), ylim=(0, limit))
        axis.legend(loc="upper left")
        below.hist(confidence, bins=np.linspace(0, limit, 41), color=MODEL, alpha=0.45)
        below.set(xlabel=what, ylabel="rows")
        count_axis(below.yaxis, most=2)
        error = float(np.average(np.abs(said - seen), weights=totals))
        return canvas.done(
            f"Calibration in {len(parts)} bins: predicted and observed shares differ by"
            f" {number(error)} on average.",
            f"Predicted against observed share in {len(parts)} bins of equal size; they differ by"
            f" {number(error)} on average.",
        )


def scores_by_class(rows: Predictions, positive: str) -> Picture:
    """Draw the distribution of predicted probability among positives and among the others.

    Each is a fraction of its own rows.
    """
    label, probability = _outcome(rows)
    edges = np.linspace(0, 1, 41)
    with canvas_for("scores", TALL) as canvas:
        axis = canvas.axes[0]
        for value, colour, name in ((0, BASELINE, f"not {positive}"), (1, MODEL, positive)):
            part = probability[label == value]
            axis.hist(
                part,
                bins=edges,
                weights=np.full(len(part), 1 / max(1, len(part))),
                color=colour,
                alpha=0.5,
                label=f"{name} ({plural(len(part), 'row')})",
            )
        axis.set(
            xlabel=f"predicted probability of {positive}", ylabel="share of the class", xlim=(0, 1)
        )
        canvas.legend(axis)
        middle = [
            number(float(np.median(probability[label == v]))) if (label == v).any() else "–"
            for v in (1, 0)
        ]
        return canvas.done(
            f"Predicted probabilities: median {middle[0]} among positives, {middle[1]} among the"
            " others.",
            "Predicted probability by true class: the less the two overlap, the better they are"
            " told apart.",
        )


def recall_by_class(names: Sequence[str], hits: Floats, totals: Floats) -> Picture:
    """Draw the recall of each class with its 95 % interval, without classes that have no rows."""
    known = np.flatnonzero(totals > 0).tolist()
    low, high = wilson(hits[known], totals[known])
    seen = hits[known] / totals[known]
    with canvas_for("recall", (TALL[0], max(TALL[1], 0.9 + 0.21 * len(known)))) as canvas:
        axis = canvas.axes[0]
        axis.errorbar(
            seen,
            range(len(known)),
            xerr=np.clip([seen - low, high - seen], 0, None),
            fmt="o",
            color=MODEL,
            ms=5,
            elinewidth=1.6,
        )
        axis.set(
            yticks=range(len(known)),
            yticklabels=[plain(names[i], 18) for i in known],
            ylim=(len(known) - 0.4, -0.6),
            xlim=(0, 1.02),
            xlabel="recall",
        )
        worst, best = int(seen.argmin()), int(seen.argmax())
        return canvas.done(
            f"Recall by class, from {number(float(seen[worst]))} ({plain(names[known[worst]], 40)})"
            f" to {number(float(seen[best]))} ({plain(names[known[best]], 40)}).",
            "Share of each class's rows that were recognised, with its 95 % interval.",
        )


def predicted_against_true(rows: Predictions, label: str) -> Picture:
    """Draw one point per row; the diagonal is a perfect prediction."""
    chosen = sample_rows(len(rows.label))
    true, predicted = rows.label[chosen], rows.prediction[chosen]
    with canvas_for("scatter") as canvas:
        axis = canvas.axes[0]
        low, high = float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))
        axis.plot([low, high], [low, high], color=BASELINE, lw=1, ls="--")
        axis.scatter(true, predicted, s=7, color=MODEL, alpha=0.30, lw=0, rasterized=True)
        axis.set(xlabel=f"true {plain(label, 30)}", ylabel="predicted")
        related = (
            float(np.corrcoef(rows.label, rows.prediction)[0, 1])
            if np.ptp(rows.label) and np.ptp(rows.prediction)
            else None
        )
        return canvas.done(
            f"Predicted against true values; correlation {number(related)}.",
            "Predicted against true values; the dashed line is a perfect prediction."
            f" {rows_drawn(len(rows.label))}",
        )


def residual_histogram(rows: Predictions) -> Picture:
    """Draw the distribution of errors (predicted minus true).

    The outermost 0.5 % at each end share the end bins.
    """
    errors = rows.prediction - rows.label
    low, high = (float(v) for v in np.quantile(errors, (0.005, 0.995)))
    edges = np.linspace(low, high if high > low else low + 1, 51)
    with canvas_for("residuals") as canvas:
        axis = canvas.axes[0]
        axis.hist(errors.clip(edges[0], edges[-1]), bins=edges, color=MODEL, alpha=0.75)
        axis.axvline(0, color=INK, lw=0.9)
        axis.axvline(
            float(errors.mean()),
            color=ALARM,
            lw=1.2,
            ls="--",
            label=f"mean {number(float(errors.mean()))}",
        )
        axis.set(xlabel="predicted − true", ylabel="rows")
        canvas.legend(axis)
        count_axis(axis.yaxis)
        middle = [number(float(v)) for v in np.quantile(errors, (0.05, 0.5, 0.95))]
        return canvas.done(
            f"Histogram of errors: 5 % quantile {middle[0]}, median {middle[1]}, 95 % quantile"
            f" {middle[2]}.",
            "Spread of the errors; the outermost 0.5 % on each side share the end bins.",
        )


def residuals_over_time(rows: Predictions, timestamp: bool, bins: int = 40) -> Picture | None:
    """Draw errors by time: points, and the median with its 10 to 90 % band.

    Each stretch of the band has equally many rows.
    """
    if rows.time is None or not np.isfinite(rows.time).any():
        return None
    known = np.flatnonzero(np.isfinite(rows.time))
    order = known[np.argsort(rows.time[known], kind="stable")]
    time, errors = (
        rows.time[order] / (86400.0 if timestamp else 1.0),
        (rows.prediction - rows.label)[order],
    )
    parts = [
        p
        for p in np.array_split(np.arange(len(order)), min(bins, max(1, len(order) // 20)))
        if len(p)
    ]
    centre = np.array([np.median(time[p]) for p in parts])
    low, middle, high = np.array([np.quantile(errors[p], (0.1, 0.5, 0.9)) for p in parts]).T
    with canvas_for("residual-time", WIDE) as canvas:
        axis, chosen = canvas.axes[0], sample_rows(len(order))
        axis.scatter(
            time[chosen], errors[chosen], s=5, color=BASELINE, alpha=0.25, lw=0, rasterized=True
        )
        axis.fill_between(centre, low, high, color=MODEL, alpha=0.18, lw=0, label="10 to 90 %")
        axis.plot(centre, middle, color=MODEL, label="median")
        axis.axhline(0, color=INK, lw=0.8)
        axis.set(
            ylabel="predicted − true", xlabel="" if timestamp else "time (units of the column)"
        )
        if timestamp:
            date_axis(axis.xaxis)
        axis.legend(loc="upper left", ncols=2)
        return canvas.done(
            f"Errors over time: the median moves from {number(float(middle[0]))} to"
            f" {number(float(middle[-1]))}.",
            f"Errors by time of the row. {rows_drawn(len(order))}",
        )
