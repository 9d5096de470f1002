"""Facts behind a checklist, and the four kinds of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from schemas.config import Declaration
from schemas.observed import Observed, Passes, Statement
from schemas.records import CheckResult, EvaluationReport, PreflightReport, Prepared, TrainReport
from training.report.curves import History

RESULT, LOG, HOOKS, PREFLIGHT = (
    "result.json",
    "metrics.jsonl",
    "torch's hooks on network and optimizer",
    "preflight",
)
SILENT = "the training program recorded nothing of it"


@dataclass(frozen=True)
class CheckpointFacts:
    """One checkpoint folder on disk.

    `damage`: what does not verify, "" if all does; `parts`: names of its files.
    """

    name: str
    parts: tuple[str, ...]
    num_bytes: int
    damage: str


@dataclass(frozen=True)
class FileFacts:
    """Content of a run directory.

    `names`: its files and folders. `checkpoints`: newest first. `set_aside`, `unfinished`: damaged
    folders, and remains of commits. `state`: keys of the newest checkpoint's trainer state,
    `streams`: random streams in it. `generation`: number of processes that ever held the lease;
    None without one. `refused`: why the state could not be opened.
    """

    names: frozenset[str] = frozenset()
    checkpoints: tuple[CheckpointFacts, ...] = ()
    set_aside: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    streams: int = 0
    generation: int | None = None
    boards: int = 0
    profiled: int = 0
    refused: str = ""


@dataclass(frozen=True)
class RunFacts:
    """Everything recorded of a run."""

    declaration: Declaration
    prepared: Prepared
    preflight: PreflightReport
    train: TrainReport
    test: EvaluationReport
    history: History
    files: FileFacts

    @property
    def seen(self) -> Observed | None:
        """Observations of the training program."""
        return self.train.observed

    @property
    def passes(self) -> Passes | None:
        """Counts of the hooks."""
        return self.seen.passes if self.seen else None

    def check(self, name: str) -> CheckResult | None:
        """Return a result of preflight."""
        return next((r for r in self.preflight.checks.results if r.name == name), None)


Statements = Callable[[RunFacts], Iterator[Statement]]
Items = dict[str, tuple[str, Statements]]


def fact(holds: bool, text: str, by: str, otherwise: str = "") -> Statement:
    """Return a statement: shown if it holds, else contradicted.

    Args:
        holds: the recorded facts agree.
        text: the facts.
        by: source of the facts.
        otherwise: text if it does not hold. Default: the same facts.
    """
    return Statement(
        standing="shown" if holds else "contradicted",
        text=text if holds else otherwise or text,
        by=by,
    )


def warning(text: str, by: str) -> Statement:
    """Return a statement that is true but needs attention."""
    return Statement(standing="warning", text=text, by=by)


def not_shown(text: str = SILENT, by: str = RESULT) -> Statement:
    """Return a statement that nothing was recorded."""
    return Statement(standing="not shown", text=text, by=by)


def not_applicable(why: str, by: str = "declaration") -> Statement:
    """Return a statement that the requirement does not concern this run."""
    return Statement(standing="not applicable", text=why, by=by)


def from_check(facts: RunFacts, name: str) -> Statement:
    """Return the statement of a preflight check."""
    result = facts.check(name)
    if result is None:
        return not_shown(f"preflight did not look at {name!r}", PREFLIGHT)
    by = f"{PREFLIGHT}: {name}"
    summary = result.summary.strip()
    if result.verdict in ("warn", "allowed"):
        return warning(summary + (f" Allowed: {result.reason}." if result.reason else ""), by)
    return fact(result.verdict == "pass", summary, by)
