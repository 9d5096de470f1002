"""Columns of pictures as the declaration and the source's types say."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.config import ColumnConfig
from schemas.references import PictureSpec


def picture_specs(
    configs: Mapping[str, ColumnConfig], types: Mapping[str, str]
) -> dict[str, PictureSpec]:
    """Return what is known of each column of pictures before its files are decoded."""
    return {
        name: PictureSpec(
            shape=config.image.shape,
            mode=config.image.mode,
            resize=config.image.resize,
            given="bytes" if types[name] == "BLOB" else "paths",
        )
        for name, config in configs.items()
        if config.image is not None
    }
