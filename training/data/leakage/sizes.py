"""Sides too small to say anything."""

from __future__ import annotations

from schemas.records import CheckResult
from training.data.leakage.sides import Sides


def size_results(sides: Sides) -> list[CheckResult]:
    """Fail when a side has fewer rows than `checks.min_rows`."""
    limit = sides.declaration.checks.min_rows
    small = {s: n for s, n in sides.num_rows.items() if n < limit}
    result = CheckResult(
        name="min_rows",
        verdict="fail" if small else "pass",
        summary=f"fewer than {limit} rows: " + ", ".join(f"{s} {n}" for s, n in small.items()) if small else f"every side has at least {limit} rows",
        figures={**sides.num_rows, "threshold": limit},
        remedy="change split.fractions or lower checks.min_rows" if small else "",
    )
    return [result]
