"""Section `search`: trials of other values of the declaration, off unless the section is given."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from schemas.section import Section


class Span(Section):
    """Numbers from `low` to `high`; whole ones where both bounds are whole."""

    low: int | float
    high: int | float
    log: bool = Field(False, description="Draw the logarithm evenly, e.g. for learning rates.")

    @model_validator(mode="after")
    def _is_a_span(self) -> Span:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} must be below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, got {self.low}; use log: false")
        return self

    @property
    def is_whole(self) -> bool:
        """True if only whole numbers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = tuple[Any, ...]
Dimension = Span | Choices


def _form(values: Any) -> str | None:
    """Return the form in which values are given, so that a mistake is reported for that alone."""
    if values is None:
        return "null"
    if isinstance(values, list | tuple):
        return "choices"
    return "span" if isinstance(values, dict | Span) else None


SpaceEntry = Annotated[
    Annotated[Span, Tag("span")]
    | Annotated[Choices, Tag("choices")]
    | Annotated[None, Tag("null")],
    Discriminator(
        _form,
        custom_error_type="search_space",
        custom_error_message="expected {low: …, high: …}, a list of choices, or null",
    ),
]


class SearchFound(Section):
    """Where the values of a declaration come from; written by `bulkhead search` into `best.yaml`.

    `score`: of the validation rows, the best of all trials; `declared_score`: of the first trial,
    which had the values of the file.
    """

    run_id: str = Field(description="Run of the search.")
    trials: int = Field(ge=1, description="Trials made, pruned and failed ones included.")
    pruned: int = Field(ge=0, description="Trials stopped early.")
    failed: int = Field(ge=0, description="Trials that ended with an error.")
    hours: float = Field(ge=0, description="Hours that the trials took.")
    trial: int = Field(ge=1, description="Number of the best trial.")
    metric: str = Field(description="Validation metric that chose it.")
    score: float = Field(description="That metric of the best trial, on validation rows.")
    declared_score: float | None = Field(
        None, description="The same of the first trial, which had the values of the file."
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Values of the best trial by their dotted path."
    )


class SearchConfig(Section):
    """Trials on the same arrays, scored on validation rows; the test rows are not read."""

    trials: int = Field(
        40, ge=1, le=10_000, description="How many; the first one has the declared values."
    )
    hours: float | None = Field(
        None, gt=0, description="Begin no trial after so many hours; null: no limit."
    )
    space: dict[str, SpaceEntry] = Field(
        default_factory=dict,
        description=(
            "Dotted path to its values: {low: 1e-4, high: 1e-2, log: true} or a list of choices;"
            " null keeps the declared value. Added to the defaults of the kind of model."
        ),
    )
    pruner: Literal["median", "none"] = Field(
        "median",
        description=(
            "median: stop a trial whose best validation score so far is worse than the median of"
            " earlier trials at the same evaluation; none: train every trial to its end."
        ),
    )
    seed: int = Field(0, ge=0, description="Changes which values are proposed.")
    concurrency: int | None = Field(
        None,
        ge=1,
        le=64,
        description=(
            "How many trials train at once; each batch of them is proposed from the complete"
            " batches before. Default: one for each two cores that memory allows, one on a GPU."
        ),
    )
    found: SearchFound | None = Field(
        None,
        description=(
            "Written by a search into best.yaml: what was tried before these values were chosen."
        ),
    )

    @model_validator(mode="after")
    def _has_choices(self) -> SearchConfig:
        for path, values in self.space.items():
            if isinstance(values, tuple) and len(values) < 2:
                raise ValueError(
                    f"space: {path} needs at least two choices, got {list(values)}; set one value"
                    " in its own section"
                )
        return self
