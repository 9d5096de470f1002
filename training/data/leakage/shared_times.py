"""Times that are in two splits.

If groups move together, train rows of other groups at the same time reveal a held-out row's label.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.engine.engine import fill, part_sql, row, rows
from training.data.leakage.label_sql import LabelNumber, label_numbers
from training.data.leakage.sides import Sides
from training.data.leakage.straddle import parts_of

LEAST_SHARE, LEAST_ROWS = 0.05, 30
EVIDENCE_ROWS = 5
BYTES_A_ROW = 128  # of data.memory_limit: a time or a name, a sum, and the engine's table of them


class SharedTimes(NamedTuple):
    """Held-out rows whose time other groups have in train, and how far the labels agree.

    It has their number, that of all rows, and the agreement (None: too few).
    """

    side: str
    label: str
    rows: int
    total: int
    correlation: float | None
    examples: tuple[dict[str, Any], ...] = ()


def find_shared_times(sides: Sides) -> list[SharedTimes]:
    """Find shared times for each held-out split and label, if groups and timestamps are declared.

    A numeric time counts from each group's own beginning and is left out.
    """
    if not sides.spec.group or not sides.spec.time_is_timestamp:
        return []
    return [
        _shared(sides, side, label) for side in sides.held_out for label in label_numbers(sides)
    ]


def _shared(sides: Sides, side: Any, label: LabelNumber) -> SharedTimes:
    train, relation, parts = (
        sides.relations["train"],
        sides.relations[side],
        parts_of(sides, BYTES_A_ROW),
    )
    fill(
        sides.connection,
        "strangers",
        (
            _strangers_sql(train, relation, label, part_sql("__group", part, parts))
            for part in range(parts)
        ),
    )
    fill(
        sides.connection,
        "shared_moments",
        (_moments_sql(train, label, part_sql("__time", part, parts)) for part in range(parts)),
    )
    count, correlation = row(sides.connection, "select count(*), corr(v, m) from shared_moments")
    total = row(sides.connection, "select count(*) from strangers")[0]
    shown = rows(
        sides.connection,
        "select __time, __group, v, m from shared_moments order by md5(concat(__group, __time))"
        f" limit {EVIDENCE_ROWS}",
    )
    examples = (
        tuple(
            {
                "time": t,
                f"{side} group": g,
                f"{side} label": v,
                "mean train label of other groups": m,
            }
            for t, g, v, m in shown
        )
        if count
        else ()
    )
    usable = count >= LEAST_ROWS and correlation is not None and math.isfinite(correlation)
    return SharedTimes(
        side,
        label.name,
        int(count),
        int(total),
        round(float(correlation), 6) if usable else None,
        examples,
    )


def _strangers_sql(train: str, relation: str, label: LabelNumber, here: str) -> str:
    """Return SQL for the mean label, by time and group, of groups that train does not have.

    It covers the groups of one part and one split.
    """
    known = f"__time is not null and {label.sql} is not null and __group is not null and {here}"
    strangers = (
        f"{relation} anti join (select __group from {train} where {here} group by 1) using"
        " (__group)"
    )
    return (
        f"select __time, __group, avg({label.sql}) as v from {strangers} where {known} group by"
        " 1, 2"
    )


def _moments_sql(train: str, label: LabelNumber, here: str) -> str:
    """Return SQL for the rows of `strangers` with the mean label of train at the same time.

    It covers the times of one part that train has.
    """
    means = (
        f"select __time, favg({label.sql}) as m from {train} where __time is not null and"
        f" {label.sql} is not null and {here} group by 1"
    )
    return f"select * from strangers join ({means}) using (__time) where {here}"


def judge_shared_times(found: list[SharedTimes], sides: Sides, checks: ChecksConfig) -> CheckResult:
    """Fail if most labels agree across groups at shared times; shared times alone prove nothing."""
    used = [s for s in found if s.correlation is not None and s.rows >= LEAST_SHARE * s.total]
    worst = max(used, key=lambda s: abs(s.correlation or 0.0), default=None)
    figures: dict[str, float | int | str | None] = {"threshold": checks.shared_time_correlation}
    time = sides.spec.time or "time"
    if worst is None or worst.correlation is None:
        text = (
            f"hardly a value of {time} is shared by train and another side, or too few to compare"
            " labels"
        )
        return CheckResult(name="shared_times", verdict="pass", summary=text, figures=figures)
    strength = abs(worst.correlation)
    verdict: Any = (
        "fail"
        if strength >= checks.shared_time_correlation
        else "warn"
        if strength >= checks.shared_time_correlation / 2
        else "pass"
    )
    return CheckResult(
        name="shared_times",
        verdict=verdict,
        summary=(
            f"{worst.rows} of {worst.total} {worst.side} moments of a group are in train under"
            f" other groups, whose label {worst.label!r} agrees with correlation"
            f" {worst.correlation:.2f}"
        ),
        figures={
            **figures,
            "correlation": worst.correlation,
            "rows": worst.rows,
            "of": worst.total,
        },
        evidence=worst.examples if verdict != "pass" else (),
        columns=(time, *sides.spec.group) if verdict != "pass" else (),
        remedy=(
            f"set split.kind: group_time with an embargo, so that {time} is on one side only"
            if verdict != "pass"
            else ""
        ),
    )


def shared_time_results(sides: Sides) -> list[CheckResult]:
    """Return one result if groups and timestamps are declared."""
    found = find_shared_times(sides)
    return [judge_shared_times(found, sides, sides.declaration.checks)] if found else []
