"""Scores of a language model on a split: sums over tokens; logits are not kept.

N sequences of T positions, D documents, V tokens of the vocabulary. Losses are in nats.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from schemas import digest
from schemas.errors import IntegrityError
from schemas.records import SplitArrays
from training.data.arrays.sequences import NO_TARGET
from training.data.arrays.shards import load_arrays
from training.engine.scoring import require_finite
from training.models.token_network import KEYS

LOGITS_PER_CALL = 2**23  # most float64 values in memory at a time


class TokenScorer(nn.Module):
    """Network with its loss: batch of tokens, segments and label → [B, 3], the sum of losses, the
    number of targets, and the correctly predicted ones.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return sums over the targets of each row, [B, 3]."""
        losses, right = token_losses(
            self.network({name: batch[name] for name in KEYS}), batch["label"]
        )
        targets = (batch["label"] != NO_TARGET).to(losses.dtype)
        return torch.stack([losses.sum(1), targets.sum(1), right.to(losses.dtype).sum(1)], dim=1)


def token_losses(scores: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each target [B, T] (0 without target) and if its logit is the largest,
    from logits [B, T, V].
    """
    losses = nn.functional.cross_entropy(
        scores.flatten(0, 1), label.flatten().long(), reduction="none", ignore_index=NO_TARGET
    )
    return losses.view_as(label), scores.argmax(2) == label


class Documents(NamedTuple):
    """Documents of a split in the order of its table, with the sums of their scores.

    `predictions` float64 [D, 2]: sum of losses, correctly predicted tokens. `targets` float64 [D,
    2]: tokens (with the end token), characters. `weight` [D] or None.
    """

    predictions: np.ndarray
    targets: np.ndarray
    weight: np.ndarray | None


class Places(NamedTuple):
    """Positions of documents in the sequences of a split.

    `document` int64 [windows]: document of each window, in the order of rows and segments; `start`:
    its first input in that document. `first` window of each row [N].
    """

    document: np.ndarray
    start: np.ndarray
    first: np.ndarray

    def of(self, rows: slice | np.ndarray, segments: np.ndarray) -> np.ndarray:
        """Return the document of each position of some rows, from their segments [b, T].

        Where the segment is 0 (padding), it is an arbitrary document.
        """
        return np.asarray(self.document[np.maximum(self.first[rows][:, None] + segments - 1, 0)])

    def rows_of(self, documents: int) -> np.ndarray:
        """Return the rows that contain a window of the first `documents` documents."""
        row = (
            np.searchsorted(self.first, np.flatnonzero(self.document < documents), side="right") - 1
        )
        return np.unique(row)


def places(arrays: SplitArrays) -> Places:
    """Read document positions from the ids of a split.

    Raises:
        IntegrityError: the file was changed.
    """
    table = pq.read_table(digest.verify(arrays.ids), columns=["documents", "starts"])
    lists = {name: table.column(name).combine_chunks() for name in table.column_names}
    document, start = (
        np.asarray(column.flatten().to_numpy(), dtype=np.int64) for column in lists.values()
    )
    return Places(
        document,
        start,
        first=np.asarray(lists["documents"].offsets.to_numpy(), dtype=np.int64)[:-1],
    )


def document_facts(arrays: SplitArrays) -> tuple[np.ndarray, np.ndarray | None]:
    """Return tokens and characters of each document float64 [D, 2], and their weights [D] if any.

    Raises:
        IntegrityError: the split has no documents, or their file was changed.
    """
    if arrays.documents is None:
        raise IntegrityError(
            f"{arrays.ids.path}: expected a side made of documents; prepare the data again"
        )
    table = pq.read_table(digest.verify(arrays.documents))
    targets = np.stack(
        [table.column(name).to_numpy() for name in ("tokens", "characters")], axis=1
    ).astype(np.float64)
    return targets, table.column("weight").to_numpy() if "weight" in table.column_names else None


def score_documents(
    network: nn.Module, arrays: SplitArrays, documents: int | None = None
) -> Documents:
    """Sum the scores of every document of a split, each target once; the network is on the CPU.

    Args:
        network: the network, in eval mode.
        arrays: the split; each file's digest is compared first.
        documents: use only the first `documents`; default all.

    Raises:
        IntegrityError: an array was changed, or targets of a document are missing.
        NonFiniteError: losses are not finite; the message names the first documents.
    """
    targets, weight = document_facts(arrays)
    count = min(len(targets), documents or len(targets))
    found, where = load_arrays(arrays), places(arrays)
    blocks = {name: found[name] for name in (*KEYS, "label")}
    sums, by_row, chosen = (
        np.zeros((len(targets), 3)),
        np.zeros((arrays.rows, 1)),
        where.rows_of(count),
    )
    step = _rows_per_call(network, blocks)
    for start in range(0, len(chosen), step):
        rows = chosen[start : start + step]
        batch = {name: torch.from_numpy(np.array(block[rows])) for name, block in blocks.items()}
        with torch.inference_mode():
            losses, right = token_losses(
                network({name: batch[name] for name in KEYS}).double(), batch["label"]
            )
        by_row[rows] = losses.sum(1, keepdim=True).numpy()
        asked = (batch["label"] != NO_TARGET).numpy()
        document = where.of(rows, batch["segments"].numpy())[asked]
        for column, values in enumerate((losses.numpy(), right.numpy(), asked)):
            sums[:, column] += np.bincount(document, weights=values[asked], minlength=len(targets))
    require_finite(by_row, arrays)
    wrong = int((sums[:count, 2] != targets[:count, 0]).sum())
    if wrong:
        raise IntegrityError(
            f"{arrays.ids.path}: {wrong} documents have other targets than recorded; prepare the"
            " data again"
        )
    return Documents(sums[:count, :2], targets[:count], None if weight is None else weight[:count])


def _rows_per_call(network: nn.Module, blocks: dict[str, np.ndarray]) -> int:
    """Return the number of sequences whose logits fit the limit."""
    context, outputs = blocks["tokens"].shape[1], network.shape.outputs
    return int(max(1, LOGITS_PER_CALL // (context * (outputs + context))))
