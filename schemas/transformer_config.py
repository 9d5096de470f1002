"""Encoder `transformer` of texts, molecules and windows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.section import Section


class TransformerEncoder(Section):
    """Self-attention over the tokens of a text or a SMILES, or over the steps of a window."""

    kind: Literal["transformer"] = "transformer"
    size: int = Field(64, ge=1, description="Width of the vector.")
    width: int = Field(64, ge=1, description="Width of a token or step; a multiple of heads.")
    depth: int = Field(
        2, ge=1, le=24, description="Blocks of attention and a network of two layers."
    )
    heads: int = Field(4, ge=1, description="Heads of attention.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of the vectors dropped in training.")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerEncoder:
        if self.width % self.heads:
            raise ValueError(
                f"encoder transformer: width {self.width} is no multiple of heads {self.heads};"
                " change one of them"
            )
        return self
