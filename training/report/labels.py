"""Parts of the report on several labels: a table row, known rows per split, and a picture. Shape
legend: N rows, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas.config import METRICS, SPLITS
from schemas.records import EvaluationReport, Prepared, Statistics
from training.formatting import MISSING, count, metric_name, number, plain, plural, share
from training.report.blocks import Block, Gallery, Heading, Table, Words, table
from training.report.svg import BASELINE, MODEL, SIDE_NAMES, WIDE, Picture, canvas_for

MAX_LABELS = 100
MAX_DRAWN = 40


def label_blocks(test: EvaluationReport) -> list[Block]:
    """Return one table for each kind of label, and for each main metric of that kind.

    Columns: known test rows, base rate, main metric with interval and baselines, further metrics.
    """
    kinds = list(dict.fromkeys((row["kind"], row["metric"]) for row in test.by_label))
    note = [Words(plain(test.label_note, 1000))] if test.label_note else []
    tables = [
        _test_table([row for row in test.by_label if (row["kind"], row["metric"]) == kind])
        for kind in kinds
    ]
    return [
        Heading("By label"),
        Words(
            "Each label is measured on the test rows that know it; unknown ones are neither filled"
            " in nor counted."
        ),
        *note,
        *tables,
    ]


def _test_table(rows: Sequence[dict[str, Any]]) -> Table:
    kind, metric = rows[0]["kind"], rows[0]["metric"]
    baselines = [
        key for key in dict.fromkeys(k for row in rows for k in row) if key.startswith("baseline ")
    ]
    others = [name for name in METRICS[kind] if name != metric]
    binary = ["Positive"] if kind == "binary" else []
    headers = [
        "Label",
        "Known rows",
        *binary,
        capital_name(metric),
        "Interval",
        *[plain(b.removeprefix("baseline "), 20) for b in baselines],
        *map(metric_name, others),
    ]
    cells = []
    for row in rows:
        bounds = (
            MISSING if row.get("low") is None else f"{number(row['low'])} to {number(row['high'])}"
        )
        own = [share(row["positive"])] if binary else []
        figures = [number(row.get(key)) for key in (*baselines, *others)]
        cells.append(
            [
                plain(row["label"], 40),
                count(row["known"]),
                *own,
                number(row.get("value")),
                bounds,
                *figures,
            ]
        )
    return table(headers, cells, limit=MAX_LABELS, what="labels")


def capital_name(metric: str) -> str:
    """Return a metric's name for the head of a column."""
    name = metric_name(metric)
    return name[:1].upper() + name[1:]


def known_rows(prepared: Prepared) -> dict[str, np.ndarray]:
    """Return the label array [N, L] of each split, as materialised."""
    return {
        side: np.load(
            prepared.arrays.side(side).arrays["label"].path, mmap_mode="r", allow_pickle=False
        )
        for side in SPLITS
    }


def side_blocks(prepared: Prepared) -> list[Block]:
    """Show for each label and split the known rows, and their main figure.

    It is the fraction of positives, the number of classes or the mean.
    """
    sides, ignored, rows = known_rows(prepared), prepared.validated.ignored_labels, []
    for i, label in enumerate(prepared.statistics.labels):
        cells = [plain(label.name, 40)]
        for values in sides.values():
            known = values[~np.isnan(values[:, i]), i].astype(np.float64)
            cells += [
                count(len(known)),
                _figure(label.kind, known * label.target_scale + label.target_center),
            ]
        rows.append([*cells, *([count(ignored.get(label.name, 0))] if ignored else [])])
    headers = [
        "Label",
        *[h for side in sides for h in (f"{SIDE_NAMES[side]}: known", "share or mean")],
        *(["Ignored values"] if ignored else []),
    ]
    return [
        Heading("Known labels"),
        table(headers, rows, limit=MAX_LABELS, what="labels"),
        Words(
            "Next to the known rows: the share of positives of a binary label, the number of"
            " classes of a multiclass one, the mean of a regression."
        ),
    ]


def _figure(kind: str, known: np.ndarray) -> str:
    if not len(known):
        return MISSING
    if kind == "multiclass":
        return f"{plural(len(np.unique(known)), 'class')}"
    return share(float(known.mean())) if kind == "binary" else number(float(known.mean()))


def statistics_table(fitted: Statistics) -> Table:
    """Show what was fitted on train for each label."""
    rows = []
    for label in fitted.labels:
        shown = ", ".join(
            f"{plain(c, 24)} ({count(n)})"
            for c, n in list(zip(label.classes, label.class_counts, strict=True))[:6]
        )
        scaling = (
            MISSING
            if label.classes
            else f"− {number(label.target_center)}, / {number(label.target_scale)}"
        )
        rows.append(
            [
                plain(label.name, 40),
                label.kind,
                count(label.known),
                share(label.known / max(1, fitted.rows)),
                shown or MISSING,
                scaling,
            ]
        )
    return table(
        ["Label", "Kind", "Known train rows", "Share", "Classes", "Scaled"],
        rows,
        words=(0, 1, 4),
        limit=MAX_LABELS,
        what="labels",
    )


def prediction_blocks(test: EvaluationReport) -> list[Block]:
    """Draw for each kind of label its main metric with interval next to the baselines."""
    kinds = dict.fromkeys(row["kind"] for row in test.by_label if row.get("value") is not None)
    pictures = [
        _picture(
            kind,
            [row for row in test.by_label if row["kind"] == kind and row.get("value") is not None],
        )
        for kind in kinds
    ]
    return [Gallery(tuple(pictures))] if pictures else [Words("No label is defined on these rows.")]


def _picture(kind: str, rows: Sequence[dict[str, Any]]) -> Picture:
    shown, metric = rows[:MAX_DRAWN], rows[0]["metric"]
    with canvas_for(f"labels-{kind}", (WIDE[0], 1.0 + 0.24 * len(shown))) as canvas:
        axis = canvas.axes[0]
        for place, row in enumerate(shown):
            if row.get("low") is not None:
                axis.plot(
                    [row["low"], row["high"]],
                    [place, place],
                    color=MODEL,
                    lw=2.4,
                    solid_capstyle="butt",
                )
            axis.plot(
                row["value"],
                place,
                "o",
                color=MODEL,
                ms=6,
                label=None if place else "model (interval)",
            )
            rivals = [
                v
                for key, v in row.items()
                if key in ("baseline linear", "baseline boosting") and v is not None
            ]
            axis.plot(
                rivals,
                [place] * len(rivals),
                "D",
                color=BASELINE,
                ms=4.5,
                ls="",
                label=None if place else "linear, boosting",
            )
        axis.set(
            yticks=range(len(shown)),
            yticklabels=[plain(row["label"], 24) for row in shown],
            ylim=(len(shown) - 0.4, -0.6),
            xlabel=metric_name(metric),
        )
        axis.grid(axis="y", visible=False)
        canvas.legend(axis)
        values = [row["value"] for row in shown]
        low, high = (shown[int(pick(values))] for pick in (np.argmin, np.argmax))
        words = (
            f"{capital_name(metric)} by label, from {number(low['value'])}"
            f" ({plain(low['label'], 40)}) to {number(high['value'])} ({plain(high['label'], 40)})."
        )
        more = f" The first {MAX_DRAWN} of {len(rows)} labels." if len(rows) > MAX_DRAWN else ""
        return canvas.done(
            words,
            f"{capital_name(metric)} of each label on its known test rows, next to baselines on the"
            f" same rows.{more}",
        )


def learned_as(statistics: Statistics, label: str) -> str:
    """Return the label as it is learned: its name, or its logarithm with `task.transform`.

    >>> learned_as(Statistics(train_sha256="", rows=3, numeric=(), categorical=(), tensor=(),
    ...     target_transform="log1p"), "dose")
    'log(1 + dose)'
    """
    name = plain(label, 30)
    names = {"log": f"log({name})", "log1p": f"log(1 + {name})"}
    return names.get(statistics.target_transform or "", name)


def mean_of(statistics: Statistics, label: str) -> str:
    """Return the header of a column of label means, on the scale that is learned."""
    return f"Mean of {learned_as(statistics, label)}"


def value_header(statistics: Statistics) -> str:
    """Return the header of a label's figures on train."""
    scale = f" of {learned_as(statistics, 'label')}" if statistics.target_transform else ""
    return f"Value{scale}"
