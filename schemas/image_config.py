"""Section `data.columns.NAME.image`: how the pictures of a column become arrays of one size."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from schemas.section import Section

LARGEST_SIDE = 4096


class ImageConfig(Section):
    """Size and mode of the arrays, and what happens to pictures that do not fit."""

    size: tuple[
        Annotated[int, Field(ge=1, le=LARGEST_SIDE)], Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
    ] = Field(description="[height, width] of the arrays.", examples=[[64, 64]])
    mode: Literal["L", "RGB"] = Field(
        "RGB", description="L: one channel of grey, shape [H, W]; RGB: shape [3, H, W]."
    )
    resize: Literal["refuse", "fit", "stretch"] = Field(
        "refuse",
        description=(
            "Pictures of another size: refuse them; fit: scale to fit inside, with black at the"
            " edges; stretch: scale height and width each."
        ),
    )
    invalid: Literal["refuse", "null"] = Field(
        "refuse",
        description=(
            "Pictures that are missing, broken or of another kind: refuse the table and name them,"
            " or count them and read them as null."
        ),
    )
    folder: str | None = Field(
        None,
        min_length=1,
        description=(
            "Folder of the files, to which the paths of the column are relative. A relative one"
            " starts at the table's folder, which is the default."
        ),
    )

    @field_validator("invalid", mode="before")
    @classmethod
    def _null_of_yaml(cls, value: Any) -> Any:
        return "null" if value is None else value

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a picture's array."""
        return self.size if self.mode == "L" else (3, *self.size)
