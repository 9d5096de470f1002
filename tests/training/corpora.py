"""Small corpora for tests: made-up documents, prepared by the real functions, and weights
for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch

from schemas.config import Declaration
from schemas.records import RunSpec, SplitTables, ValidatedTable
from tests.training.data.chain import declared, split_of, write_table
from training.data.arrays.shards import materialise
from training.data.fit.normalize import fit
from training.models.build import build_model

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "ran", "off", "again", "Über", "naïve")
SMALL: dict[str, Any] = {
    "kind": "causal_transformer",
    "width": 16,
    "depth": 2,
    "heads": 2,
    "dropout": 0.0,
}
SPLIT = {"kind": "random", "fractions": {"train": 0.6, "val": 0.2, "test": 0.2}}


class Corpus(NamedTuple):
    """Documents that were split, and a run over their sequences."""

    declaration: Declaration
    run: RunSpec
    split: SplitTables
    validated: ValidatedTable

    def texts(self, side: str) -> list[str]:
        """The documents of a side, in the order of its table."""
        found: list[str] = pq.read_table(self.split.side(side).file.path).column("text").to_pylist()  # type: ignore[arg-type]
        return found


def made_up(documents: int, seed: int = 0, longest: int = 30) -> list[str]:
    """Sentences of few words, from a handful of letters to a few hundred."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(WORDS, rng.integers(1, longest))) + f" {number}."
        for number in range(documents)
    ]


def make_corpus(
    folder: Path,
    texts: Sequence[str | None] | None = None,
    tokens: Mapping[str, Any] | None = None,
    columns: Mapping[str, Any] | None = None,
    more: Mapping[str, Sequence[Any]] | None = None,
    **sections: Any,
) -> Corpus:
    """Documents through validation, split, fit and materialising.

    Args:
        folder: gets all files.
        texts: the documents; default 60 made-up ones.
        tokens: the section, over a context of 32 and no samples.
        columns: roles of further columns.
        more: further columns.
        sections: of the declaration.
    """
    documents = made_up(60) if texts is None else list(texts)
    table = {
        "doc": [f"d{number:04d}" for number in range(len(documents))],
        "text": documents,
        **(more or {}),
    }
    roles = {"doc": "id", "text": "text", **(columns or {})}
    given = {
        "model": SMALL,
        "train": {"epochs": 2, "batch_size": 8},
        "evaluate": {"bootstrap": 20},
        "split": SPLIT,
        **sections,
    }
    declaration = declared(
        write_table(folder / "rows.parquet", table),
        roles,
        "causal_lm",
        tokens={"context": 32, "samples": 0, **(tokens or {})},
        **given,
    )
    validated, split = split_of(declaration, folder / "sides")
    statistics = fit(split.train, validated.spec, declaration)
    arrays = materialise(split, validated, statistics, declaration, folder / "arrays")
    tree = declaration.model_dump(mode="json", by_alias=True)
    run = RunSpec(
        run_id="corpus",
        name=declaration.name,
        declaration=tree,
        spec=validated.spec,
        statistics=statistics,
        arrays=arrays,
    )
    return Corpus(declaration, run, split, validated)


def random_weights(corpus: Corpus, path: Path, seed: int = 0) -> Path:
    """A state dict far from its careful start, so that tokens and places matter."""
    network = build_model(corpus.declaration, corpus.run.statistics)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    torch.save(network.state_dict(), path)
    return path
