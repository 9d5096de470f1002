"""Records of a search: its plan, its trials, its outcome."""

from __future__ import annotations

from typing import Any, Literal

from schemas.references import Record
from schemas.search_config import Dimension

TrialState = Literal["complete", "pruned", "failed"]


class SearchPlan(Record):
    """What decides every proposal; first line of `search.jsonl`.

    `threads`: CPU threads of each training process, null where it takes all. `optuna`: version that
    proposes.
    """

    trials: int
    seed: int
    concurrency: int
    threads: int | None
    metric: str
    greater_is_better: bool
    pruner: Literal["median", "none"]
    space: dict[str, Dimension]
    optuna: str


class TrialRecord(Record):
    """One trial, counted from 1; a line of `search.jsonl`. No times, so that it is reproducible.

    `params`: values by dotted path. `values`: the validation metric of each evaluation, null where
    it is not defined; of a pruned trial up to the one after which it was stopped. `score`: the best
    of them, null of a failed trial. `cause`: why a trial failed.
    """

    number: int
    state: TrialState
    params: dict[str, Any]
    values: tuple[float | None, ...] = ()
    score: float | None = None
    cause: str = ""


class SearchOutcome(Record):
    """The outcome of the trials; `best` is their declaration's file."""

    name: str
    run_id: str
    run_dir: str
    metric: str
    trials: tuple[TrialRecord, ...]
    hours: float
    trial: int
    best: str

    def count(self, state: TrialState) -> int:
        """Return the number of trials in a state."""
        return sum(trial.state == state for trial in self.trials)

    @property
    def winner(self) -> TrialRecord:
        """The best trial."""
        return self.trials[self.trial - 1]
