"""Records of what is chosen on validation rows after training: temperature, threshold, margin."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.references import Record


class Reliability(Record):
    """Log loss and reliability of the probabilities of one class label.

    `ece`: expected calibration error, the mean distance of `said` and `seen` by weight. `said`,
    `seen`: mean probability and observed fraction in bins of equally many rows. They are of the
    positive class, or of the most probable of several classes.
    """

    log_loss: float
    ece: float
    said: tuple[float, ...]
    seen: tuple[float, ...]


class Calibration(Record):
    """The temperature of one class label, with the reliability of the same rows before and after.

    `kept`: False where validation log loss did not fall; the model then uses 1, and `after` is what
    the temperature would have given.
    """

    label: str
    temperature: float
    kept: bool
    rows: int
    before: Reliability
    after: Reliability


class ThresholdChoice(Record):
    """The decision threshold of one binary label.

    `objective`: what it was chosen for; `given` for a declared number. `at_half`, `score`: the
    objective on the validation rows at 0.5 and at `value`, null where it is not defined. `note`:
    why the choice is not what was asked for; empty if it is.
    """

    label: str
    value: float
    objective: str
    at_half: float | None = None
    score: float | None = None
    rows: int = 0
    note: str = ""


class Margin(Record):
    """How far the truth of one label lies from its prediction: split conformal, on validation rows.

    `scale`: value, log, log1p, or probability (one minus that of the true class). `margin`: null
    where rows, or groups, are too few to bound it. `groups`: 0 where rows are not grouped.
    """

    label: str
    coverage: float
    scale: str
    margin: float | None
    rows: int
    groups: int = 0

    @property
    def served(self) -> dict[str, float | str | None]:
        """What the registered model needs of it."""
        return {"coverage": self.coverage, "scale": self.scale, "margin": self.margin}


class Coverage(Record):
    """How often the margin of one label held on rows that had no part in it.

    `seen`: share of rows, or the mean of each group's share. `size`: median width of the intervals
    in the label's units, or of the number of classes in the sets; null without a margin.
    """

    label: str
    declared: float
    seen: float
    size: float | None
    rows: int


def is_empty(value: object) -> bool:
    """Return True for an empty field: a record leaves out what was not declared."""
    return not value


Calibrations = Annotated[tuple[Calibration, ...], Field(exclude_if=is_empty)]
Choices = Annotated[tuple[ThresholdChoice, ...], Field(exclude_if=is_empty)]
Margins = Annotated[tuple[Margin, ...], Field(exclude_if=is_empty)]
Coverages = Annotated[tuple[Coverage, ...], Field(exclude_if=is_empty)]
Thresholds = Annotated[dict[str, float], Field(exclude_if=is_empty)]  # label to threshold


def thresholds_of(choices: tuple[ThresholdChoice, ...]) -> Thresholds:
    """Return label → threshold."""
    return {choice.label: choice.value for choice in choices}
