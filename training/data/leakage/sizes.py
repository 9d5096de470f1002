"""Sides too small to say anything."""

from __future__ import annotations

from schemas.config import SPLITS, Declaration
from schemas.records import CheckResult, SplitTables
from training.data.leakage.verdict import judged


def size_results(split: SplitTables, declaration: Declaration) -> list[CheckResult]:
    """Fail when a side has fewer rows than `checks.min_rows`."""
    limit = declaration.checks.min_rows
    small = {s: split.side(s).rows for s in SPLITS if split.side(s).rows < limit}
    result = CheckResult(
        name="min_rows",
        verdict="fail" if small else "pass",
        summary=f"fewer than {limit} rows: " + ", ".join(f"{s} {n}" for s, n in small.items()) if small else f"every side has at least {limit} rows",
        figures={**{s: split.side(s).rows for s in SPLITS}, "threshold": limit},
        remedy="change split.fractions or lower checks.min_rows" if small else "",
    )
    return [judged(result, declaration)]
