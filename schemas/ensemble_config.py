"""Section `ensemble`: several networks of one declaration, registered as one model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from schemas.cv_config import BY_GROUP, BY_TIME, CvConfig, FoldKind, fold_kind
from schemas.section import Section


class EnsembleConfig(Section):
    """Members of the same kind; the model's prediction is the mean of theirs."""

    model_config = ConfigDict(title="Ensemble")
    members: int = Field(5, ge=2, le=50, description="How many networks are trained.")
    over: Literal["seeds", "folds"] = Field(
        "seeds",
        description=(
            "seeds: all train on the train rows and differ in their seed; folds: the rows of train"
            " and validation are divided into so many folds, and each member stops early on its own"
            " fold and trains on the others. Folds follow the split; `cv.kind`, `cv.seed`,"
            " `cv.embargo`, `cv.horizon` and `cv.window` apply."
        ),
    )


DeclaredEnsemble = Annotated[
    EnsembleConfig | None,
    Field(
        description="Several networks whose mean is the model; null: one network.",
        exclude_if=lambda section: section is None,  # other declarations keep their digest
    ),
]


def member_folds(config: EnsembleConfig, cv: CvConfig, split_kind: str, grouped: bool) -> CvConfig:
    """Return the section `cv` by which members are divided.

    With `cv.kind: auto`, a split by time gets purged folds, not walk-forward ones: a member may
    train on what is later than its own fold, since the test rows are later than all of them, and
    walk-forward folds would leave the first members hardly any rows.
    """
    kind: FoldKind = fold_kind(cv, split_kind, grouped)
    if cv.kind == "auto" and kind in BY_TIME and kind not in BY_GROUP:
        kind = "purged"
    return cv.model_copy(update={"folds": config.members, "kind": kind})
