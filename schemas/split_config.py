"""Section `split`: strategies that assign rows to splits, one titled variant each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.duration import Duration, seconds_of
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


Window = Annotated[Duration | None, Field(exclude_if=lambda found: found is None)]
"""A length that other declarations do not have, so that they keep their digest."""


class TimeSplit(Section):
    """Train before val before test, with an embargo between; cuts by share are frozen in the
    ledger, those of `roll` move on with the table.
    """

    model_config = ConfigDict(title="By time")
    kind: Literal["time"] = "time"
    fractions: Fractions = Field(
        Fractions(),
        description=(
            "Shares of rows by which the cuts are decided when the table is first seen; the ledger"
            " freezes them. Later rows are test rows and never train: for a table that grows,"
            " declare roll, test and val instead."
        ),
    )
    cuts: TimeCuts | None = Field(None, description="Absolute cut points instead of shares.")
    roll: Window = Field(
        None,
        description=(
            "Instead of fractions, for a table that grows: test and val are windows that end at the"
            " newest row, rounded down to a multiple of this length, e.g. 1d or 7d. The cuts move"
            " forward with the table and never back, so a row goes from test to val to train."
        ),
    )
    test: Window = Field(
        None,
        description="With roll: length of the test window, e.g. 60d; it also holds newer rows.",
    )
    val: Window = Field(
        None, description="With roll: length of the validation window before it, e.g. 30d."
    )
    embargo: Duration = Field(
        0.0,
        description=(
            "Gap after each cut: 24h, 7d (a numeric time column declares its unit for that), or a"
            " plain number that counts what a numeric time column counts; rows inside are left out"
            " and counted."
        ),
    )

    @model_validator(mode="after")
    def _windows_are_whole(self) -> TimeSplit:
        problem = window_problem(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def rolls(self) -> bool:
        """True if the cuts move on with the table."""
        return self.roll is not None


def window_problem(split: TimeSplit) -> str | None:
    """Return why the windows of `roll` cannot be; None if they can, or none are declared."""
    windows = {"test": split.test, "val": split.val}
    if split.roll is None:
        given = [name for name, length in windows.items() if length is not None]
        return f"{given[0]} is a window of roll: add roll, e.g. roll: 7d" if given else None
    missing = [name for name, length in windows.items() if length is None]
    if missing:
        return (
            "roll needs the lengths of both windows, e.g. {roll: 7d, test: 60d, val: 30d};"
            f" {' and '.join(missing)} not given"
        )
    if split.cuts is not None or split.fractions != Fractions():
        return "roll moves the cuts on: remove cuts and fractions, or remove roll, test and val"
    lengths = {"roll": split.roll, **windows, "embargo": split.embargo}
    sizes = {name: _size(length) for name, length in lengths.items() if length is not None}
    if zero := [name for name in ("roll", "test", "val") if sizes[name][1] == 0]:
        return f"{zero[0]}: expected a length above 0, e.g. 7d, got {lengths[zero[0]]!r}"
    if len({unit for unit, size in sizes.values() if size}) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items() if length)
        return f"expected lengths that all have a unit, or none of them, got {shown}"
    short = [name for name in windows if sizes[name][1] <= sizes["embargo"][1]]
    return (
        f"embargo {split.embargo} covers the whole {short[0]} window of {windows[short[0]]}, which"
        " would be empty; shorten it, or lengthen the window"
        if short
        else None
    )


def _size(length: float | str) -> tuple[bool, float]:
    """Return whether a length has a unit, and its size: seconds, or what the column counts."""
    return isinstance(length, str), seconds_of(length) if isinstance(length, str) else length


class GroupTimeSplit(TimeSplit):
    """New groups in later time: a row is kept only where its group's side and its time's side
    agree. With `roll`, a test group's rows leave test as time goes on and are left out.
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
