"""Sections of `kind: smiles`: how molecules are read, and the encoders of molecules and tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from schemas.section import Section


def _null_word(value: Any) -> Any:
    return "null" if value is None else value  # `invalid: null` of YAML


class SmilesConfig(Section):
    """What is made of each molecule, and of texts that are none."""

    invalid: Annotated[Literal["refuse", "null"], BeforeValidator(_null_word)] = Field(
        "refuse",
        description=(
            "A text that RDKit cannot read as a molecule: refuse names the rows and stops; null"
            " takes it as missing, and counts it."
        ),
    )
    radius: int = Field(2, ge=0, le=6, description="Bonds around an atom that a Morgan bit covers.")
    counts: bool = Field(
        False, description="Store how often a molecule has each Morgan feature, in place of 0 or 1."
    )
    descriptors: bool = Field(
        True, description="Add 31 descriptors of RDKit, such as logP and weight, scaled on train."
    )
    length: int = Field(
        200,
        ge=1,
        le=254,
        description=(
            "Most atoms (encoder graph) or tokens (transformer) of a molecule that are read; at"
            " most as many as 99 % of the train rows have. What lies beyond is left out, and the"
            " rows are counted."
        ),
    )


class FingerprintEncoder(Section):
    """A layer from the 2,048 Morgan bits to the vector."""

    kind: Literal["fingerprint"] = "fingerprint"
    size: int = Field(128, ge=1, description="Width of the vector.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of the vector dropped in training.")


class GraphEncoder(Section):
    """Messages between bonded atoms, in several steps; means and sums over the atoms."""

    kind: Literal["graph"] = "graph"
    size: int = Field(128, ge=1, description="Width of the vector.")
    width: int = Field(96, ge=1, description="Width of an atom's vector.")
    steps: int = Field(4, ge=1, le=12, description="Bonds that a message travels.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of the vectors dropped in training.")
