"""Labels in section `task`: kinds, weights, and the text form that compares class values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from schemas.section import Section

Value = str | int | float | bool
LabelKind = Literal["binary", "multiclass", "regression"]
PositiveFloat = Annotated[float, Field(gt=0)]
PosWeight = Literal["none", "balanced"] | PositiveFloat
METRIC_SAFE = r"^[A-Za-z0-9_][A-Za-z0-9_ .-]*$"  # characters allowed in MLflow's metric names


def value_text(value: Value) -> str:
    """Return the text of a value, the same for every type in YAML or files; integers without a
    point.

    >>> value_text(1.0), value_text(True), value_text(0.5), value_text("a")
    ('1', 'true', '0.5', 'a')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def _texts(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {value_text(k) if isinstance(k, Value) else k: v for k, v in value.items()}
    if len(found) < len(value):
        raise ValueError(f"two keys that read alike among {list(value)}; name each class once")
    return found


ClassWeights = Annotated[dict[str, PositiveFloat], BeforeValidator(_texts), Field(min_length=1)]


NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
CostMatrix = tuple[tuple[NonNegative, ...], ...]  # [true class][predicted class]


class ErrorCosts(Section):
    """What the two errors of a binary label cost; being right costs nothing."""

    false_negative: NonNegative = Field(1.0, description="Cost of a positive row that is missed.")
    false_positive: NonNegative = Field(1.0, description="Cost of a negative row called positive.")

    @model_validator(mode="after")
    def _one(self) -> ErrorCosts:
        if not self.false_positive and not self.false_negative:
            raise ValueError("give at least one of false_positive and false_negative above 0")
        return self


class LabelConfig(Section):
    """One of several labels: what kind it is and how much it counts."""

    kind: LabelKind = Field("binary", description="binary, multiclass or regression.")
    weight: float = Field(
        1.0, gt=0, description="How much the label counts in the loss, next to the others."
    )
    positive: Value | None = Field(
        None, description="The positive class (binary); default: the larger value."
    )
    ignore: tuple[Value, ...] = Field(
        (),
        description="Values that mean unknown, as a null does; those of task.ignore apply as well.",
    )
    loss: Literal["auto", "mse", "mae", "huber", "quantile", "poisson", "tweedie"] = Field(
        "auto", description="Loss of a regression label; auto: mse. Classes have their own."
    )
    pos_weight: PosWeight | None = Field(
        None, description="Of a binary label, in place of loss.pos_weight."
    )

    @model_validator(mode="after")
    def _fits_kind(self) -> LabelConfig:
        for option, given, kind in (
            ("positive", self.positive is not None, "binary"),
            ("pos_weight", self.pos_weight is not None, "binary"),
            ("loss", self.loss != "auto", "regression"),
        ):
            if given and self.kind != kind:
                raise ValueError(
                    f"{option} is for {kind} labels, this one is {self.kind}; remove it"
                )
        return self


def _label_shorthand(value: Any) -> Any:
    """Expand `dose: regression` to `{kind: regression}`."""
    return {"kind": value} if isinstance(value, str) else value


Label = Annotated[LabelConfig, BeforeValidator(_label_shorthand)]
