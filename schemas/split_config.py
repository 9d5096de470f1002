"""Section `split`: strategies that assign rows to splits, one titled variant each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.duration import Duration
from schemas.section import Section

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


class Fractions(Section):
    """Shares of the three sides; they must add up to 1."""

    train: float = Field(0.7, gt=0, lt=1)
    val: float = Field(0.15, gt=0, lt=1)
    test: float = Field(0.15, gt=0, lt=1)

    @model_validator(mode="after")
    def _sum(self) -> Fractions:
        if abs(self.train + self.val + self.test - 1) > 1e-9:
            raise ValueError(
                f"train + val + test must be 1, got {self.train + self.val + self.test:g}"
            )
        return self


class TimeCuts(Section):
    """Absolute cut points: val starts at `val`, test starts at `test` (ISO date/time, or a
    number).
    """

    val: str | float
    test: str | float


class _Hashed(Section):
    seed: int = Field(0, ge=0, description="Changes which keys land where.")
    fractions: Fractions = Fractions()


class RandomSplit(_Hashed):
    """Each id by its own hash; for rows that are independent of each other."""

    model_config = ConfigDict(title="Random")
    kind: Literal["random"] = "random"


class GroupSplit(_Hashed):
    """Whole groups by hash; for repeated measurements of the same patient, user, device or site."""

    model_config = ConfigDict(title="By group")
    kind: Literal["group"] = "group"
    pin: dict[str, SplitName] = Field(
        default_factory=dict, description="Groups whose side is fixed by hand."
    )
    balance: bool = Field(
        False,
        description=(
            "Deal groups out so that each side has its share of groups and rows, as a hash does"
            " only for hundreds of groups; decided at first sight, then frozen in the ledger."
        ),
    )


class StratifiedSplit(_Hashed):
    """Each id, with the label's shares equal on every side; decided at first sight, then frozen in
    the ledger.
    """

    model_config = ConfigDict(title="Stratified by label")
    kind: Literal["stratified"] = "stratified"
    bins: int = Field(10, ge=2, le=100, description="Quantile bins of a regression label.")


class StratifiedGroupSplit(StratifiedSplit):
    """Whole groups, with the label's shares as equal as groups allow; frozen in the ledger."""

    model_config = ConfigDict(title="Stratified by group")
    kind: Literal["stratified_group"] = "stratified_group"  # type: ignore[assignment]


class TimeSplit(Section):
    """Train before val before test, with an embargo between; cuts by share are frozen in the
    ledger.
    """

    model_config = ConfigDict(title="By time")
    kind: Literal["time"] = "time"
    fractions: Fractions = Fractions()
    cuts: TimeCuts | None = Field(None, description="Absolute cut points instead of shares.")
    embargo: Duration = Field(
        0.0,
        description=(
            "Gap after each cut: 24h, 7d (a numeric time column declares its unit for that), or a"
            " plain number that counts what a numeric time column counts; rows inside are left out"
            " and counted."
        ),
    )


class GroupTimeSplit(TimeSplit):
    """New groups in later time: a row is kept only where its group's side and its time's side
    agree.
    """

    model_config = ConfigDict(title="By group and time")
    kind: Literal["group_time"] = "group_time"  # type: ignore[assignment]
    seed: int = Field(0, ge=0, description="Changes which groups land where.")
    group_fractions: Fractions = Fractions(train=0.6, val=0.2, test=0.2)
    pin: dict[str, SplitName] = Field(
        default_factory=dict, description="Groups whose side is fixed by hand."
    )


class PredefinedSplit(Section):
    """The side stands in the column of role `split`; validation may be carved out of train."""

    model_config = ConfigDict(title="Predefined column")
    kind: Literal["predefined"] = "predefined"
    seed: int = Field(0, ge=0)
    train: tuple[str, ...] = Field(("train",), description="Values of the column that mean train.")
    val: tuple[str, ...] = Field(
        ("val", "valid", "validation"), description="Values that mean validation."
    )
    test: tuple[str, ...] = Field(("test",), description="Values that mean test.")
    carve_val: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of train taken for validation, by group where one is declared.",
    )


Split = Annotated[
    RandomSplit
    | GroupSplit
    | StratifiedSplit
    | StratifiedGroupSplit
    | TimeSplit
    | GroupTimeSplit
    | PredefinedSplit,
    Field(discriminator="kind"),
]
GROUPED = ("group", "stratified_group", "group_time")
