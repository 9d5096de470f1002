"""Records of slices: the metric on parts of the test rows, and which part is worse than its like.

A slice is compared with the other slices of its column, not with all rows: within a range of a
strong feature every model ranks worse than over the whole range.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.comparison_records import Interval
from schemas.references import Record

Kind = Literal["category", "range", "missing", "time", "others"]


class SliceScore(Record):
    """The metric on the rows of one slice.

    `value`: the category, range or period in words. `units`: groups where rows are grouped, else
    rows. `positives`: share of the positive class of a binary label. `others`: mean of the other
    slices of the column, by rows. `chance`: probability that a slice as good as those looks at
    least so bad, corrected for the number of slices; null where it was not compared. `worse`: this
    is below the limit, and the difference matters. `metrics`: every metric, of declared slices.
    """

    column: str
    value: str
    kind: Kind
    rows: int
    units: int
    positives: float | None = None
    score: Interval
    others: float | None = None
    chance: float | None = None
    worse: bool = False
    declared: bool = False
    metrics: dict[str, float | None] = Field({}, exclude_if=lambda found: not found)

    @property
    def name(self) -> str:
        """Column and value in one text."""
        return f"{self.column}: {self.value}"


class Slices(Record):
    """Slices of the test rows, the worst first.

    `metric`: what they are compared in. `looked_at`: slices that were compared, for which `chance`
    is corrected. `small`: slices with too few rows, groups or rows of a class. `limit`: largest
    `chance` of a slice that is called worse. `notes`: what was not cut, and why.
    """

    metric: str
    scores: tuple[SliceScore, ...]
    looked_at: int
    small: int
    limit: float
    notes: tuple[str, ...] = ()

    @property
    def worse(self) -> tuple[SliceScore, ...]:
        """Slices that are worse than the others of their column beyond chance."""
        return tuple(found for found in self.scores if found.worse)

    @property
    def declared(self) -> tuple[SliceScore, ...]:
        """Slices of the columns that `evaluate.slices` names."""
        return tuple(found for found in self.scores if found.declared)


# absent from the JSON of records without slices, whose bytes stay what they were
MaybeSlices = Annotated[Slices | None, Field(exclude_if=lambda found: found is None)]


def slice_figures(slices: Slices | None) -> dict[str, float | None]:
    """Return the metrics of declared slices by their name for a tracking server.

    >>> slice_figures(None)
    {}
    """
    return {
        f"slice/{_key(found.column)}/{_key(found.value)}/{name}": value
        for found in (slices.declared if slices is not None else ())
        for name, value in found.metrics.items()
    }


def _key(text: str) -> str:
    """Return a text in the form that MLflow allows in metric names."""
    return "".join(c if (c.isalnum() and c.isascii()) or c in "_-. " else "_" for c in text)
