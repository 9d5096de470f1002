"""The section `evaluate`: uncertainty and baselines of the test metrics, temperature, threshold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from schemas.data_config import TaskConfig
from schemas.label_config import CostMatrix, ErrorCosts
from schemas.section import Section
from schemas.slice_config import DeclaredSlices
from schemas.yardstick_config import Yardstick, check_yardsticks

Baseline = Literal["constant", "linear", "boosting", "unigram", "bigram", "5-gram"]
Objective = Literal["f1", "cost", "recall", "precision", "balanced_accuracy", "youden"]
PREDICTED = {"binary", "multiclass", "regression"}
HALF = 0.5  # the threshold of the more probable class


class ThresholdConfig(Section):
    """A decision threshold that is chosen on the validation rows."""

    objective: Objective = Field(
        alias="for",
        description=(
            "f1, balanced_accuracy, youden: the greatest; cost: the least by costs; recall or"
            " precision: at least `at`, and the other of the two as great as possible."
        ),
    )
    at: float | None = Field(
        None, gt=0, le=1, description="Least recall or precision on the validation rows."
    )
    costs: ErrorCosts | None = Field(
        None, description="Of objective cost: {false_positive: 1, false_negative: 5}."
    )

    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    @model_validator(mode="after")
    def _fits_objective(self) -> ThresholdConfig:
        for option, given, objectives in (
            ("at", self.at is not None, ("recall", "precision")),
            ("costs", self.costs is not None, ("cost",)),
        ):
            if given != (self.objective in objectives):
                raise ValueError(
                    f"for: {self.objective} {'takes no' if given else 'needs'} {option};"
                    f" {'remove' if given else 'add'} {option}"
                )
        return self


class EvaluateConfig(Section):
    """Test metrics, their uncertainty, and what they are compared with."""

    bootstrap: int = Field(
        500,
        ge=20,
        le=10_000,
        description="Resamples of the confidence intervals (by group where rows are grouped).",
    )
    confidence: float = Field(0.95, gt=0.5, lt=1)
    baselines: tuple[Baseline, ...] = Field(
        ("constant", "linear", "boosting"),
        description=(
            "Fitted on the same train rows and features, scored on the same test rows. A language"
            " model has unigram, bigram and 5-gram instead."
        ),
    )
    against: tuple[Yardstick, ...] = Field(
        (),
        exclude_if=lambda found: not found,  # an old declaration keeps its digest
        description=(
            "Yardsticks: classes like scikit-learn's, e.g. [lightgbm:LGBMClassifier], or {path: …,"
            " options: {…}, name: …}. Fitted on the train rows and compared on the test rows; never"
            " registered. BULKHEAD_ALLOW_IMPORTS must name their packages."
        ),
    )
    top_k: int | None = Field(
        None,
        ge=2,
        description=(
            "Also report the share of rows whose class is among the k most probable ones, e.g."
            " top_3_accuracy (multiclass with more than k classes)."
        ),
    )
    costs: ErrorCosts | CostMatrix | None = Field(
        None,
        description=(
            "Also report the mean cost per row of the predicted class. Binary: {false_negative: 5,"
            " false_positive: 1}; multiclass: a matrix, one list of costs for each true class, in"
            " the order of the classes."
        ),
    )
    calibrate: Literal["none", "temperature"] = Field(
        "none",
        description=(
            "temperature: divide the scores of class labels by one number for each label. It is"
            " fitted on the validation rows and kept only if their log loss falls."
        ),
    )
    threshold: Annotated[float, Field(ge=0, le=1)] | ThresholdConfig = Field(
        HALF,
        description=(
            "A row is predicted positive if its probability is above it (binary labels). A number,"
            " or what to choose it for on the validation rows, e.g. {for: f1}."
        ),
    )

    intervals: float | None = Field(
        None,
        gt=0.5,
        lt=1,
        exclude_if=lambda found: found is None,  # an old declaration keeps its digest
        description=(
            "Share of new rows, or groups, whose truth an interval (or a set of classes) around the"
            " prediction shall hold, e.g. 0.9. Its width is fitted on the validation rows."
            " `bulkhead predict --intervals` and the model's parameter `intervals` return it."
        ),
    )

    slices: DeclaredSlices = None
    importance: bool = Field(
        True,
        exclude_if=lambda found: found,  # an old declaration keeps its digest
        description=(
            "Shuffle columns of test rows and score them again, so that the report shows what the"
            " score rests on (a few seconds)."
        ),
    )

    @property
    def is_finished_after_training(self) -> bool:
        """True if something is chosen or set after training: temperature, threshold, margins."""
        return self.calibrate != "none" or self.threshold != HALF or self.intervals is not None


def require_labels(evaluate: EvaluateConfig, task: TaskConfig, loss: str) -> None:
    """Check that the task has labels for the declared temperature, threshold and yardsticks.

    Args:
        evaluate: the declared section.
        task: the declared task.
        loss: kind of the loss, with `auto` resolved.

    Raises:
        ValueError: it has none, or names of yardsticks are taken; with what to do.
    """
    check_yardsticks(evaluate.against, task)
    if evaluate.calibrate == "temperature" and loss == "ordinal":
        raise ValueError(
            "evaluate.calibrate: temperature divides log odds and logits, and the scores of loss"
            " ordinal are neither; remove evaluate.calibrate, or use loss.kind: cross_entropy"
        )
    found = {str(task.kind)}
    if task.has_several:
        found = {label.kind for label in task.labels.values()}
        found |= {"binary"} if task.kind == "multilabel" else set()
    for option, declared, wanted, noun in (
        ("calibrate", evaluate.calibrate != "none", {"binary", "multiclass"}, "class"),
        ("threshold", evaluate.threshold != HALF, {"binary"}, "binary"),
        ("intervals", evaluate.intervals is not None, PREDICTED, "class or regression"),
    ):
        if declared and not wanted & found:
            raise ValueError(
                f"evaluate.{option} needs a {noun} label, and task.kind {task.kind!r} has none"
                f" here; remove evaluate.{option}"
            )
