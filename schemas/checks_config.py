"""Section `checks`: the threshold of each check, and findings that are allowed with a reason."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.section import Section


class Allowance(Section):
    """A finding that is accepted, with the reason that is logged with the model."""

    check: str = Field(description="Name of the check, as in its report.")
    column: str | None = Field(None, description="Only for this column.")
    reason: str = Field(min_length=10, description="Why this is right; logged with the model.")


class ChecksConfig(Section):
    """Thresholds of the checks, and findings that are allowed with a reason."""

    max_duplicate_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description=(
            "Share of val or test rows whose features equal a train row's, above which the run"
            " stops."
        ),
    )
    min_rows: int = Field(1, ge=1, description="Fewest rows that each side must have.")
    stratify_tolerance: float = Field(
        0.02,
        ge=0,
        le=1,
        description=(
            "Of a stratified split: how far a class's share (of a regression: the mean, in standard"
            " deviations) may lie from that of all rows."
        ),
    )
    constant_features: Literal["fail", "drop"] = Field(
        "fail",
        description="A feature that is constant or all-null in train: stop, or drop it and say so.",
    )
    proxy_strength: float = Field(
        0.98,
        gt=0,
        le=1,
        description=(
            "A column that alone predicts the label this well on train rows it was not learned on"
            " stops the run (2 AUROC - 1, or R2 of ranks)."
        ),
    )
    proxy_warning: float = Field(
        0.9, gt=0, le=1, description="Strength of a single column from which a warning is given."
    )
    dominance_ratio: float = Field(
        2.0,
        gt=1,
        description=(
            "A warning is given where all columns but one leave this many times more of the label"
            " unexplained than all columns do."
        ),
    )
    combination_error: float = Field(
        1e-6,
        gt=0,
        lt=1,
        description=(
            "Several numeric columns that leave at most this share of a number's variance"
            " unexplained, as a sum or product, stop the run."
        ),
    )
    equal_values: float = Field(
        1e-9,
        gt=0,
        lt=1,
        description=(
            "Chance below which values of a column that equal the numeric label give a warning;"
            " where most do, the run stops."
        ),
    )
    missingness_strength: float = Field(
        0.6,
        gt=0,
        le=1,
        description=(
            "Strength of a column's nulls alone from which a warning is given; proxy_strength stops"
            " the run."
        ),
    )
    pure_value_chance: float = Field(
        1e-3,
        gt=0,
        lt=1,
        description=(
            "Chance, times the values looked at, below which a value whose rows all have the rarer"
            " label gives a warning."
        ),
    )
    collision_chance: float = Field(
        1e-6,
        gt=0,
        lt=1,
        description=(
            "Chance, given the rate between groups within train, below which near-copies of train"
            " rows in a held-out side stop the run."
        ),
    )
    collision_warning: float = Field(
        1e-3, gt=0, lt=1, description="The same chance from which a warning is given."
    )
    text_similarity: float = Field(
        0.4,
        gt=0,
        lt=1,
        description=(
            "Share of the word triples of two texts, of all that either has, from which they count"
            " as copies."
        ),
    )
    shared_time_correlation: float = Field(
        0.5,
        gt=0,
        le=1,
        description=(
            "Correlation of held-out labels with those of other groups in train at the same time"
            " above which the run stops; half of it warns."
        ),
    )
    order_strength: float = Field(
        0.5,
        gt=0,
        le=1,
        description=(
            "Strength of the number in the id, or of a column that numbers the rows, from which a"
            " warning is given."
        ),
    )
    look_ahead_gain: float = Field(
        0.1,
        gt=0,
        le=1,
        description=(
            "How much more of the label's next values than of its last ones a column explains"
            " before a warning is given; nearly all of them stops the run."
        ),
    )
    dependence_fall: float = Field(
        0.1,
        gt=0,
        le=1,
        description=(
            "How far the strength of a quick learner (2 AUROC - 1, or R2 of ranks) must fall where"
            " rows that belong together are kept together, before a warning is given."
        ),
    )
    dependence_left: float = Field(
        0.4,
        ge=0,
        lt=1,
        description="Share of that strength which is left, up to which a sure fall stops the run.",
    )
    pooled_chance: float = Field(
        1e-6,
        gt=0,
        lt=1,
        description=(
            "Chance below which a column's statistics over all rows are too neat to be luck, and"
            " the run stops."
        ),
    )
    allow: tuple[Allowance, ...] = ()
