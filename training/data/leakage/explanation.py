"""Description of one check, and sentences that several descriptions share."""

from __future__ import annotations

from typing import NamedTuple

KEYS = "one pass over the key columns of all rows"
SAMPLE = "vectorised on a sample of at most 50,000 train and 20,000 held-out rows"
SEEN = (
    "The model has seen these rows while it was fitted, so that it repeats them instead of"
    " predicting: the score is that of memory."
)
GIVEN = (
    "The column holds the answer. The score rises towards its maximum and falls back in use, where"
    " the column is empty or not yet known."
)
FITTED = (
    "Held-out rows had a part in making the features, so that the score measures data that the"
    " preparation has already seen."
)


class Explanation(NamedTuple):
    """Description of one check.

    `thresholds` are the fields of the section `checks` that set it. `few_alarms` says why an honest
    split rarely fails it.
    """

    title: str
    looks_for: str
    statistic: str
    thresholds: tuple[str, ...]
    few_alarms: str
    cost: str
    inflates: str
    remedy: str


EXACT = "Nothing is estimated: what is counted either is there or is not."
