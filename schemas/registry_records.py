"""Records of a registered version: promotion, reproduction, scoring, evaluation on new rows."""

from __future__ import annotations

from typing import Any, Literal

from schemas.look_records import Looks
from schemas.records import (
    CheckReport,
    ExportedModel,
    Interval,
    Record,
    TrainReport,
    Verdict,
)
from schemas.refit import Refit

__all__ = [
    "Drift",
    "Outcome",
    "Promotion",
    "Reevaluation",
    "Reproduction",
    "Scored",
    "Served",
    "Step",
]

Outcome = Literal[
    "promoted",
    "waiting",
    "registered",
    "kept",
    "undecided",
    "unchanged",
    "refused",
    "not registered",
]
WORST_FIRST: tuple[Verdict, ...] = ("fail", "warn", "unknown")


class Served(Record):
    """Model to register: the one that was judged, or its refit."""

    trained: TrainReport
    exported: ExportedModel
    refit: Refit | None = None


class Promotion(Record):
    """A version that took an alias; also the payload of the event `bulkhead.model.promoted`.

    `uri` names the version, not the alias, so that whoever acts on it acts on this one.
    `previous_version`: had the alias before.
    """

    name: str
    version: str
    previous_version: str | None
    alias: str
    uri: str
    run_id: str
    git_sha: str
    verdict: str


class Step(Record):
    """What one step made then and now: SHA-256; null where it was not come to."""

    name: str
    recorded: str
    found: str | None = None

    @property
    def differs(self) -> bool:
        """True if it was made again with other bytes."""
        return self.found is not None and self.found != self.recorded


class Reproduction(Record):
    """A version made again from its recorded commit, declaration and data: steps in their order,
    and why the first that differs does.

    `notes`: what is not as it was (versions, machine), also where nothing came of it.
    """

    uri: str
    commit: str
    diff_applied: bool
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    reason: str = ""
    seconds: float = 0.0

    @property
    def first_difference(self) -> Step | None:
        """The first step that made other bytes."""
        return next((step for step in self.steps if step.differs), None)

    @property
    def identical(self) -> bool:
        """True if every step was reproduced bit for bit."""
        return all(step.found == step.recorded for step in self.steps)


class Scored(Record):
    """A file that was scored, and by which version; kept with it as metadata (`bulkhead.<field>`)
    of Parquet, else in `<target>.json`.

    `unfamiliar`: columns with categories that training did not know, or numbers that were clipped
    or outside train's range: what, how many rows, the first. `version` is null of a model that is
    in no registry; `source_sha256` as of a run's source; `sha256` of the file written, absent from
    its own metadata.
    """

    source: str
    source_sha256: str
    target: str
    rows: int
    name: str
    version: str | None
    uri: str
    run_id: str
    program_sha256: str
    sha256: str = ""
    unfamiliar: dict[str, dict[str, Any]] = {}


class Drift(Record):
    """How far a column of new rows lies from earlier ones.

    `psi`: population stability index. `distance`: Kolmogorov–Smirnov of numbers, total variation of
    text, 0 to 1. `adjusted`: `p_value` with the number of columns allowed for. `null_before`,
    `null_now`: shares of nulls.
    """

    column: str
    numeric: bool
    psi: float
    distance: float
    p_value: float
    adjusted: float = 1.0
    null_before: float
    null_now: float


class Reevaluation(Record):
    """A version on rows that it has not learned from and that were not its test rows.

    `rows`: of these; `learned`, `tested`: of the source, the rows it learned from and was tested
    on. `metrics`: on the new rows; `registered`: on its test rows then. `verdict`: the worst of
    `checks`, in a sentence. `looks`: models that were scored on the new rows.
    """

    name: str
    version: str
    uri: str
    metric: str
    rows: int
    learned: int
    tested: int
    metrics: dict[str, Interval]
    registered: dict[str, Interval]
    checks: CheckReport
    features: tuple[Drift, ...]
    predictions: tuple[Drift, ...]
    report: str = ""
    looks: Looks = ()

    @property
    def outcome(self) -> Verdict:
        """Worst result of the checks: `fail`, `warn`, `unknown` (too few rows) or `pass`."""
        found = {r.verdict for r in self.checks.results}
        return next((v for v in WORST_FIRST if v in found), "pass")

    @property
    def verdict(self) -> str:
        """First finding, in the order failed, warnings, unknown; or a note that there is none."""
        ranked = [
            r
            for wanted in ("fail", "warn", "unknown")
            for r in self.checks.results
            if r.verdict == wanted
        ]
        return (
            ranked[0].summary
            if ranked
            else f"{self.uri} does as well on {self.rows:,} new rows as when it was registered"
        )
