"""Section `data.columns`: the role of a column, and for a feature its kind and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from schemas.bag_config import BagConfig
from schemas.duration import Duration, Unit
from schemas.encoder_config import EncoderConfig
from schemas.section import Section
from schemas.written_config import WrittenConfig

Role = Literal[
    "id",
    "group",
    "time",
    "label",
    "label_time",
    "available",
    "weight",
    "split",
    "feature",
    "ignore",
]
Kind = Literal["auto", "numeric", "categorical", "date", "tensor", "text", "set"]


class ColumnConfig(Section):
    """One column: its role, and for a feature its kind and limits."""

    role: Role = Field(
        "feature",
        description=(
            "What the column is; several columns may be `id` (composite) or `group`. time: when the"
            " prediction is made; label_time: when the label became known; available: when features"
            " became known (see `of`)."
        ),
    )
    kind: Kind = Field(
        "auto",
        description=(
            "How a feature is read; `auto` goes by the column's type. date: its days, and weekday,"
            " day of the year and hour as points on circles. text: words, or the documents of a"
            " language model. set: lists of values, or text with a separator between them."
        ),
    )
    nullable: bool | None = Field(
        None, description="Nulls allowed. Default: yes for features, no for roles."
    )
    min: float | None = Field(None, description="Smallest value allowed.")
    max: float | None = Field(None, description="Largest value allowed.")
    allowed: tuple[str | int | float | bool, ...] | None = Field(
        None, description="The only values allowed."
    )
    unique: bool = Field(False, description="Refuse repeated values.")
    shape: tuple[int, ...] | None = Field(
        None, description="Shape of a tensor feature, e.g. [28, 28] or [3, 32, 32]."
    )
    unit: Unit | None = Field(
        None,
        description=(
            "What a time of plain numbers counts: ns, us, ms, s, min, h, d or w. Needed where a"
            " length of time, such as an embargo of 7d, meets it."
        ),
    )
    of: tuple[str, ...] | None = Field(
        None,
        description=(
            "Role available: names or patterns of the features whose time of availability this is."
            " Default: all."
        ),
    )
    ahead: Duration | None = Field(
        None,
        exclude_if=lambda length: length is None,
        description=(
            "Role label: the label of a row is this column's value so long after the row, in the"
            " same series (data.series), e.g. 24h. Rows without such a value have no label."
        ),
        examples=["24h"],
    )
    written: WrittenConfig | None = Field(
        None,
        description=(
            "The texts of this column are numbers in this spelling, e.g. {units: ['$'],"
            " thousands: ','} for $1,234. A column that is numbers already stays as it is."
        ),
    )

    separator: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda text: text is None,  # an old declaration keeps its digest
        description="Kind set: what stands between two values of a text, e.g. ';'.",
    )
    bag: BagConfig | None = Field(
        None,
        exclude_if=lambda bag: bag is None,
        description="Kinds text and set: which words or values are kept, and how they are joined.",
    )

    encoder: EncoderConfig | None = Field(
        None,
        exclude_if=lambda encoder: encoder is None,
        description=(
            "Kind tensor: a network of its own that makes one vector of it, so that it mixes with"
            " other features in any model kind but cnn. Default: its values as they are."
        ),
    )

    @model_validator(mode="after")
    def _possible(self) -> ColumnConfig:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.role != "feature" and self.kind != "auto" and self.role != "label":
            raise ValueError(f"kind is for features; role {self.role!r} needs none")
        if self.unit is not None and self.role not in ("time", "label_time", "available"):
            raise ValueError(
                "unit is for times (roles time, label_time and available), not for role"
                f" {self.role!r}; remove it"
            )
        if self.of is not None and self.role != "available":
            raise ValueError(
                "of is for a column of role available: it names the features that it speaks of"
            )
        if self.written is not None and (
            self.kind not in ("auto", "numeric") or self.role not in ("feature", "label", "weight")
        ):
            raise ValueError(
                "written makes numbers of texts, so it is for numeric features, labels and"
                f" weights, not for role {self.role!r}, kind {self.kind}; remove it"
            )
        if self.ahead is not None and (self.role != "label" or self.ahead == 0):
            raise ValueError(
                "ahead is for a column of role label, and a length above 0, e.g. ahead: 24h"
            )
        self._require_no_limits()
        if (self.kind == "tensor") != (self.shape is not None):
            raise ValueError("a tensor feature needs kind: tensor together with shape: [..]")
        return self

    def _require_no_limits(self) -> None:
        if self.kind in ("date", "set") and (
            self.unique or any(v is not None for v in (self.min, self.max, self.allowed))
        ):
            raise ValueError(
                f"a {self.kind} feature has no min, max, allowed or unique; leave rows out with"
                " data.filter"
            )
        if self.separator is not None and self.kind != "set":
            raise ValueError("separator is for kind set; remove it, or declare kind: set")
        if self.bag is not None and self.kind not in ("text", "set"):
            raise ValueError(
                f"bag is for kinds text and set, not for kind {self.kind}; remove it, or declare"
                " kind: text"
            )
        if self.encoder is not None and self.kind != "tensor":
            raise ValueError(f"encoder is for kind tensor, not for kind {self.kind}; remove it")


def _column_shorthand(value: Any) -> Any:
    """Expand `age: numeric` to role feature and that kind, `pid: group` to that role."""
    if not isinstance(value, str):
        return value
    if value in ("numeric", "categorical", "date", "text", "set", "auto"):
        return {"role": "feature", "kind": value}
    return {"role": value}


Column = Annotated[ColumnConfig, BeforeValidator(_column_shorthand)]
