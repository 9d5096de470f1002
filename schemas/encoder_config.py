"""Section `data.columns.NAME.encoder`: the part of a network that makes one vector of a column."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from schemas.section import Section
from schemas.series_config import GruEncoder, TcnEncoder
from schemas.smiles_config import FingerprintEncoder, GraphEncoder
from schemas.transformer_config import TransformerEncoder


class CnnEncoder(Section):
    """Convolutions over a picture: stages that halve it, averaged and mapped to the vector."""

    kind: Literal["cnn"] = "cnn"
    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (32, 64), min_length=1, description="Channels of the stages; each halves the picture."
    )
    size: int = Field(64, ge=1, description="Width of the vector.")


class ResnetEncoder(Section):
    """Residual blocks over a picture, averaged over patches and mapped to the vector."""

    kind: Literal["resnet"] = "resnet"
    channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (32, 64, 128), min_length=1, description="Channels of the stages; each halves the picture."
    )
    blocks: int = Field(1, ge=1, description="Residual blocks of each stage.")
    size: int = Field(64, ge=1, description="Width of the vector.")


def _kind(value: Any) -> str:
    """Return the kind of an encoder; cnn where none is given, as before there were several."""
    kind = value.get("kind", "cnn") if isinstance(value, dict) else getattr(value, "kind", "cnn")
    return str(kind)


KINDS = "cnn, resnet, fingerprint, graph, tcn, gru, transformer"
EncoderConfig = Annotated[
    Annotated[CnnEncoder, Tag("cnn")]
    | Annotated[ResnetEncoder, Tag("resnet")]
    | Annotated[FingerprintEncoder, Tag("fingerprint")]
    | Annotated[GraphEncoder, Tag("graph")]
    | Annotated[TcnEncoder, Tag("tcn")]
    | Annotated[GruEncoder, Tag("gru")]
    | Annotated[TransformerEncoder, Tag("transformer")],
    Discriminator(
        _kind,
        custom_error_type="encoder_kind",
        custom_error_message=f"kind: expected one of {KINDS}",
    ),
]
# encoders of each kind of column; those of windows are in `schemas.series_config`
ENCODERS = {
    "tensor": ("cnn", "resnet"),
    "image": ("cnn", "resnet"),
    "text": ("transformer",),
    "smiles": ("fingerprint", "graph", "transformer"),
}
