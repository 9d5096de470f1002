"""What is told of a registered version: promoted, reproduced, used for scoring."""

from __future__ import annotations

from schemas.references import Record

__all__ = ["Promotion", "Reproduction", "Scored", "Step"]


class Promotion(Record):
    """A version that took an alias; also the payload of the event `bulkhead.model.promoted`.

    `uri` names the version, not the alias, so that whoever acts on it acts on this one. `previous_version`: had the alias before.
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
        """Whether it was made again, to other bytes."""
        return self.found is not None and self.found != self.recorded


class Reproduction(Record):
    """A version made again from its recorded commit, declaration and data: steps in their order, and why the first that differs does.

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
        """Whether every step was made again, bit by bit."""
        return all(step.found == step.recorded for step in self.steps)


class Scored(Record):
    """A file that was scored, and by which version; kept with it as metadata (`bulkhead.<field>`) of Parquet, else in `<target>.json`.

    `version` is null of a model that is in no registry; `source_sha256` as of a run's source; `sha256` of the file written, absent
    from its own metadata.
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
