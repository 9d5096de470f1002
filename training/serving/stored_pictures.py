"""Pictures of a split's table as the registered model takes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa

from schemas.references import PictureSpec
from training.data.engine.picture_store import PictureStore


def with_pictures(
    frame: pd.DataFrame, images: Mapping[str, PictureSpec], encoded: bool = False
) -> pd.DataFrame:
    """Return rows of a table with pictures in place of the digests of their pixels.

    Args:
        frame: rows; columns that it lacks are skipped.
        images: columns of pictures of the table.
        encoded: as bytes of PNG files, else as arrays uint8.
    """
    found = {}
    for name, spec in images.items():
        if name not in frame.columns:
            continue
        present = frame[name].notna().to_numpy()
        cells = zip(frame[name], present, strict=True)
        digests = pa.array([cell if is_one else None for cell, is_one in cells], pa.string())
        pixels = PictureStore(spec).read(digests)
        made = np.full(len(frame), None, dtype=object)
        for row in np.flatnonzero(present):
            made[row] = _png(pixels[row]) if encoded else pixels[row]
        found[name] = pd.Series(made, frame.index, dtype=object)
    return frame.assign(**found) if found else frame


def _png(pixels: np.ndarray) -> bytes:
    from training.data.serving_expressions.pictures import encode_png  # needs Pillow

    return encode_png(pixels)
