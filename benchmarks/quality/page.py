"""Scores of the candidates, their comparison, and the page that shows both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.page import table
from benchmarks.quality.run import Job, Rows, scored_groups
from schemas.config import Declaration
from schemas.load import declare
from training.objectives.bootstrap import intervals, paired_difference

Found = dict[tuple[str, int, str], tuple[np.ndarray, float] | str]
RESAMPLES = 500
HEAD = """# Quality on tables

`make bench-quality` writes this page. Every candidate gets the same train, validation and test rows.
Normalised score: 0 is the constant prediction, 1 the best candidate on that table. Wins, ties and losses: paired
bootstrap by row, or by group where rows are grouped, 95 %.
"""  # noqa: E501


class Score(NamedTuple):
    """Metric of one candidate on one job, with its interval and seconds."""

    value: float
    low: float | None
    high: float | None
    log_loss: float | None
    seconds: float


def scores(job: Job, rows: Rows, found: Found) -> dict[str, Score]:
    """Return the scores of a job's candidates that have predictions."""
    declaration, out = declare(job.tree), {}
    for (name, seed, candidate), result in found.items():
        if (name, seed) == (job.table.name, job.seed) and not isinstance(result, str):
            measured = intervals(
                declaration, result[0], rows.target, group=scored_groups(rows), resamples=RESAMPLES
            )
            one = measured[declaration.metric]
            loss = measured["log_loss"].value if "log_loss" in measured else None
            out[candidate] = Score(one.value or np.nan, one.low, one.high, loss, result[1])
    return out


def standing(job: Job, rows: Rows, found: Found, first: str, second: str, metric: str = "") -> int:
    """Return 1 if the first candidate is better beyond the paired interval, -1 if worse, else 0."""
    declaration = declare(job.tree)
    metric = metric or declaration.metric
    a, b = (found[(job.table.name, job.seed, name)] for name in (first, second))
    if isinstance(a, str) or isinstance(b, str):
        raise ValueError(f"{first} or {second} has no predictions for {job.table.name}")
    difference = paired_difference(
        declaration, metric, a[0], b[0], rows.target, scored_groups(rows), resamples=RESAMPLES
    )
    sign = 1 if declaration.metrics[metric] else -1
    if difference.low is None or difference.high is None:
        return 0
    return sign * (int(difference.low > 0) - int(difference.high < 0))


def normalised(values: dict[str, Score], greater: bool) -> dict[str, float]:
    """Scale scores so that the constant is 0 and the best 1; below 0 counts as 0.

    >>> made = {n: Score(v, None, None, None, 0.0) for n, v in (("constant", 0.5), ("a", 0.9))}
    >>> normalised(made, greater=True)
    {'constant': 0.0, 'a': 1.0}
    """
    worst = values["constant"].value
    best = (max if greater else min)(score.value for score in values.values())
    span = best - worst
    return {
        name: max(0.0, (score.value - worst) / span) if span else 0.0
        for name, score in values.items()
    }


def summary(
    jobs: Sequence[Job], all_rows: dict[tuple[str, int], Rows], found: Found, first: str
) -> str:
    """Return the section that compares `first` with each other candidate."""
    tables, ranks, norms, seconds = _collected(jobs, all_rows, found)
    names = sorted(norms, key=lambda name: -float(np.mean(norms[name])))
    lines = []
    for name in names:
        line = [name, f"{np.mean(norms[name]):.3f}", f"{np.mean(ranks[name]):.2f}"]
        line += [f"{np.median(seconds[name]):.1f}", str(len(norms[name]))]
        for metric in ("", "log_loss"):
            shared = [j for j in jobs if {name, first} <= set(tables[j.table.name, j.seed])]
            if metric:
                shared = [j for j in shared if metric in declare(j.tree).metrics]
            each = [
                standing(j, all_rows[j.table.name, j.seed], found, first, name, metric)
                for j in (shared if name != first else [])
            ]
            line.append(" / ".join(str(each.count(k)) for k in (1, 0, -1)) if each else "–")
        lines.append(line)
    head = ["candidate", "normalised", "mean rank", "seconds (median)", "jobs"]
    head += [f"{first}: wins / ties / losses", "the same in log loss"]
    return f"## Summary\n\n{table(head, lines)}\n"


def _collected(
    jobs: Sequence[Job], all_rows: dict[tuple[str, int], Rows], found: Found
) -> tuple[dict, dict, dict, dict]:
    """Return scores by job, and ranks, normalised scores and seconds by candidate."""
    tables: dict = {}
    ranks: dict[str, list[float]] = {}
    norms: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for job in jobs:
        measured = scores(job, all_rows[job.table.name, job.seed], found)
        greater = declare(job.tree).greater_is_better
        order = sorted(measured, key=lambda n: measured[n].value, reverse=greater)
        for name, value in normalised(measured, greater).items():
            norms.setdefault(name, []).append(value)
            ranks.setdefault(name, []).append(1 + order.index(name))
            seconds.setdefault(name, []).append(measured[name].seconds)
        tables[job.table.name, job.seed] = measured
    return tables, ranks, norms, seconds


def details(jobs: Sequence[Job], all_rows: dict[tuple[str, int], Rows], found: Found) -> str:
    """Return a table of scores for each job."""
    parts = ["## Scores\n"]
    for job in jobs:
        declaration = declare(job.tree)
        measured = scores(job, all_rows[job.table.name, job.seed], found)
        lines = [_line(name, score) for name, score in measured.items()]
        head = ["candidate", _named(declaration), "interval", "log loss", "seconds"]
        parts.append(f"### {job.table.name}, seed {job.seed}\n\n{table(head, lines)}\n")
    missing = [
        [name, str(seed), candidate, reason.replace("\n", " ")[:120]]
        for (name, seed, candidate), reason in found.items()
        if isinstance(reason, str)
    ]
    if missing:
        parts.append(f"### No result\n\n{table(['table', 'seed', 'candidate', 'why'], missing)}\n")
    return "\n".join(parts)


def _named(declaration: Declaration) -> str:
    return f"{declaration.metric} {'↑' if declaration.greater_is_better else '↓'}"


def _line(name: str, score: Score) -> list[str]:
    bounds = "–" if score.low is None else f"{score.low:.5g} … {score.high:.5g}"
    loss = "–" if score.log_loss is None else f"{score.log_loss:.4f}"
    return [name, f"{score.value:.5g}", bounds, loss, f"{score.seconds:.1f}"]
