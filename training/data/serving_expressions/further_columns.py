"""Columns that become arrays after all others are read: texts, sets, pictures and windows."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from . import bag_codes, series_windows
from .pictures import Rule, with_pixels


def with_columns(
    frame: pd.DataFrame,
    null_texts: tuple[str, ...],
    bags: Sequence[bag_codes.Rule] = (),
    pictures: Sequence[Rule] = (),
    windows: Sequence[series_windows.Rule] = (),
) -> pd.DataFrame:
    """Return the frame with codes of texts and sets, arrays in place of pictures, and windows.

    Raises:
        ValueError: a picture cannot be read.
    """
    frame = bag_codes.with_codes(with_pixels(frame, pictures, null_texts), bags, null_texts)
    return series_windows.with_windows(frame, windows, null_texts)
