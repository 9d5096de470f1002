"""Pieces of texts and sets that train rows have often enough. Called by `normalize.fit` alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from schemas.bag_config import BagConfig
from schemas.statistics import BagStats
from training.data.engine.batches import arrow_batches
from training.data.fit.train_rows import TrainRows
from training.data.serving_expressions.bag_codes import OF_LISTS, pieces, sequence

BATCH_ROWS = 4096
READ_WHOLE = 0.99  # least share of train rows of which every known piece is read


def fit_bags(train: TrainRows) -> tuple[list[BagStats], dict[str, str]]:
    """Return the statistics of each text and set, and the reason for each useless one.

    Pieces are ordered by their number of rows, then by text: the same for any order of the rows.
    """
    fitted, dropped = [], {}
    for name, kind in train.spec.bags.items():
        if kind == "smiles":
            continue
        declared = train.declaration.data.column(name)
        config = (declared and declared.bag) or BagConfig()
        separator = None
        if kind == "set":
            separator = (declared and declared.separator) or OF_LISTS
        rule: dict[str, Any] = {
            "separator": separator,
            "unit": config.unit,
            "ngrams": config.lengths,
        }
        encoder = declared and declared.encoder
        if encoder is not None:
            rule |= {"ngrams": (1, 1), "ordered": True}
        found = _fit(train, name, rule, config, encoder)
        if not found.values:
            rare = f"nothing in it occurs in {config.min_count} train rows"
            dropped[name] = "all null" if found.nulls == train.rows else rare
        fitted.append(found)
    return fitted, dropped


def _fit(
    train: TrainRows, name: str, rule: dict[str, Any], config: BagConfig, encoder: Any
) -> BagStats:
    counts: Counter[str] = Counter()
    nulls = 0
    for text in _texts(train, name):
        if text is None:
            nulls += 1
        else:
            counts.update(set(sequence(text, rule)) if encoder else pieces(text, rule))
    often = sorted(
        ((piece, n) for piece, n in counts.items() if n >= config.min_count),
        key=lambda item: (-item[1], item[0].encode("utf-8", "surrogatepass")),
    )[: config.most]
    length, unknown_rows = _lengths(train, name, rule, {piece for piece, _ in often})
    return BagStats(
        name=name,
        **{key: rule[key] for key in ("separator", "unit", "ngrams")},
        values=tuple(piece for piece, _ in often),
        counts=tuple(n for _, n in often),
        nulls=nulls,
        unknown_rows=unknown_rows,
        length=max(1, min(config.length, length)),
        size=encoder.size if encoder else config.size,
        combine=config.combine,
        encoder=encoder,
    )


def _lengths(train: TrainRows, name: str, rule: dict[str, Any], known: set[str]) -> tuple[int, int]:
    """Return the most known pieces of nearly every row, and the rows with unknown pieces."""
    lengths, unknown = Counter[int](), 0
    for text in _texts(train, name):
        found = (sequence if "ordered" in rule else pieces)(text or "", rule)
        own = sum(piece in known for piece in found)
        lengths[len(found) if "ordered" in rule else own] += 1
        unknown += own < len(found)
    sizes = sorted(lengths)
    shares = np.cumsum([lengths[size] for size in sizes]) / max(1, lengths.total())
    return sizes[int(np.searchsorted(shares, READ_WHOLE))], unknown


def _texts(train: TrainRows, name: str) -> Iterator[str | None]:
    for batch in arrow_batches(train.path, BATCH_ROWS, [name]):
        yield from batch.column(0).to_pylist()
