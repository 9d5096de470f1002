"""What a checklist is drawn from, and the four things a statement can say."""

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
    """One folder of a checkpoint as it lies on disk. `damage`: what does not verify, "" where all
    does; `parts`: names of its files.
    """

    name: str
    parts: tuple[str, ...]
    num_bytes: int
    damage: str


@dataclass(frozen=True)
class FileFacts:
    """What stands in a run directory.

    `names`: of its files and folders. `checkpoints`: newest first. `set_aside`, `unfinished`:
    folders that were found damaged, and remains of commits. `state`: keys of the newest
    checkpoint's trainer state, `streams`: random streams in it. `generation`: number of processes
    that ever held the lease; None where there is none. `refused`: why the state could not be
    opened.
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
        """What the training program saw of itself."""
        return self.train.observed

    @property
    def passes(self) -> Passes | None:
        """What hooks counted."""
        return self.seen.passes if self.seen else None

    def check(self, name: str) -> CheckResult | None:
        """A result of preflight."""
        return next((r for r in self.preflight.checks.results if r.name == name), None)


Statements = Callable[[RunFacts], Iterator[Statement]]
Items = dict[str, tuple[str, Statements]]


def fact(holds: bool, text: str, by: str, otherwise: str = "") -> Statement:
    """Shown where it holds, else contradicted.

    Args:
        holds: whether the recorded facts agree.
        text: the facts.
        by: what they were read from.
        otherwise: what is said where it does not hold. Default: the same facts.
    """
    return Statement(
        standing="shown" if holds else "contradicted",
        text=text if holds else otherwise or text,
        by=by,
    )


def warning(text: str, by: str) -> Statement:
    """True, and worth a look."""
    return Statement(standing="warning", text=text, by=by)


def not_shown(text: str = SILENT, by: str = RESULT) -> Statement:
    """Nothing was recorded."""
    return Statement(standing="not shown", text=text, by=by)


def not_applicable(why: str, by: str = "declaration") -> Statement:
    """The requirement does not concern this run."""
    return Statement(standing="not applicable", text=why, by=by)


def from_check(facts: RunFacts, name: str) -> Statement:
    """What a check of preflight found."""
    result = facts.check(name)
    if result is None:
        return not_shown(f"preflight did not look at {name!r}", PREFLIGHT)
    by = f"{PREFLIGHT}: {name}"
    summary = result.summary.strip()
    if result.verdict in ("warn", "allowed"):
        return warning(summary + (f" Allowed: {result.reason}." if result.reason else ""), by)
    return fact(result.verdict == "pass", summary, by)
