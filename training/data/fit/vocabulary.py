"""Vocabulary of a text column: the tokens of train, their counts and their numbers.

Called by `normalize.fit` alone.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.config import TokensConfig
from schemas.errors import DataError
from schemas.records import TokenStats
from training.data.engine.batches import arrow_batches
from training.data.serving_text.tokenizers import Units, units

BATCH_ROWS = 4096
NUM_BYTES = 256


def fit_vocabulary(path: Path, column: str, tokens: TokensConfig) -> TokenStats:
    """Return tokens by count, then text; the same for any order of the rows.

    Bytes are always all 256.

    Args:
        path: the file of train.
        column: the text, without nulls.
        tokens: as declared.

    Raises:
        DataError: the documents hold no token, or none often enough.
    """
    counts: Counter[str] = Counter()
    documents = characters = longest = 0
    for batch in arrow_batches(path, BATCH_ROWS, [column]):
        texts = batch.column(0)
        found = tokenized(texts, tokens.tokenizer, column)
        counts.update(
            dict(
                zip(
                    found.names,
                    np.bincount(found.codes, minlength=len(found.names)).tolist(),
                    strict=True,
                )
            )
        )
        documents += len(texts)
        characters += pc.sum(pc.utf8_length(texts)).as_py() or 0
        longest = max(longest, int(found.lengths.max(initial=0)))
    values = _numbered(counts, tokens)
    if not any(counts[value] for value in values):
        raise DataError(
            f"column {column!r}: expected text in train, found no token {tokens.min_count} times or"
            f" more in {documents} documents; name another column"
        )
    return TokenStats(
        name=column,
        tokenizer=tokens.tokenizer,
        values=values,
        counts=tuple(counts[value] for value in values),
        unknown=counts.total() - sum(counts[value] for value in values),
        documents=documents,
        characters=characters,
        longest=longest,
        context=tokens.context,
        stride=tokens.evaluation_stride,
        packing=tokens.packing,
    )


def tokenized(texts: pa.Array, tokenizer: str, column: str) -> Units:
    """Return the tokens of a batch.

    Raises:
        DataError: the tokenizer refuses a text.
    """
    try:
        return units(texts, tokenizer)
    except ValueError as error:
        raise DataError(f"column {column!r}: {error}") from error


def _numbered(counts: Counter[str], tokens: TokensConfig) -> tuple[str, ...]:
    """Return the vocabulary in the order of its numbers."""
    if tokens.tokenizer == "bytes":
        return tuple(chr(byte) for byte in range(NUM_BYTES))
    kept = [(value, count) for value, count in counts.items() if count >= tokens.min_count]
    return tuple(value for value, _ in sorted(kept, key=lambda item: (-item[1], item[0])))
