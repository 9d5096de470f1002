"""Figures from findings: leaks found, leaks found with the right column, and false findings on
honest splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

from benchmarks.leaks.cases import Case
from benchmarks.leaks.kinds import KINDS, Kind
from benchmarks.leaks.run import Record

BY_NAME: dict[str, Kind] = {k.name: k for k in KINDS}


class Seen(NamedTuple):
    """Result for one planted case: whether a valid check fired and named the column, and whether it
    was silent on the honest rows.
    """

    case: Case
    hit: bool
    net: bool


@dataclass(frozen=True)
class Score:
    """A tool's figures over cases; a share of no cases is None. `by_kind`: mean over kinds."""

    tool: str
    planted: int
    recall: float | None
    net: float | None
    by_kind: float | None
    honest: int
    failed: float | None
    warned: float | None
    errors: int
    seconds: float | None


def seen(records: Sequence[Record], columns: dict[str, tuple[str, ...]]) -> list[Seen]:
    """Return the results for the planted cases of one tool.

    A hit is a finding of a check that can see this kind of leak, on the planted column if there is
    one. It counts as net if no check of that name fires on the same rows with nothing planted.

    Args:
        records: of one tool, honest ones among them.
        columns: of each planted case, the columns to be named.
    """
    silent = {
        r.case.name: {f.check for f in r.outcome.findings} for r in records if not r.case.kind
    }
    judged = []
    for record in (r for r in records if r.case.kind):
        counting = BY_NAME[record.case.kind].hits[record.tool]
        wanted = columns[record.case.name]
        hits = {
            f.check
            for f in record.outcome.findings
            if f.check in counting and _names(wanted, f.columns, f.text)
        }
        honest = silent.get(record.case.honest.name, set())
        judged.append(Seen(record.case, bool(hits), bool(hits - honest)))
    return judged


def _names(wanted: tuple[str, ...], columns: tuple[str, ...], text: str) -> bool:
    """Return whether a wanted column is named; leaks in rows have none."""
    return (
        not wanted
        or bool(set(wanted) & set(columns))
        or any(f"'{w}'" in text or f'"{w}"' in text for w in wanted)
    )


def score(
    tool: str,
    records: Sequence[Record],
    columns: dict[str, tuple[str, ...]],
    keep: Callable[[Case], bool] = lambda case: True,
    also: frozenset[str] = frozenset(),
) -> Score:
    """Return the figures of one tool over the cases that `keep` accepts.

    Kinds in `also` are seen by other means than the data.
    """
    own = [r for r in records if r.tool == tool]
    judged = [
        s._replace(hit=True, net=True) if s.case.kind in also else s
        for s in seen(own, columns)
        if keep(s.case)
    ]
    honest = [r for r in own if not r.case.kind and keep(r.case)]
    kinds = {s.case.kind for s in judged}
    return Score(
        tool=tool,
        planted=len(judged),
        recall=_mean([s.hit for s in judged]),
        net=_mean([s.net for s in judged]),
        by_kind=_mean(
            [mean(s.net for s in judged if s.case.kind == kind) for kind in sorted(kinds)]
        ),
        honest=len(honest),
        failed=_mean([any(f.verdict == "fail" for f in r.outcome.findings) for r in honest]),
        warned=_mean([any(f.verdict == "warn" for f in r.outcome.findings) for r in honest]),
        errors=sum(bool(r.outcome.error) for r in own if keep(r.case)),
        seconds=(
            median([r.outcome.seconds for r in own if keep(r.case)])
            if any(keep(r.case) for r in own)
            else None
        ),
    )


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def alarms(tool: str, records: Sequence[Record]) -> list[tuple[str, str, int, tuple[str, ...]]]:
    """Return the checks that fired on honest splits: check, verdict, number of splits, tables."""
    fired = Counter(
        (f.check, f.verdict)
        for r in records
        if r.tool == tool and not r.case.kind
        for f in {(f.check, f.verdict): f for f in r.outcome.findings}.values()
    )
    tables = {
        key: tuple(
            sorted(
                {
                    r.case.base
                    for r in records
                    if r.tool == tool
                    and not r.case.kind
                    and any((f.check, f.verdict) == key for f in r.outcome.findings)
                }
            )
        )
        for key in fired
    }
    return [
        (check, verdict, count, tables[check, verdict])
        for (check, verdict), count in fired.most_common()
    ]
