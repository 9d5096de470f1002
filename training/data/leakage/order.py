"""Row numbers that predict the label: an id that counts a sorted file, or a feature like it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import ChecksConfig
from schemas.records import CheckResult
from training.data.leakage.label_proxies import FEWEST_ROWS, label_evidence
from training.data.leakage.sampled import Floats, Label, Sampled
from training.data.leakage.scores import Halves, Score, halves, number_codes, score_codes
from training.data.leakage.sides import Sides

UNIQUE = 0.99  # least share of rows with a unique number in a column that numbers rows
KINDS = (("id_order", False), ("row_order", True))  # check, and True if the number is a feature
DENSE = 100  # numbers up to this many times the rows still count them; larger ones are measurements


class Order(NamedTuple):
    """Row number and the label it predicts best; `by_time` is the strength of the declared time."""

    column: str
    is_feature: bool
    label: str
    score: Score
    by_time: float


def find_order(rows: Sampled, sides: Sides) -> list[Order]:
    """Return the number in the id and features that number rows, strongest first.

    The halves are drawn by hash, regardless of the split.
    """
    parts = halves(rows, "random", is_timed=False)
    numbers = {" + ".join(sides.spec.id): id_numbers(rows)} if sides.spec.id else {}
    total = sum(sides.num_rows.values())
    counters = {n: v for n, v in numbers.items() if v is not None} | {
        n: v for n, v in rows.numeric.items() if _numbers_rows(v, total)
    }
    found = []
    for name, values in counters.items():
        for label in rows.labels:
            by_time = (
                _score(rows.time, label, parts, rows).strength
                if np.isfinite(rows.time).any()
                else 0.0
            )
            found.append(
                Order(
                    name,
                    name in rows.numeric,
                    label.name,
                    _score(values, label, parts, rows),
                    by_time,
                )
            )
    return sorted(found, key=lambda o: (-o.score.strength, o.column))


def _score(values: Floats, label: Label, parts: Halves, rows: Sampled) -> Score:
    return score_codes(number_codes(values, parts.a), label, parts, rows.group)


def id_numbers(rows: Sampled) -> Floats | None:
    """Return the last run of digits of each id [N] if almost all are unique, else None."""
    digits = pc.struct_field(
        pc.extract_regex(pa.array(rows.ids, pa.string()), r"(?P<number>\d{1,15})\D*$"), "number"
    )
    numbers = np.asarray(
        pc.cast(digits, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64
    )
    known = numbers[~np.isnan(numbers)]
    return numbers if len(known) and len(np.unique(known)) >= UNIQUE * len(numbers) else None


def _numbers_rows(values: Floats, total: int) -> bool:
    """Return True for whole numbers, one per row, without gaps that a count would not have."""
    known = values[~np.isnan(values)]
    if len(known) < UNIQUE * len(values) or not (known == np.floor(known)).all():
        return False
    return (
        len(np.unique(known)) >= UNIQUE * len(values)
        and float(known.max() - known.min()) <= DENSE * total
    )


def judge_order(found: list[Order], rows: Sampled, checks: ChecksConfig) -> list[CheckResult]:
    """Warn if a row number predicts the label better than the declared time does."""
    results: list[CheckResult] = []
    for o in found:
        if (
            o.score.rows < FEWEST_ROWS
            or o.score.strength - 2 * o.score.error < checks.order_strength
            or o.score.strength < o.by_time + 0.1
        ):
            continue
        what = (
            f"feature {o.column!r} numbers the rows and"
            if o.is_feature
            else f"the number in id {o.column!r}"
        )
        remedy = (
            "declare role ignore for it"
            if o.is_feature
            else (
                "keep it out of the features; if rows are sorted by the label, ask how they came to"
                " be in this order"
            )
        )
        results.append(
            CheckResult(
                name="row_order" if o.is_feature else "id_order",
                verdict="warn",
                summary=(
                    f"{what} predicts {o.label!r} with strength {o.score.strength:.2f} of 1: rows"
                    " are in the order of the label"
                ),
                figures={
                    "strength": round(o.score.strength, 4),
                    "by_time": round(o.by_time, 4),
                    "threshold": checks.order_strength,
                },
                evidence=label_evidence(
                    rows, (o.column,) if o.is_feature else (), o.label, rows.train
                ),
                columns=(o.column,),
                remedy=remedy,
            )
        )
    return [
        *results,
        *(
            _quiet(name, [o for o in found if o.is_feature == is_feature], checks)
            for name, is_feature in KINDS
            if name not in {r.name for r in results}
        ),
    ]


def _quiet(name: str, found: list[Order], checks: ChecksConfig) -> CheckResult:
    figures: dict[str, float | int | str | None] = {
        "strongest": round(found[0].score.strength, 4) if found else None,
        "threshold": checks.order_strength,
    }
    none = (
        "no id has its own number for each row"
        if name == "id_order"
        else "no feature numbers the rows"
    )
    return CheckResult(
        name=name,
        verdict="pass",
        summary="the order of rows does not predict the label" if found else none,
        figures=figures,
    )
