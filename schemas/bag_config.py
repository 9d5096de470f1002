"""Section `data.columns.NAME.bag`: how a text or a set of values becomes a vector."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.section import Section


class BagConfig(Section):
    """Pieces of a text (words, or characters, in a row) or values of a set, and their vectors."""

    unit: Literal["words", "characters"] = Field(
        "words", description="Of a text: what its pieces consist of. Case is ignored."
    )
    ngrams: tuple[int, int] | None = Field(
        None,
        description=(
            "Of a text: fewest and most words or characters of a piece. Default: [1, 2] words, [2,"
            " 4] characters."
        ),
    )
    min_count: int = Field(
        2, ge=1, description="Train rows that a piece must occur in; rarer ones are unknown."
    )
    most: int = Field(20_000, ge=1, description="Most pieces that are kept, the frequent ones.")
    length: int = Field(
        512,
        ge=1,
        description=(
            "Most known pieces of one row that are read; at most as many as 99 % of the train rows"
            " have. Longest pieces, then the end of the text, are left out first."
        ),
    )
    size: int = Field(64, ge=1, description="Width of a piece's learned vector.")
    combine: Literal["root", "mean", "sum"] = Field(
        "root",
        description=(
            "How the vectors of a row are joined: their mean, their sum, or root: the sum over the"
            " square root of their number, which keeps its scale for any number."
        ),
    )

    @model_validator(mode="after")
    def _in_order(self) -> BagConfig:
        if self.ngrams is not None and not 1 <= self.ngrams[0] <= self.ngrams[1]:
            raise ValueError(
                f"ngrams: expected the fewest and the most of a piece, at least 1, got"
                f" {list(self.ngrams)}; e.g. [1, 2]"
            )
        return self

    @property
    def lengths(self) -> tuple[int, int]:
        """Fewest and most words or characters of a piece."""
        return self.ngrams or ((1, 2) if self.unit == "words" else (2, 4))
