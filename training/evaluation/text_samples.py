"""Text generation with a network. V tokens of the vocabulary, T positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from schemas import digest
from schemas.config import TokensConfig
from schemas.errors import ConfigError
from schemas.records import SampleReport, SplitArrays, TokenStats
from training.data.arrays.shards import load_arrays
from training.data.serving_text import Sampling, complete, decode
from training.data.serving_text.scoring import Logits
from training.engine.token_scoring import places
from training.evaluation.chemistry import molecule_figures
from training.run.result_files import read_run
from training.serving.reference_network import reference_network


def logits_of(network: nn.Module) -> Logits:
    """Return the network as a function of NumPy arrays: int64 [b, t] → logits float64 [b, t, V].
    Each row of tokens is one window.
    """

    def logits(tokens: np.ndarray) -> np.ndarray:
        given = torch.from_numpy(tokens)
        with torch.inference_mode():
            return np.asarray(
                network({"tokens": given, "segments": torch.ones_like(given)}).double().numpy()
            )

    return logits


def make_samples(
    network: nn.Module, tokens: TokenStats, config: TokensConfig, seed: int, train: SplitArrays
) -> SampleReport:
    """Generate texts without a prompt, at temperature 1.

    For SMILES also return the fractions of valid, unique and novel molecules.

    Args:
        network: in eval mode, on the CPU.
        tokens: the vocabulary.
        config: number and length of the texts.
        seed: the same seed gives the same texts.
        train: train texts; novel molecules are not among them.
    """
    how = Sampling(config.sample_tokens, seed=seed)
    return sampled(
        tokens.model_dump(),
        logits_of(network),
        "",
        config.samples,
        how,
        lambda: documents_of(train, tokens),
    )


def documents_of(side: SplitArrays, tokens: TokenStats) -> Iterator[str]:
    """Return the train texts in the order of the table, decoded from its sequences.

    Unknown tokens become the replacement character.
    """
    arrays, where, vocabulary = load_arrays(side), places(side), tokens.model_dump()
    inside = arrays["segments"] > 0
    window = (where.first[:, None] + arrays["segments"] - 1)[inside]
    order = np.lexsort((np.arange(len(window)), where.start[window], where.document[window]))
    owner = where.document[window][order]
    parts = np.split(arrays["label"][inside][order], np.flatnonzero(np.diff(owner)) + 1)
    yield from (decode(part.tolist(), vocabulary) for part in parts)


def sample_run(run_dir: Path, prompt: str, count: int, how: Sampling) -> SampleReport:
    """Generate texts with the best weights of a finished training; see `sampled`.

    Raises:
        ConfigError: the folder is not a run directory, its training did not finish, or it trained
            no language model.
        IntegrityError: the weights were changed.
    """
    run, trained = read_run(run_dir)
    tokens = run.statistics.tokens
    if tokens is None:
        raise ConfigError(
            f"{run_dir}: expected a run of a language model (task.kind: causal_lm), this one"
            f" predicts {run.spec.label!r}"
        )
    logits = logits_of(reference_network(run, digest.verify(trained.best_checkpoint)))
    return sampled(
        tokens.model_dump(),
        logits,
        prompt,
        count,
        how,
        lambda: documents_of(run.arrays.train, tokens),
    )


def sampled(
    text: Mapping[str, Any],
    logits: Logits,
    prompt: str,
    count: int,
    how: Sampling,
    train: Callable[[], Iterable[str]] | None,
) -> SampleReport:
    """Return the prompt `count` times, each with its own continuation.

    For SMILES also return the fractions of valid, unique and novel molecules.

    Args:
        text: tokenizer, values and context.
        logits: the network or program.
        prompt: beginning of every text.
        count: number of texts.
        how: length, temperature, seed.
        train: returns the train texts, which contain no novel molecules; None if not available.
    """
    made = [prompt + end for end in complete([prompt] * count, text, logits, how)]
    figures, note = (
        molecule_figures(made, train) if text["tokenizer"] == "smiles" and made else ({}, "")
    )
    return SampleReport(texts=tuple(made), seed=how.seed, molecules=figures, note=note)
