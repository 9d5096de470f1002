"""Section `data.columns.NAME.written`: how the texts of a column of numbers are written."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field, model_validator

from schemas.section import Section


class WrittenConfig(Section):
    """Spelling of numbers in a column of texts; a text in any other spelling is refused by row."""

    decimal: Literal[".", ","] = Field(
        ".", description="Before the decimals: '.' as in 1.5, or ',' as in 1,5."
    )
    thousands: Literal["", ",", ".", "'", " ", "_"] = Field(
        "",
        description=(
            "Between groups of digits, as ',' in 1,234; ' ' stands for any space, and a number"
            " may lack the sign. Default: none."
        ),
    )
    units: tuple[str, ...] = Field(
        (),
        description=(
            "Texts of which each number has one before or after it, e.g. ['$'], ['%'] or ['kg',"
            " 'KG']; with '' among them a number may lack it. The number is not rescaled: 5% is 5."
        ),
    )
    parentheses: bool = Field(False, description="Whether (5) is written for -5.")
    limits: Literal["refuse", "bound"] = Field(
        "refuse",
        description=(
            "Values such as <0.1 and >100, of which only a bound is known: refuse them, or take"
            " the bound and count them."
        ),
    )
    marks: tuple[str, ...] = Field(
        (), description="Footnote marks after a number, which are left out, e.g. ['*', '[1]']."
    )
    nulls: tuple[str, ...] = Field(
        (), description="Texts of this column that stand for a null, e.g. ['-', 'unknown']."
    )

    @model_validator(mode="after")
    def _readable(self) -> WrittenConfig:
        if self.decimal == self.thousands:
            raise ValueError(
                f"decimal and thousands are both {self.decimal!r}; a number could be read in two"
                " ways"
            )
        beside = [("units", text) for text in self.units if text.strip()]
        for name, text in [*beside, *(("marks", text) for text in self.marks)]:
            if not text.strip() or text.strip()[0] in f"0123456789+-.,<>{'(' * (name == 'units')}":
                raise ValueError(
                    f"{name}: expected texts that cannot be part of a number, got {text!r}"
                )
        repeated = [t for t, count in Counter(self.units + self.marks).items() if count > 1]
        if repeated:
            raise ValueError(f"{repeated[0]!r} is named twice in units and marks; remove one")
        return self
