"""Sampling: continue texts token by token from a program's logits.

Every text draws from its own stream, by seed and number: the result does not depend on other texts.
All of a text's last `context` tokens go through the program for each new token; nothing is kept
between tokens.

b texts, t positions, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .scoring import VALUES, Logits
from .tokenizers import BEGIN, END, PAD, UNKNOWN, decode, encode

NEVER = (PAD, BEGIN, UNKNOWN)  # special tokens that never continue a text


class Sampling(NamedTuple):
    """Settings of a continuation.

    At most `max_new_tokens`; logits divided by `temperature` (0: always the likeliest token); only
    the `top_k` likeliest (0: all).
    """

    max_new_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    seed: int = 0


def sampling(params: Mapping[str, Any] | None) -> Sampling:
    """Return the checked parameters of a request.

    Raises:
        ValueError: an unknown parameter, or an invalid value.
    """
    given = dict(params or {})
    unknown = sorted(given.keys() - set(Sampling._fields))
    if unknown:
        raise ValueError(
            f"unknown parameter {unknown[0]!r}; expected some of {', '.join(Sampling._fields)}"
        )
    found = Sampling(**given)
    for name, value in found._asdict().items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | np.number)
            or not 0 <= value < float("inf")
            or (name != "temperature" and value != int(value))
        ):
            raise ValueError(
                f"{name}: expected {'a' if name == 'temperature' else 'a whole'} number of at least"
                f" 0, got {value!r}"
            )
    return Sampling(
        int(found.max_new_tokens), float(found.temperature), int(found.top_k), int(found.seed)
    )


def complete(
    prompts: Sequence[str], text: Mapping[str, Any], logits: Logits, how: Sampling
) -> list[str]:
    """Continue each prompt up to the end that the model sets or `max_new_tokens`.

    The prompt itself is not repeated.

    Args:
        prompts: beginnings of documents; they may be empty.
        text: of the model's spec: tokenizer, values, context.
        logits: the program.
        how: see `Sampling`.
    """
    numbers, lengths = encode(prompts, text)
    known = (
        [[BEGIN, *part.tolist()] for part in np.split(numbers, np.cumsum(lengths)[:-1])]
        if len(prompts)
        else []
    )
    begun = [len(part) for part in known]
    draws = (
        np.stack([_stream(how.seed, row).random(how.max_new_tokens) for row in range(len(known))])
        if known
        else np.empty((0, 0))
    )
    going = np.arange(len(known))
    for step in range(how.max_new_tokens):
        if not len(going):
            break
        chosen = choose(
            _last_logits(
                [known[row][-text["context"] :] for row in going], logits, len(text["values"])
            ),
            draws[going, step],
            how,
        )
        for row, token in zip(going.tolist(), chosen.tolist(), strict=True):
            known[row].append(token)
        going = going[chosen != END]
    return [decode(part[start:], text) for part, start in zip(known, begun, strict=True)]


def _stream(seed: int, row: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed, row], dtype=np.uint64)))


def choose(logits: np.ndarray, draws: np.ndarray, how: Sampling) -> np.ndarray:
    """Return the next token of each row, int64 [b], from logits [b, V] and uniform draws [b].

    It is the inverse of the cumulative probabilities.

    >>> choose(np.array([[0.0, 0, 9, 9, 1, 2]]), np.array([0.5]), Sampling(temperature=0)).tolist()
    [2]
    """
    logits = logits.copy()
    logits[:, NEVER] = -np.inf
    if how.temperature == 0:
        return np.asarray(logits.argmax(1))
    if 0 < how.top_k < logits.shape[1]:
        logits[logits < np.partition(logits, -how.top_k, axis=1)[:, [-how.top_k]]] = -np.inf
    shares = np.exp((logits - logits.max(1, keepdims=True)) / how.temperature).cumsum(1)
    return np.asarray((shares <= (draws * shares[:, -1])[:, None]).sum(1))


def _last_logits(known: list[list[int]], logits: Logits, vocabulary: int) -> np.ndarray:
    """Return logits after the last token of each row, [b, V], in calls of bounded size.

    Rows are padded at the end.
    """
    longest = max(map(len, known))
    tokens = np.full((len(known), max(2, longest)), PAD, dtype=np.int64)
    for row, part in enumerate(known):
        tokens[row, : len(part)] = part
    last = np.array([len(part) - 1 for part in known])
    step = max(1, VALUES // (longest * (vocabulary + longest)))
    parts = [
        logits(tokens[at : at + step])[np.arange(len(last[at : at + step])), last[at : at + step]]
        for at in range(0, len(known), step)
    ]
    return np.concatenate(parts)
