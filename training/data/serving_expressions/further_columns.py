"""Columns whose cells become arrays after all others are read: texts, sets and pictures."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from . import bag_codes
from .pictures import Rule, with_pixels


def with_columns(
    frame: pd.DataFrame,
    null_texts: tuple[str, ...],
    bags: Sequence[bag_codes.Rule] = (),
    pictures: Sequence[Rule] = (),
) -> pd.DataFrame:
    """Return the frame with the codes of texts and sets, and arrays in place of pictures.

    Raises:
        ValueError: a picture cannot be read.
    """
    return bag_codes.with_codes(with_pixels(frame, pictures, null_texts), bags, null_texts)
