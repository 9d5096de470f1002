"""Evaluation of a language model: documents with their sums, facts of the split, generated texts. D
documents.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import digest
from schemas.errors import IntegrityError
from schemas.records import FileRef, SplitArrays
from training.engine.token_scoring import Documents


def read_documents(arrays: SplitArrays) -> pd.DataFrame:
    """Return a split's documents in the order of its table.

    Columns: `__id`, `__group`, `tokens`, `characters` and `unknown`.

    Raises:
        IntegrityError: the split has no documents, or their file was changed.
    """
    if arrays.documents is None:
        raise IntegrityError(
            f"{arrays.ids.path}: expected a side made of documents; prepare the data again"
        )
    columns = ["__id", "__group", "tokens", "characters", "unknown"]
    return pq.read_table(digest.verify(arrays.documents), columns=columns).to_pandas(
        types_mapper=pd.ArrowDtype
    )


def text_facts(documents: pd.DataFrame) -> dict[str, float]:
    """Count documents, tokens, characters and tokens unknown to train in the scored split."""
    totals = {
        f"{name} tokens" if name == "unknown" else name: float(documents[name].sum())
        for name in ("tokens", "characters", "unknown")
    }
    return {
        "documents": float(len(documents)),
        **totals,
        "tokens by document": totals["tokens"] / len(documents),
    }


def write_losses(path: Path, documents: pd.DataFrame, scored: Documents) -> FileRef:
    """Write the losses of documents as Parquet, completely or not at all. Columns: `__id`,
    `__group`, `tokens`, `characters`, `loss` (nats per token) and `accuracy`.
    """
    columns = {
        name: pa.array(documents[name]) for name in ("__id", "__group", "tokens", "characters")
    }
    columns |= dict(
        zip(
            ("loss", "accuracy"),
            map(pa.array, (scored.predictions / scored.targets[:, :1]).T),
            strict=True,
        )
    )
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return digest.write_atomic(path, buffer.getvalue())


def sums_of(losses: pd.DataFrame) -> np.ndarray:
    """Return loss sums and correctly predicted tokens, float64 [D, 2].

    They come from `tokens`, `loss` and `accuracy` of each document.
    """
    tokens = losses["tokens"].to_numpy(dtype=np.float64)
    return np.stack(
        [
            losses["loss"].to_numpy(dtype=np.float64) * tokens,
            losses["accuracy"].to_numpy(dtype=np.float64) * tokens,
        ],
        axis=1,
    )
