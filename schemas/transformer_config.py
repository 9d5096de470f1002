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
    # left out where they are as ever: other declarations keep their digest
    attention: Literal["all", "causal"] = Field(
        "all",
        exclude_if=lambda found: found == "all",
        description=(
            "Texts and molecules. all: a token sees all others; causal: itself and those before it,"
            " between a begin and an end token, as in a language model whose weights model.init"
            " gives it."
        ),
    )
    positions: Literal["learned", "rotary"] = Field(
        "learned",
        exclude_if=lambda found: found == "learned",
        description=(
            "Texts and molecules. learned: a vector for each position; rotary: queries and keys are"
            " turned by their positions, so that distances count."
        ),
    )

    @property
    def reads_steps(self) -> bool:
        """Return True if nothing is declared that a window of a series does not have."""
        return self.attention == "all" and self.positions == "learned"

    @model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerEncoder:
        if self.width % self.heads:
            raise ValueError(
                f"encoder transformer: width {self.width} is no multiple of heads {self.heads};"
                " change one of them"
            )
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(
                "encoder transformer: rotary positions turn pairs of a head's numbers, and"
                f" {self.width} / {self.heads} is odd; use positions: learned, or another width"
            )
        return self
