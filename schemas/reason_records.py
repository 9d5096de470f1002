"""Records of what a score rests on: importance of groups of columns, and partial dependence."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.comparison_records import Interval
from schemas.references import Record


class ImportantGroup(Record):
    """Columns that go together, and what the metric loses when their values are shuffled.

    `loss`: above 0 where the model is worse without them; its interval is widened for the number
    of groups. `share`: of what the model gains over the constant prediction; null where it gains
    nothing. `counts`: the interval lies above 0.
    """

    columns: tuple[str, ...]
    loss: Interval
    share: float | None = None
    counts: bool = False


class PartialCurve(Record):
    """Mean prediction of the sampled rows when a column is set to each of some values.

    `at`: the values, in words for categories. `numbers`: the same of a number, in its unit; empty
    for categories. `means`: mean predictions. `what`: what is predicted, in words.
    """

    column: str
    what: str
    at: tuple[str, ...]
    numbers: tuple[float, ...] = ()
    means: tuple[float, ...]


class Reasons(Record):
    """Permutation importance on test rows, the largest loss first, and curves of the strongest.

    `rows`: sampled test rows. `metric`: what the loss is of. `question`: on a group that carries
    most of the score; empty without one. `note`: what was left out, and why.
    """

    metric: str
    rows: int
    groups: tuple[ImportantGroup, ...] = ()
    curves: tuple[PartialCurve, ...] = ()
    question: str = ""
    note: str = ""


# absent from the JSON of records without reasons, whose bytes stay what they were
MaybeReasons = Annotated[Reasons | None, Field(exclude_if=lambda found: found is None)]
