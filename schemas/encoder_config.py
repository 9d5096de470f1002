"""Section `data.columns.NAME.encoder`: the part of a network that makes one vector of a column."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.section import Section
from schemas.smiles_config import FingerprintEncoder, GraphEncoder, TransformerEncoder


class CnnEncoder(Section):
    """Convolutions over a picture: stages that halve it, averaged and mapped to the vector."""

    kind: Literal["cnn"] = "cnn"
    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (32, 64), min_length=1, description="Channels of the stages; each halves the picture."
    )
    size: int = Field(64, ge=1, description="Width of the vector.")


EncoderConfig = Annotated[
    CnnEncoder | FingerprintEncoder | GraphEncoder | TransformerEncoder, Field(discriminator="kind")
]
# encoders of each kind of column
ENCODERS = {
    "tensor": ("cnn",),
    "text": ("transformer",),
    "smiles": ("fingerprint", "graph", "transformer"),
}
