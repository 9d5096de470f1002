"""Categories of which values that differ in spelling alone are one value.

`North`, `north ` and `Nórth` are one, where train's own values stay different in that spelling.
Shapes: N rows of the sample.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from training.data.leakage.sampled import Codes, Sampled
from training.data.leakage.spellings import SPELLINGS, fold

MOST_MERGED = 0.02  # share of train's values that a spelling may make equal, as of keys
PLAIN = "case and spaces"  # the spelling where train itself mixes several
MOST_DISTINCT = 0.5  # of the rows; values of a column with more are texts, which text_copies reads


def one_spelling(rows: Sampled) -> dict[str, Codes]:
    """Return the codes [N] of each category; values that differ in spelling alone share a code.

    A column without such values keeps its codes.
    """
    found = {}
    for name, codes in rows.category.items():
        texts = rows.texts[name]
        if not 2 <= len(texts) < MOST_DISTINCT * len(codes):
            found[name] = codes
            continue
        plain = _plain(texts, np.unique(codes[rows.train & (codes >= 0)]))
        _, first, inverse = np.unique(plain, return_index=True, return_inverse=True)
        same = np.append(first[inverse], -1)  # a null has the code -1
        found[name] = same[codes] if len(first) < len(texts) else codes
    return found


def _plain(texts: np.ndarray, of_train: Codes) -> np.ndarray:
    """Return texts in the strongest spelling that keeps the values of train different.

    A text of punctuation alone stays as it is.
    """
    given = pa.array(texts.tolist(), pa.string())
    for spelling in (*SPELLINGS, PLAIN):
        folded = np.asarray(fold(given, spelling).to_pylist(), dtype=object)
        plain = np.where(folded == "", texts, folded).astype(str)
        if len(of_train) - len(np.unique(plain[of_train])) <= MOST_MERGED * len(of_train):
            return plain
    return plain
