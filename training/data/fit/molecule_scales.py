"""Scales and vocabularies of molecules, from train rows. Called by `normalize.fit` alone.

N rows, D descriptors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from schemas.smiles_config import FingerprintEncoder, SmilesConfig
from schemas.statistics import MoleculeStats, TensorStats
from training.data.engine.batches import arrow_batches
from training.data.fit.train_rows import TrainRows
from training.data.serving_expressions import molecules as made

BATCH_ROWS = 4096
READ_WHOLE = 0.99  # least share of train rows that are read to their end
MOST_TOKENS = 253  # codes 0 and 1 are filling and unknown, and a code is one byte
DEVIATION = 1.3489795003921634  # quartile distance of a normal distribution with deviation 1


class Found(NamedTuple):
    """What one pass over a train column counted; `described` is float64 [N, D]."""

    sizes: Counter[int]
    tokens: Counter[str]
    described: np.ndarray
    nulls: int
    unread: int


def fit_molecules(train: TrainRows) -> tuple[list[TensorStats], dict[str, str]]:
    """Return the arrays of each column of molecules, and the reason for each useless one."""
    fitted, dropped = list[TensorStats](), dict[str, str]()
    for name, kind in train.spec.bags.items():
        if kind != "smiles":
            continue
        declared = train.declaration.data.column(name)
        config = (declared and declared.smiles) or SmilesConfig()
        encoder = (declared and declared.encoder) or FingerprintEncoder()
        found = _counted(train, name, encoder.kind, config)
        if found.nulls == train.rows:
            dropped[name] = "all null"
        own: dict[str, Any] = {
            "column": name,
            "radius": config.radius,
            "counts": config.counts,
            "invalid": config.invalid,
            "nulls": found.nulls,
            "unread": found.unread,
        }
        fitted.append(_encoded(name, encoder, found, own, config.length))
        if config.descriptors:
            fitted.append(_described(name, found, own))
    return fitted, dropped


def _encoded(
    name: str, encoder: Any, found: Found, own: dict[str, Any], length: int
) -> TensorStats:
    """Return the array that an encoder reads."""
    sizes = sorted(found.sizes) or [1]
    shares = np.cumsum([found.sizes[size] for size in sizes]) / max(1, found.sizes.total())
    # the place of 99 % of the rows; the last one where the sum is just below 1
    place = min(int(np.searchsorted(shares, READ_WHOLE)), len(sizes) - 1)
    length = max(1, min(length, sizes[place]))
    own = own | {"cut": sum(n for size, n in found.sizes.items() if size > length)}
    of, values, shape = "bits", tuple[str, ...](), made.BITS
    if encoder.kind == "graph":
        of, shape = "graph", made.PACKED + made.WIDTH * length
    elif encoder.kind == "transformer":
        often = sorted(found.tokens.items(), key=lambda item: (-item[1], item[0]))
        of, shape = "tokens", made.PACKED + length
        values = tuple(token for token, n in often if n > 1)[:MOST_TOKENS]
    return TensorStats(
        name=name,
        shape=(shape,),
        dtype="uint8",
        mean=(0.0,),
        std=(1.0,),
        encoder=encoder,
        molecule=MoleculeStats(of=of, values=values, **own),
    )


def _described(name: str, found: Found, own: dict[str, Any]) -> TensorStats:
    """Return the array of descriptors: median and quartiles of train, a column for null if any."""
    # in their order, so that sums do not depend on that of the rows
    values = np.sort(found.described, axis=0)
    low, center, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    scale = (high - low) / DEVIATION
    scale = np.where(scale > 0, scale, values.std(axis=0))
    scale = np.where(scale > 1e-9 * np.maximum(1.0, abs(center)), scale, 1.0)
    return TensorStats(
        name=f"{name}.descriptors",
        shape=(len(made.DESCRIPTORS) + (found.nulls > 0),),
        dtype="float32",
        mean=(0.0,),
        std=(1.0,),
        molecule=MoleculeStats(
            of="descriptors", center=tuple(center.tolist()), scale=tuple(scale.tolist()), **own
        ),
    )


def _counted(train: TrainRows, name: str, encoder: str, config: SmilesConfig) -> Found:
    sizes, tokens = Counter[int](), Counter[str]()
    described, nulls, unread = list[np.ndarray](), 0, 0
    for text in _texts(train, name):
        found = None if text is None else made.molecule(text)
        if found is None:
            nulls += 1
            unread += text is not None
            continue
        if encoder == "graph":
            sizes[found.GetNumAtoms()] += 1
        elif encoder == "transformer":
            own = made.tokens(found)
            sizes[len(own)] += 1
            tokens.update(set(own))
        if config.descriptors:
            described.append(made.descriptors(found))
    block = np.stack(described) if described else np.zeros((1, len(made.DESCRIPTORS)))
    return Found(sizes, tokens, block, nulls, unread)


def _texts(train: TrainRows, name: str) -> Iterator[str | None]:
    for batch in arrow_batches(train.path, BATCH_ROWS, [name]):
        yield from batch.column(0).to_pylist()
