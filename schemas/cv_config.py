"""Section `cv`: cross-validation of what is declared, off unless `folds` is given."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.duration import Duration, seconds_of
from schemas.section import Section
from schemas.split_config import GROUPED

FoldKind = Literal[
    "kfold",
    "stratified",
    "group",
    "stratified_group",
    "walk_forward",
    "group_walk_forward",
    "purged",
]
BY_GROUP: tuple[FoldKind, ...] = ("group", "stratified_group", "group_walk_forward")
BY_TIME: tuple[FoldKind, ...] = ("walk_forward", "group_walk_forward", "purged")
STRATIFIED: tuple[FoldKind, ...] = ("stratified", "stratified_group")
DEFAULT_FOLDS: dict[str, FoldKind] = {
    "random": "kfold",
    "group": "group",
    "stratified": "stratified",
    "stratified_group": "stratified_group",
    "time": "walk_forward",
    "group_time": "group_walk_forward",
}


def _is_zero(length: float | str) -> bool:
    return (seconds_of(length) if isinstance(length, str) else length) == 0


class CvConfig(Section):
    """Folds over the rows of train and validation; the test rows stay apart for the final model."""

    folds: int = Field(
        0,
        ge=0,
        le=50,
        description=(
            "How many; 0: no cross-validation. With folds, `bulkhead run` trains and tests each of"
            " them and no final model."
        ),
    )
    kind: Literal["auto"] | FoldKind = Field(
        "auto",
        description=(
            "auto follows the split: random kfold, group group, stratified stratified, time"
            " walk_forward, group_time group_walk_forward. purged: blocks of time tested in turn,"
            " trained on before and after, without the rows whose labels overlap."
        ),
    )
    seed: int = Field(0, ge=0, description="Changes which keys land in which fold.")
    val: float = Field(
        0.15,
        gt=0,
        lt=1,
        description=(
            "Share of each fold's train that picks its best weights: by hash of row or group, or"
            " the latest."
        ),
    )
    embargo: Duration | None = Field(
        None,
        description=(
            "Gap before the test block (walk_forward) or after it (purged), as split.embargo is"
            " given. Default: the split's embargo, else 0."
        ),
    )
    horizon: Duration = Field(
        0.0,
        description=(
            "How far a label looks ahead, e.g. 24h (a column of role label_time says it row by"
            " row): rows whose label overlaps the test block are not trained on."
        ),
    )
    window: Duration | None = Field(
        None,
        description=(
            "Walk-forward: train on the last so much time only; null: on all that was before."
        ),
    )
    bins: int = Field(
        10, ge=2, le=100, description="Quantile bins of a regression label in stratified folds."
    )
    concurrency: int = Field(
        1,
        ge=1,
        le=64,
        description=(
            "How many folds train at once; each has train.ranks processes, and they share cores and"
            " devices."
        ),
    )

    @model_validator(mode="after")
    def _possible(self) -> CvConfig:
        if self.folds == 1 or (self.folds == 2 and self.kind == "group_walk_forward"):
            least = 3 if self.kind == "group_walk_forward" else 2
            raise ValueError(
                f"folds must be 0 (no cross-validation) or at least {least}, got {self.folds}"
            )
        if self.window is not None and _is_zero(self.window):
            raise ValueError("window must be above 0; null trains on all that was before")
        return self


def fold_kind(cv: CvConfig, split_kind: str, grouped: bool) -> FoldKind:
    """Return the kind of folds with `auto` resolved; a predefined split uses groups if any."""
    if cv.kind != "auto":
        return cv.kind
    return DEFAULT_FOLDS.get(split_kind, "group" if grouped else "kfold")


def fold_problem(
    cv: CvConfig, split_kind: str, grouped: bool, timed: bool, one_label: bool
) -> str | None:
    """Return why these folds cannot be made, or would mix what the split separates; None if they
    can.

    Args:
        cv: the section.
        split_kind: kind of section `split`.
        grouped: groups are declared or derived.
        timed: a time is declared.
        one_label: there is exactly one label.
    """
    kind = fold_kind(cv, split_kind, grouped)
    if not cv.folds:
        return None
    if kind in BY_GROUP and not grouped:
        return (
            f"cv.kind {kind!r} needs a column with role group, or groups derived by data.group_by"
        )
    if kind in BY_TIME and not timed:
        return f"cv.kind {kind!r} needs a column with role time"
    if kind in STRATIFIED and not one_label:
        return (
            f"cv.kind {kind!r} needs exactly one label; use"
            f" {'group' if kind == 'stratified_group' else 'kfold'}"
        )
    if split_kind in ("time", "group_time") and kind not in BY_TIME:
        return (
            f"cv.kind {kind!r} would train on what is later than the test rows, which split.kind"
            f" {split_kind!r} keeps apart; use walk_forward or purged"
        )
    if split_kind in GROUPED and kind not in BY_GROUP:
        return (
            f"cv.kind {kind!r} would put a group into train and test, which split.kind"
            f" {split_kind!r} keeps apart; use one of {list(BY_GROUP)}"
        )
    if kind == "group_walk_forward" and cv.folds < 3:
        return (
            "cv.folds: group_walk_forward needs at least 3, one set of groups for each side, got"
            f" {cv.folds}"
        )
    unused = [
        n
        for n in ("embargo", "horizon")
        if not _is_zero(getattr(cv, n) or 0.0) and kind not in BY_TIME
    ] + (["window"] if cv.window is not None and "walk" not in kind else [])
    return (
        f"cv.{unused[0]} has no meaning for folds of kind {kind!r}; remove it, or use walk_forward"
        if unused
        else None
    )
