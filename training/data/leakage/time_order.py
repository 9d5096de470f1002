"""Hard assertions on times: splits in order with their gap, labels and features known in time.

A label must be known before the next split begins.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from schemas.config import Declaration, GroupTimeSplit, PredefinedSplit, SplitName, TimeSplit
from schemas.errors import counted
from schemas.records import CheckResult, TableSpec
from training.data.engine.engine import ident, row, rows
from training.data.leakage.sides import Sides
from training.data.table.time_units import in_time_units, length

EVIDENCE_ROWS = 10
Pairs = tuple[tuple[SplitName, SplitName], ...]


class Span(NamedTuple):
    """First and last time of a split, and the last time at which one of its labels became known.

    The latter is the last time of the split if it is not declared.
    """

    first: float
    last: float
    known: float


class Late(NamedTuple):
    """Rows of a split with features from before they were known."""

    side: SplitName
    rows: int
    examples: list[tuple[str, float, float]]  # id, time of the prediction, time of availability


def time_results(sides: Sides) -> list[CheckResult]:
    """Return the results that the declared times require."""
    spec, declaration = sides.spec, sides.declaration
    results = []
    if spec.time is not None and _ordered_in_time(declaration, spec):
        declared = (
            declaration.split.embargo
            if isinstance(declaration.split, TimeSplit | GroupTimeSplit)
            else 0.0
        )
        embargo = in_time_units(declared, spec, "split.embargo")
        spans, pairs = find_spans(sides), ordered_pairs(sides)
        results.append(judge_times(spans, pairs, embargo, spec))
        if spec.label_time:
            results.append(judge_label_intervals(sides, spans, pairs))
    return results + [
        judge_availability(find_late(sides, name, features), name, features, spec)
        for name, features in spec.available.items()
    ]


def find_spans(sides: Sides) -> dict[SplitName, Span]:
    """Return the times of each split that has any."""
    spans: dict[SplitName, Span] = {}
    known = "max(coalesce(__label_time, __time))" if sides.spec.label_time else "max(__time)"
    for side, relation in sides.relations.items():
        first, last, latest = row(
            sides.connection, f"select min(__time), max(__time), {known} from {relation}"
        )
        if first is not None:
            spans[side] = Span(float(first), float(last), float(latest))
    return spans


def ordered_pairs(sides: Sides) -> Pairs:
    """Return pairs of splits of which the first must end before the second begins.

    Validation taken from a predefined train shares its time.
    """
    split = sides.declaration.split
    carved = isinstance(split, PredefinedSplit) and split.carve_val > 0
    pairs: Pairs = (
        (("train", "test"), ("val", "test"))
        if carved
        else (("train", "val"), ("val", "test"), ("train", "test"))
    )
    return tuple((a, b) for a, b in pairs if a in sides.relations and b in sides.relations)


def judge_times(
    spans: dict[SplitName, Span], pairs: Pairs, embargo: float, spec: TableSpec
) -> CheckResult:
    """Fail unless the first split of each pair ends, plus the embargo, by the start of the second.

    A timestamp is in one split.
    """
    wrong = []
    for earlier, later in pairs:
        end, begin = spans[earlier].last, spans[later].first
        if end + embargo > begin or end >= begin:
            gap = (
                f" less than the embargo of {length(embargo, spec)} before"
                if end < begin
                else " not before"
            )
            wrong.append(
                f"{earlier} ends at {moment(end, spec)},{gap} {later} begins at"
                f" {moment(begin, spec)}"
            )
    return CheckResult(
        name="time_overlap",
        verdict="fail" if wrong else "pass",
        summary=(
            f"{spec.time}: " + "; ".join(wrong)
            if wrong
            else ", ".join(f"{a} ends before {b} begins" for a, b in pairs)
            + (f", with {length(embargo, spec)} between them" if embargo else "")
        ),
        figures={"embargo": embargo, "violations": len(wrong)},
        evidence=tuple(
            {"side": s, "first": moment(span.first, spec), "last": moment(span.last, spec)}
            for s, span in spans.items()
        ),
        columns=(spec.time,) if spec.time else (),
        remedy="correct the split column, or use split.kind: time" if wrong else "",
    )


def judge_label_intervals(sides: Sides, spans: dict[SplitName, Span], pairs: Pairs) -> CheckResult:
    """Fail if a label of the earlier split became known after the later split had begun.

    It carries information about the later split's time.
    """
    spec, wrong, evidence, count = sides.spec, [], [], 0
    for earlier, later in pairs:
        begin = spans[later].first
        # overlapping splits are another finding
        if spans[earlier].known < begin or spans[earlier].last >= begin:
            continue
        late = f"from {sides.relations[earlier]} where __label_time >= cast('{begin!r}' as double)"
        number = int(row(sides.connection, f"select count(*) {late}")[0])
        found = rows(
            sides.connection,
            f"select __id, __time, __label_time {late} order by md5(__id) limit {EVIDENCE_ROWS}",
        )
        wrong.append(
            f"{counted(number, f'{earlier} row', 'has', 'have')} a label that became known"
            f" at or after {moment(begin, spec)}, when {later} begins"
        )
        evidence += [
            {"id": str(i), "side": earlier, "time": moment(t, spec), "label known": moment(k, spec)}
            for i, t, k in found
        ]
        count += number
    return CheckResult(
        name="label_interval",
        verdict="fail" if wrong else "pass",
        summary=(
            f"{spec.label_time}: " + "; ".join(wrong)
            if wrong
            else f"every label was known ({spec.label_time}) before the next side begins"
        ),
        figures={"rows": count},
        evidence=tuple(evidence[:EVIDENCE_ROWS]),
        columns=(str(spec.label_time),),
        remedy=(
            "leave these rows out (split.kind: time does), or set split.embargo to the length of"
            " the label's window"
            if wrong
            else ""
        ),
    )


def find_late(sides: Sides, name: str, features: tuple[str, ...]) -> list[Late]:
    """Count rows by split in which a feature has a value that became known after the prediction.

    A null is ignored.
    """
    given = " or ".join(f"{ident(f)} is not null" for f in features) or "false"
    found = []
    for side, relation in sides.relations.items():
        late = f"from {relation} where {ident(name)} > __time and ({given})"
        count = int(row(sides.connection, f"select count(*) {late}")[0])
        examples = (
            rows(
                sides.connection,
                f"select __id, __time, {ident(name)} {late} order by md5(__id) limit"
                f" {EVIDENCE_ROWS}",
            )
            if count
            else []
        )
        found.append(Late(side, count, [(str(i), float(t), float(a)) for i, t, a in examples]))
    return found


def judge_availability(
    found: list[Late], name: str, features: tuple[str, ...], spec: TableSpec
) -> CheckResult:
    """Fail if a feature holds a value that was not known yet at the prediction."""
    total = sum(late.rows for late in found)
    spoken = ", ".join(features[:5]) + (
        f" and {len(features) - 5} more" if len(features) > 5 else ""
    )
    by_side = ", ".join(f"{late.side} {late.rows}" for late in found if late.rows)
    return CheckResult(
        name="availability",
        verdict="fail" if total else "pass",
        summary=(
            f"{name}: {counted(total, 'row', 'holds', 'hold')} {spoken} from after"
            f" {'its' if total == 1 else 'their'} prediction ({spec.time}):"
            f" {by_side}"
            if total
            else f"{spoken} were known ({name}) when the prediction is made ({spec.time})"
        ),
        figures={late.side: late.rows for late in found},
        evidence=tuple(
            {"id": i, "side": late.side, "time": moment(t, spec), "available": moment(a, spec)}
            for late in found
            for i, t, a in late.examples[:EVIDENCE_ROWS]
        )[:EVIDENCE_ROWS],
        columns=(name, *features),
        remedy=(
            "make such values null in data.derive (they are not known when the model is asked), or"
            " ignore the columns"
            if total
            else ""
        ),
    )


def moment(value: float, spec: TableSpec) -> str:
    """Format a time for people: ISO for timestamps, else the number."""
    return (
        datetime.fromtimestamp(value, UTC).isoformat() if spec.time_is_timestamp else f"{value:g}"
    )


def _ordered_in_time(declaration: Declaration, spec: TableSpec) -> bool:
    """Return True if the splits promise an order in time.

    Time strategies do; so does a predefined split of timestamps. A numeric time (a cycle or a day
    since admission) counts per entity, and says nothing across entities.
    """
    return declaration.split.kind in ("time", "group_time") or (
        declaration.split.kind == "predefined" and spec.time_is_timestamp
    )
