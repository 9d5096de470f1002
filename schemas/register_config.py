"""Section `register` of the declaration: the gate before the registry."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.duration import Duration, seconds_of
from schemas.evaluate_config import Baseline
from schemas.section import Section

Replace = Literal["better", "not_worse"]


class Threshold(Section):
    """Bounds that a test metric must keep."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _one(self) -> Threshold:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        return self


class RegisterConfig(Section):
    """The gate before the registry."""

    enabled: bool = True
    thresholds: dict[str, Threshold] = Field(
        default_factory=dict, description="Test metric to its bounds, e.g. {auroc: {min: 0.65}}."
    )
    slices: dict[str, Threshold] = Field(
        default_factory=dict,
        exclude_if=lambda found: not found,
        description=(
            "Test metric to its bounds on each slice of evaluate.slices, e.g. {auroc: {min: 0.6}}."
        ),
    )
    metric: str | None = Field(
        None, description="Metric of the champion comparison. Default: the one of train.metric."
    )
    tolerance: float = Field(
        0.0, ge=0, description="Loss of that metric against the champion that is still accepted."
    )
    replace: Replace | None = Field(
        None,
        exclude_if=lambda found: found is None,
        description=(
            "When a new version takes the champion's place. better: its gain is larger than chance"
            " explains among all models that were scored on these rows; one that is equal is"
            " registered, and the champion stays. not_worse: also if it is equal. Default: better;"
            " not_worse where tolerance is above 0, as that accepts even a loss."
        ),
    )
    stale_after: Duration | None = Field(
        None,
        exclude_if=lambda found: found is None,
        description=(
            "Age of a champion, e.g. 30d, from which a version that is equal takes its place."
            " Default: never."
        ),
    )
    fresh_rows: int | None = Field(
        None,
        ge=30,
        exclude_if=lambda found: found is None,
        description=(
            "With split.roll: test rows that neither champion nor challenger was trained, tuned or"
            " gated on, of which the comparison needs so many. With fewer, the gate waits and the"
            " champion stays. At most half of the test rows are asked for. Default: 100."
        ),
    )
    promotion: Literal["automatic", "approval", "never"] = Field(
        "automatic",
        description=(
            "What a version that passed the gate becomes. automatic: champion; approval:"
            " challenger, until a person promotes it; never: no alias."
        ),
    )
    require_skill: bool = Field(
        True,
        description=(
            "Refuse a model that is not better than the constant baseline, or that too few rows"
            " were there to judge."
        ),
    )
    allow_behind: tuple[Baseline, ...] = Field(
        ("boosting",),
        description=(
            "Baselines that a model may be behind beyond uncertainty. A model behind any other,"
            " such as the linear model, is refused."
        ),
    )

    @model_validator(mode="after")
    def _age_has_a_unit(self) -> RegisterConfig:
        if self.stale_after is not None and not isinstance(self.stale_after, str):
            raise ValueError(
                f"stale_after: expected a length with its unit, e.g. 30d, got {self.stale_after!r}"
            )
        return self

    @property
    def named_metrics(self) -> list[tuple[str, str | None]]:
        """Metrics that the gate reads, each with the key that names it."""
        bounds = {"thresholds": self.thresholds, "slices": self.slices}
        named = [(f"register.{key}", m) for key, found in bounds.items() for m in found]
        return [("register.metric", self.metric), *named]

    @property
    def replaces_equal(self) -> bool:
        """True if a version that is as good as the champion takes its place."""
        return (self.replace or ("not_worse" if self.tolerance > 0 else "better")) == "not_worse"

    @property
    def stale_seconds(self) -> float | None:
        """Age from which a champion is stale; None: never."""
        return seconds_of(self.stale_after) if isinstance(self.stale_after, str) else None
