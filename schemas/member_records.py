"""Records of the members of an ensemble."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.references import Record


class MemberReport(Record):
    """One member of an ensemble, or one candidate of `model.kind: auto`.

    `number` counts from 1. `weight`: its share of the prediction; 0: it was trained and left out.
    `metric`: its validation metric, of folds that of its own fold, null where it is undefined.
    """

    number: int
    kind: str
    seed: int
    weight: float
    metric: float | None
    seconds: float
    parameters: int
    model_sha256: str


# absent from the JSON of a run without members, whose bytes stay what they were
Members = Annotated[tuple[MemberReport, ...], Field(exclude_if=lambda found: not found)]
Kept = Annotated[tuple[int, ...], Field(exclude_if=lambda found: not found)]
Uncertainty = Annotated[float | None, Field(exclude_if=lambda found: found is None)]
