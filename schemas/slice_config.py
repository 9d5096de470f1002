"""Slices of the test rows that `evaluate.slices` names, and the least that each shall reach."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from schemas.data_config import DataConfig
from schemas.section import Section

CUT_ROLES = ("feature", "group", "time")
UNCUT_KINDS = ("tensor", "image", "text", "set", "smiles", "date")


class SliceConfig(Section):
    """A column whose values, or ranges of values, are scored apart."""

    column: str = Field(min_length=1, description="Name of a feature, of the group or of the time.")
    bins: int | None = Field(
        None,
        ge=2,
        le=20,
        description=(
            "Ranges with equally many rows, for numbers and times. Default: 4; a number with at"
            " most 10 values has a slice for each."
        ),
    )


def _written_out(value: Any) -> Any:
    """Return the section that `ward` or `age: {bins: 5}` stands for."""
    if isinstance(value, str):
        return {"column": value}
    if isinstance(value, dict) and len(value) == 1 and "column" not in value:
        ((column, options),) = value.items()
        if options is None or isinstance(options, dict):
            return {"column": column, **(options or {})}
    return value


Slice = Annotated[
    SliceConfig,
    BeforeValidator(_written_out, json_schema_input_type=str | dict[str, Any] | SliceConfig),
]
DeclaredSlices = Annotated[
    tuple[Slice, ...] | None,
    Field(
        None,
        exclude_if=lambda found: found is None,  # an old declaration keeps its digest
        description=(
            "Columns whose values are scored apart, e.g. [ward, age: {bins: 5}]. Default: the"
            " categories, missing values and periods of time that differ most; []: none."
        ),
    ),
]


def check_slices(
    slices: tuple[SliceConfig, ...] | None, data: DataConfig, task: str, bounded: bool
) -> None:
    """Check that the prepared rows will hold the values of each declared slice.

    Args:
        slices: of `evaluate.slices`.
        data: the columns.
        task: kind of the task.
        bounded: True if `register.slices` has bounds for them.

    Raises:
        ValueError: they will not, or there are bounds without slices; with what to do.
    """
    if bounded and not slices:
        raise ValueError(
            "register.slices bounds the slices of evaluate.slices, and none is declared; add e.g."
            " evaluate: {slices: [ward]}, or remove register.slices"
        )
    if slices and task == "causal_lm":
        raise ValueError(
            "evaluate.slices cuts the rows of a table, and a language model has documents; remove"
            " evaluate.slices"
        )
    names = [found.column for found in slices or ()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"evaluate.slices: column {twice!r} is named twice; keep one")
    for name in names:
        problem = _problem(name, data)
        if problem:
            raise ValueError(f"evaluate.slices: column {name!r} {problem}")


def _problem(name: str, data: DataConfig) -> str:
    """Say why the prepared rows do not hold a column's values; empty if they do."""
    column = data.column(name)
    if column is None and name not in data.derive:
        return "is not in data.columns; name a feature, the group or the time"
    role, kind = (column.role, column.kind) if column is not None else ("feature", "auto")
    if role == "ignore":
        return (
            "has role ignore, so prepared rows do not hold its values; declare it as a feature or"
            " as the group, or slice by another column"
        )
    if role not in CUT_ROLES:
        return f"has role {role}; only a feature, the group or the time cuts rows into slices"
    if role == "group" and len(data.named("group")) > 1:
        return (
            "is one of several group columns, which are kept as one; declare a single column of"
            " role group, or slice by a feature"
        )
    if kind in UNCUT_KINDS:
        instead = "the time, or a number derived from it" if kind == "date" else "another column"
        return f"is of kind {kind}, which has no slices; slice by {instead}"
    return ""
