"""Text in, losses and completions out: shared by training, evaluation and the registered model.

It is shipped with the language model unchanged (see training/serving/serving.py), so it imports
nothing of the project that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .completion import Sampling, complete, sampling
from .scoring import Logits, score
from .tokenizers import decode, encode, units
from .windows import cut

if TYPE_CHECKING:
    # imported only for frames: ranks of a training run have none, and the import takes a third of a
    # second
    import pandas as pd

__all__ = [
    "Sampling",
    "complete",
    "cut",
    "decode",
    "encode",
    "predict",
    "sampling",
    "score",
    "units",
]


def predict(
    text: Mapping[str, Any],
    logits: Logits,
    frame: pd.DataFrame,
    params: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Return `tokens`, `loss` in nats per token and `accuracy` for the text of each row.

    With `max_new_tokens` above 0, also return `completion`.

    Args:
        text: of the model's spec: name of the column, tokenizer, values, context, stride.
        logits: the program.
        frame: raw rows; other columns are ignored.
        params: max_new_tokens, temperature, top_k and seed of the completion.

    Raises:
        ValueError: the column is missing or given twice, a row holds no text, or a parameter is
            invalid.
    """
    import pandas as pd

    how, texts = sampling(params), _texts(frame, text["name"])
    tokens, losses, right = score(texts, text, logits).T if texts else np.empty((3, 0))
    found = pd.DataFrame(
        {
            "tokens": tokens.astype(np.int64),
            "loss": losses / np.maximum(tokens, 1),
            "accuracy": right / np.maximum(tokens, 1),
        },
        index=frame.index,
    )
    if how.max_new_tokens:
        found["completion"] = complete(texts, text, logits, how)
    return found


def _texts(frame: pd.DataFrame, name: str) -> list[str]:
    """Return the column's texts; refuse anything else with its rows."""
    import pandas as pd

    if name not in frame.columns:
        raise ValueError(f"missing column: {name!r}")
    column = frame[name]
    if isinstance(column, pd.DataFrame):
        raise ValueError(f"column given twice: {name!r}; keep one")
    values: list[Any] = column.tolist()
    bad = [
        label
        for label, value in zip(frame.index, values, strict=True)
        if not (isinstance(value, str) and _is_text(value))
    ]
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
        raise ValueError(
            f"column {name!r}: expected text in every row, got something else in {len(bad)} rows"
            f" (index {shown}); fill or leave out those rows"
        )
    return values


def _is_text(value: str) -> bool:
    """Return True if the characters can be written as UTF-8: half a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
