"""Texts that a network makes up.

V tokens of the vocabulary, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from schemas.config import TokensConfig
from schemas.records import SampleReport, SplitArrays, TokenStats
from training.chemistry import molecule_figures
from training.data.serving_text import Sampling, complete, decode
from training.data.serving_text.scoring import Logits
from training.data.shards import load_arrays
from training.token_scoring import places


def logits_of(network: nn.Module) -> Logits:
    """The network as a function of NumPy arrays: tokens int64 [b, t] of one window a row → logits float64 [b, t, V]."""

    def logits(tokens: np.ndarray) -> np.ndarray:
        given = torch.from_numpy(tokens)
        with torch.inference_mode():
            return np.asarray(network({"tokens": given, "segments": torch.ones_like(given)}).double().numpy())

    return logits


def make_samples(network: nn.Module, tokens: TokenStats, config: TokensConfig, seed: int, train: SplitArrays) -> SampleReport:
    """Texts begun from nothing, at temperature 1; of SMILES with the shares of valid, unique and novel molecules.

    Args:
        network: in eval mode, on the CPU.
        tokens: the vocabulary.
        config: how many, and how long.
        seed: the same seed gives the same texts.
        train: what novel molecules are not among.
    """
    made = complete([""] * config.samples, tokens.model_dump(), logits_of(network), Sampling(config.sample_tokens, seed=seed))
    figures, note = molecule_figures(made, lambda: documents_of(train, tokens)) if tokens.tokenizer == "smiles" and made else ({}, "")
    return SampleReport(texts=tuple(made), seed=seed, molecules=figures, note=note)


def documents_of(side: SplitArrays, tokens: TokenStats) -> Iterator[str]:
    """The texts of the train side, in the order of its table, read back from its sequences; unknown tokens read as the replacement character."""
    arrays, where, vocabulary = load_arrays(side), places(side), tokens.model_dump()
    inside = arrays["segments"] > 0
    window = (where.first[:, None] + arrays["segments"] - 1)[inside]
    order = np.lexsort((np.arange(len(window)), where.start[window], where.document[window]))
    owner = where.document[window][order]
    parts = np.split(arrays["label"][inside][order], np.flatnonzero(np.diff(owner)) + 1)
    yield from (decode(part.tolist(), vocabulary) for part in parts)


def sample_text(text: dict[str, Any], logits: Logits, prompt: str, count: int, how: Sampling) -> list[str]:
    """The prompt `count` times, each with a continuation of its own."""
    return [prompt + end for end in complete([prompt] * count, text, logits, how)]
