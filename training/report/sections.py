"""First sections of the report: test metrics, split, checks, learning curves.

Each takes the records that it shows and returns blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from schemas.config import Declaration, SplitName
from schemas.new_rows import NewRows
from schemas.records import (
    CheckResult,
    EvaluationReport,
    GateReport,
    Interval,
    Prepared,
)
from training.formatting import (
    MISSING,
    capital,
    count,
    duration,
    figure,
    instant,
    metric_name,
    number,
    percent,
    plain,
    plural,
    share,
    show,
)
from training.report import labels as report_labels
from training.report import plots
from training.report.blocks import (
    Badge,
    Block,
    Bullets,
    Callout,
    Facts,
    Gallery,
    Heading,
    Table,
    Tone,
    Words,
    checks,
    records_table,
    table,
)
from training.report.data import Side
from training.report.gate_section import gate_blocks, look_blocks
from training.report.svg import SIDE_NAMES
from training.report.yardstick_section import yardstick_blocks

Standing = Literal["better", "about equal", "worse", "unknown"]
PLACES: dict[str, Standing] = {
    "ahead": "better",
    "level": "about equal",
    "behind": "worse",
    "unknown": "unknown",
}
STANDING_TONES: dict[Standing, Tone] = {
    "better": "good",
    "about equal": "warn",
    "worse": "bad",
    "unknown": "info",
}
EXCLUDED_BECAUSE = {
    "embargo": "inside the embargo after a cut",
    "group_time": "the side of its group and the side of its time disagree",
    "filter": "data.filter is not true",
    "unlabelled": "no label (data.null_labels: drop)",
    "ignored": "a label that means unknown (task.ignore)",
    "seen_by_init": "the weights of model.init were trained on them (model.init.seen_rows)",
}
BASE_TITLES = {"regression": "The label on the test rows", "causal_lm": "The test documents"}
MAX_CLASSES = MAX_GROUPS = 30


# ------------------------------------------------------------------------------------------ metrics


def standing(
    value: Interval,
    baseline: float | None,
    greater_is_better: bool,
    difference: Interval | None = None,
) -> Standing:
    """Compare the model with a baseline: better or worse only if chance is ruled out.

    Args:
        value: the model's metric. Its interval decides if no paired difference is known.
        baseline: the baseline's metric.
        greater_is_better: direction of the metric.
        difference: model minus baseline on the same resamples, the sharper comparison.
    """
    if value.value is None or baseline is None:
        return "unknown"
    if difference is not None and difference.low is not None and difference.high is not None:
        low, high = difference.low, difference.high
    else:
        low, high = (
            (value.value if bound is None else bound) - baseline
            for bound in (value.low, value.high)
        )
    if low <= 0 <= high:
        return "about equal"
    return "better" if (low > 0) == greater_is_better else "worse"


def standings(declaration: Declaration, test: EvaluationReport) -> dict[str, Standing]:
    """Compare the model with each baseline in the declared metric.

    It is computed here only for evaluations that did not record it.
    """
    metric = declaration.metric
    if test.standing:
        return {n: PLACES[test.standing.get(n, "unknown")] for n in test.baselines}
    return {
        n: standing(
            test.metrics[metric],
            values.get(metric),
            declaration.greater_is_better,
            test.differences.get(n),
        )
        for n, values in test.baselines.items()
    }


def metric_blocks(
    declaration: Declaration, test: EvaluationReport, val: EvaluationReport | None
) -> list[Block]:
    """Show metrics with intervals, base rate, baselines, and the figures by group."""
    directions = declaration.metrics
    names = sorted(
        (m for m in directions if m in test.metrics), key=lambda m: m != declaration.metric
    )
    blocks: list[Block] = [
        _skill(test),
        _metric_table(names, directions, declaration.evaluate.confidence, test, val),
        Words(
            "↑ higher is better, ↓ lower is better. An interval holds"
            f" {percent(declaration.evaluate.confidence)} of"
            f" {count(declaration.evaluate.bootstrap)} bootstrap resamples by {test.resampled_by}."
            f" {test.interval_note + ' ' if test.interval_note else ''}All"
            f" {plural(test.rows, 'test row')} are scored once."
        ),
    ]
    blocks += look_blocks(test)
    if test.base_rate:
        blocks += [
            Heading(BASE_TITLES.get(declaration.task.kind, "Base rate")),
            Facts(
                tuple(
                    (plain(k, 60), figure(_whole(v)))
                    for k, v in list(test.base_rate.items())[:MAX_CLASSES]
                )
            ),
        ]
    if test.baselines:
        shown = [(m, directions[m]) for m in names if test.metrics[m].value is not None][:4]
        blocks += [
            Heading("Next to baselines"),
            *([Gallery((plots.forest(test, shown),))] if shown else []),
            _baseline_table(declaration, names, test),
        ]
    blocks += yardstick_blocks(declaration, names, test)
    if test.by_label:
        blocks += report_labels.label_blocks(test)
    if test.by_group:
        blocks += [
            Heading("By group"),
            Words("The largest groups first; groups with few rows may be left out."),
            _group_table(test.by_group),
        ]
    return blocks


def _whole(value: float) -> float:
    """Return a count above 1 as a whole number; fractions and means unchanged."""
    return int(value) if value > 1 and float(value).is_integer() else value


def _skill(test: EvaluationReport) -> Callout:
    if not test.baselines:
        return Callout(
            "warn",
            "Not compared",
            plain(test.verdict, 1000)
            or "No baseline was fitted, so nothing says whether the network is better than"
            " something simple.",
        )
    title = (
        "Better than a constant prediction"
        if test.has_skill
        else "Too few rows to say"
        if test.too_few
        else "No skill"
    )
    return Callout("good" if test.has_skill else "bad", title, plain(test.verdict, 1000))


def _metric_table(
    names: list[str],
    directions: dict[str, bool],
    confidence: float,
    test: EvaluationReport,
    val: EvaluationReport | None,
) -> Table:
    rows = []
    for name in names:
        value = test.metrics.get(name, Interval(value=None))
        bounds = (
            MISSING
            if value.low is None or value.high is None
            else f"{number(value.low)} to {number(value.high)}"
        )
        row = [
            f"{metric_name(name)} {'↑' if directions[name] else '↓'}",
            number(value.value),
            bounds,
        ]
        rows.append(
            row
            if val is None
            else [*row, number(val.metrics.get(name, Interval(value=None)).value)]
        )
    return table(
        [
            "Metric",
            "Test",
            f"{percent(confidence)} interval",
            *([] if val is None else ["Validation"]),
        ],
        rows,
    )


def _baseline_table(declaration: Declaration, names: list[str], test: EvaluationReport) -> Table:
    main = declaration.metric
    found = standings(declaration, test)
    rows: list[list[Any]] = [["model", *[number(test.metrics[n].value) for n in names], ""]]
    for name, values in test.baselines.items():
        rows.append(
            [
                plain(name),
                *[number(values.get(n)) for n in names],
                Badge(STANDING_TONES[found[name]], f"model is {found[name]}"),
            ]
        )
    return table(
        ["", *[metric_name(n) for n in names], f"By {metric_name(main)}"],
        rows,
        words=(0, len(names) + 1),
    )


def _group_table(groups: Sequence[dict[str, Any]]) -> Table:
    ordered = (
        sorted(groups, key=lambda g: -g["rows"])
        if all(isinstance(g.get("rows"), int) for g in groups)
        else list(groups)
    )
    return records_table(ordered, limit=MAX_GROUPS, what="groups")


# -------------------------------------------------------------------------------------------- split


def split_blocks(
    declaration: Declaration,
    prepared: Prepared,
    sides: dict[SplitName, Side],
    new_rows: NewRows | None = None,
) -> list[Block]:
    """Show rows, groups, times and labels of each split, unassigned rows, and the timeline."""
    spec = prepared.validated.spec
    timed = [s.times for s in sides.values() if s.times is not None and len(s.times)]
    picture = (
        plots.timeline(sides, spec.time_is_timestamp, *cut_points(prepared))
        if timed
        else plots.side_bars(sides)
    )
    blocks: list[Block] = [_side_table(declaration, prepared, sides), Gallery((picture,))]
    if new_rows is not None:
        words = f"{capital(plain(new_rows.sentence, 400))}."
        blocks.insert(
            0,
            (
                Callout("warn", "Nothing new to learn from", words)
                if new_rows.learns_nothing_new
                else Words(words)
            ),
        )
    if prepared.statistics.labels:
        blocks += report_labels.side_blocks(prepared)
    if declaration.task.kind == "multiclass":
        blocks.append(_class_shares(prepared, sides))
    blocks += _excluded(prepared)
    plan = tuple(
        (plain(k).replace("_", " "), _plan_value(k, v, spec.time_is_timestamp))
        for k, v in prepared.split.plan.items()
        if k not in ("cuts_text", "newest")
    )
    blocks += [
        Heading("How the side of a row was decided"),
        Facts((("strategy", plain(prepared.split.strategy)), *plan)),
    ]
    return blocks


def _plan_value(key: str, value: Any, timestamps: bool) -> str:
    """Return a figure of the plan; times and durations in words."""
    if timestamps and key == "cuts" and isinstance(value, dict):
        return "; ".join(
            f"{SIDE_NAMES.get(k, plain(k))} from"
            f" {instant(v, True) if isinstance(v, int | float) else show(v)}"
            for k, v in value.items()
        )
    if timestamps and key == "embargo" and isinstance(value, int | float):
        return duration(value) if value else "none"
    return show(value)


def cut_points(prepared: Prepared) -> tuple[list[float], float]:
    """Return cut points in units of `__time`, and the embargo after each; none without times."""
    cuts = prepared.split.plan.get("cuts") or {}
    values = [
        float(v)
        for v in (cuts.values() if isinstance(cuts, dict) else cuts)
        if isinstance(v, int | float)
    ]
    embargo = prepared.split.plan.get("embargo") or 0.0
    return sorted(values), float(embargo) if isinstance(embargo, int | float) else 0.0


def _side_table(
    declaration: Declaration, prepared: Prepared, sides: dict[SplitName, Side]
) -> Table:
    spec, statistics = prepared.validated.spec, prepared.statistics
    total = sum(s.rows for s in sides.values())
    label = {
        "binary": [
            (
                f"Share of {plain(spec.label, 30)} = {plain(statistics.classes[-1], 30)}"
                if statistics.classes
                else ""
            )
        ],
        "multiclass": ["Classes present"],
        "regression": [report_labels.mean_of(statistics, spec.label), "Standard deviation"],
        "causal_lm": ["Mean characters", "Standard deviation"],
    }.get(declaration.task.kind, ["Known labels"])
    headers = [
        "Side",
        "Rows",
        "Share",
        *(["Groups"] if spec.grouped else []),
        *(["First", "Last"] if spec.time else []),
        *label,
    ]
    rows = []
    for side in sides.values():
        row = [SIDE_NAMES[side.name], count(side.rows), share(side.rows / total)]
        row += [count(side.groups or 0)] if spec.grouped else []
        row += (
            [
                instant(side.first, spec.time_is_timestamp),
                instant(side.last, spec.time_is_timestamp),
            ]
            if spec.time
            else []
        )
        rows.append([*row, *_label_cells(side, declaration.task.kind)])
    return table(headers, rows)


def _label_cells(side: Side, kind: str) -> list[str]:
    if side.known_labels is not None:
        return [share(side.known_labels)]
    if side.class_counts is None:
        return [number(side.label_mean), number(side.label_std)]
    if kind == "binary":
        return [share(float(side.class_counts[-1]) / max(1, side.rows))]
    return [f"{int(np.count_nonzero(side.class_counts))} of {len(side.class_counts)}"]


def _class_shares(prepared: Prepared, sides: dict[SplitName, Side]) -> Table:
    counts = {n: s.class_counts for n, s in sides.items() if s.class_counts is not None}
    rows = [
        [
            plain(name, 40),
            *[
                cell
                for c in counts.values()
                for cell in (count(int(c[i])), share(float(c[i]) / max(1, int(c.sum()))))
            ],
        ]
        for i, name in enumerate(prepared.statistics.classes)
    ]
    headers = ["Class", *[h for n in counts for h in (SIDE_NAMES[n], "share")]]
    return table(headers, rows, limit=MAX_CLASSES, what="classes")


def _excluded(prepared: Prepared) -> list[Block]:
    validated = prepared.validated
    ignored = 0 if validated.spec.has_several_labels else sum(validated.ignored_labels.values())
    left_out = {
        "filter": validated.filtered_rows,
        "unlabelled": validated.unlabelled_rows,
        "ignored": ignored,
        **prepared.split.excluded,
    }
    rows = [[plain(EXCLUDED_BECAUSE.get(k, k)), count(n)] for k, n in left_out.items() if n]
    return (
        [Heading("Rows on no side"), table(["Reason", "Rows"], rows)]
        if rows
        else [Words("No row was left out: every row of the source is on one side.")]
    )


# ------------------------------------------------------------------------------------------- checks


def check_blocks(
    declaration: Declaration, prepared: Prepared, gate: GateReport | None
) -> list[Block]:
    """Show verdicts with evidence, what they cannot decide, and the gate before the registry."""
    results = prepared.checks.results
    blocks: list[Block] = [Words(_tally(results)), checks(results)]
    blocks += [
        Heading("What these checks cannot decide"),
        Bullets(undecided(declaration, prepared)),
    ]
    if gate is not None:
        blocks += [Heading("Gate before the registry"), *gate_blocks(gate)]
    return blocks


def tally(results: Sequence[CheckResult]) -> dict[str, int]:
    """Count the checks of each verdict; verdicts without any are left out."""
    found = {v: sum(r.verdict == v for r in results) for v in ("pass", "warn", "allowed", "fail")}
    return {v: n for v, n in found.items() if n}


def tally_words(results: Sequence[CheckResult]) -> str:
    """Format the counts as `9 checks passed, 1 warned`."""
    words = {
        "pass": "passed",
        "warn": "warned",
        "allowed": "allowed with a stated reason",
        "fail": "failed",
    }
    found = [f"{count(n)} {words[v]}" for v, n in tally(results).items()]
    return f"{plural(len(results), 'check')}: {', '.join(found)}" if found else "no checks were run"


def _tally(results: Sequence[CheckResult]) -> str:
    return f"Checked on the files that training and evaluation read. {tally_words(results)}."


def undecided(declaration: Declaration, prepared: Prepared) -> tuple[str, ...]:
    """Return questions that no check on these data can answer.

    The declared roles decide which are open.
    """
    spec, split = prepared.validated.spec, prepared.split.strategy
    groups = ", ".join(plain(g, 40) for g in (*spec.group, *spec.group_by))
    found = [
        (
            f"Whether rows belong together in a way that is not declared. Declared: {groups}."
            if spec.grouped
            else (
                "Whether several rows belong to one person, device or site: no group is declared,"
                " so each row counts as independent."
            )
        ),
        (
            "Whether the same entity appears again under a new id: rows that differ in any feature"
            " are not recognised as the same."
        ),
        (
            "Whether each feature is known at the moment of prediction in real use; a column filled"
            " in afterwards looks like a good feature."
        ),
        (
            "Whether the labels are right. The test labels share any systematic error of the train"
            " labels."
        ),
        "Whether the test rows are drawn from the population that the model will serve.",
    ]
    if spec.text:
        found[1:4] = [
            "Whether documents quote or repeat one another: texts that differ in a single character"
            " count as different."
        ]
    if spec.time is None:
        found.append(
            "Whether the model holds up later: no time is declared, so the test rows may be as old"
            " as the train rows."
        )
    elif split not in ("time", "group_time"):
        found.append(
            f"Whether the model holds up later: the split ({plain(split)}) does not put the test"
            " rows after the train rows."
        )
    if any(r.name == "group_overlap" and r.verdict != "pass" for r in prepared.checks.results):
        found.append(
            f"Whether the model works for a {groups} that it has never seen: some are on two sides."
        )
    return tuple(found)
