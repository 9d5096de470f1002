"""Text to tokens and back, without a loop over tokens.

D documents, M tokens of all documents together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PAD, BEGIN, END, UNKNOWN, SPECIAL = 0, 1, 2, 3, 4  # special tokens, and the first of the vocabulary
REPLACEMENT = "\ufffd"  # text of an unknown token
SEPARATOR = "\0"
NUM_CHARACTERS = 0x110000
MANY = 100_000  # least characters for which a table of all of Unicode is faster than sorting

# One token each: an atom in brackets with all its properties; the two-letter atoms that need no
# brackets; a ring closure of two or more digits; else any single character (one-letter atoms,
# aromatic atoms, bonds, branches, one-digit ring closures, the dot). So the joined tokens of any
# text are the text. Source: the grammar of the OpenSMILES specification, version 1.0,
# http://opensmiles.org/opensmiles.html, sec. 2.
SMILES = re.compile(r"\[[^\[\]\0]*\]|Br|Cl|%\(\d+\)|%\d\d|.", re.DOTALL)


class Units(NamedTuple):
    """Tokens before they are numbered.

    `codes` int64 [M] index the distinct `names`; `lengths` int64 [D] are tokens by document.
    """

    codes: np.ndarray
    names: list[str]
    lengths: np.ndarray


def units(texts: Sequence[str] | pa.Array, tokenizer: str) -> Units:
    """Return the tokens of documents in order, without loss.

    Joined again they are the text (the bytes of UTF-8 for `bytes`).

    A byte is written as the character with its number.

    >>> found = units(["CC(=O)[O-]", "ClC"], "smiles")
    >>> [found.names[code] for code in found.codes], found.lengths.tolist()
    (['C', 'C', '(', '=', 'O', ')', '[O-]', 'Cl', 'C'], [7, 2])

    Raises:
        ValueError: a SMILES with a NUL character, or an unknown tokenizer.
    """
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
    if tokenizer == "character":
        return _characters(column)
    if tokenizer == "bytes":
        return _bytes(column)
    if tokenizer == "smiles":
        return _smiles(column)
    raise ValueError(f"expected the tokenizer character, smiles or bytes, got {tokenizer!r}")


def _characters(column: pa.Array) -> Units:
    points = np.frombuffer("".join(column.to_pylist()).encode("utf-32-le"), dtype="<u4")
    if len(points) < MANY:
        present, codes = np.unique(points, return_inverse=True)
    else:
        present, places = (
            np.flatnonzero(np.bincount(points)),
            np.zeros(NUM_CHARACTERS, dtype=np.int64),
        )
        places[present] = np.arange(len(present))
        codes = places[points]
    return Units(
        codes.astype(np.int64),
        [chr(point) for point in present.tolist()],
        _integers(pc.utf8_length(column)),
    )


def _bytes(column: pa.Array) -> Units:
    codes = np.frombuffer(b"".join(column.cast(pa.large_binary()).to_pylist()), dtype=np.uint8)
    return Units(
        codes.astype(np.int64),
        [chr(byte) for byte in range(256)],
        _integers(pc.binary_length(column)),
    )


def _smiles(column: pa.Array) -> Units:
    joined = "".join(text + SEPARATOR for text in column.to_pylist())
    if joined.count(SEPARATOR) != len(column):
        raise ValueError(
            "expected SMILES without NUL characters; leave such rows out with data.filter"
        )
    encoded = pa.array(SMILES.findall(joined), pa.string()).dictionary_encode()
    codes, names = _integers(encoded.indices), encoded.dictionary.to_pylist()
    if SEPARATOR not in names:
        return Units(codes, names, np.empty(0, np.int64))
    separator = names.index(SEPARATOR)
    ends = np.flatnonzero(codes == separator)
    kept = np.delete(codes, ends)
    return Units(
        kept - (kept > separator),
        names[:separator] + names[separator + 1 :],
        np.diff(ends, prepend=-1) - 1,
    )


def _integers(values: pa.Array) -> np.ndarray:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64)


def encode(
    texts: Sequence[str] | pa.Array, vocabulary: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens int32 [M] of all documents in sequence, and tokens by document int64 [D].

    Special tokens are not added.

    Args:
        texts: without nulls.
        vocabulary: `tokenizer`, and `values` in the order of their numbers from 4 on; other tokens
            are unknown.
    """
    found = units(texts, vocabulary["tokenizer"])
    numbers = {name: SPECIAL + place for place, name in enumerate(vocabulary["values"])}
    table = np.array([numbers.get(name, UNKNOWN) for name in found.names], dtype=np.int32)
    return (table[found.codes] if len(table) else np.empty(0, np.int32)), found.lengths


def framed(numbers: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Add begin and end around each document's tokens.

    >>> framed(np.array([7, 8, 9], np.int32), np.array([2, 0, 1])).tolist()
    [1, 7, 8, 2, 1, 2, 1, 9, 2]
    """
    ends = np.cumsum(lengths + 2)
    inner = np.ones(len(numbers) + 2 * len(lengths), dtype=bool)
    inner[ends - 1] = inner[ends - lengths - 2] = False
    found = np.empty(len(inner), dtype=np.int32)
    found[ends - lengths - 2], found[ends - 1], found[inner] = BEGIN, END, numbers
    return found


def decode(tokens: Sequence[int] | np.ndarray, vocabulary: Mapping[str, Any]) -> str:
    """Return the text of tokens.

    Padding, begin and end are skipped; an unknown token becomes the replacement character.

    >>> decode([1, 5, 4, 3, 2], {"tokenizer": "character", "values": ["a", "b"]})
    'ba\ufffd'
    """
    values = vocabulary["values"]
    names = ["", "", "", REPLACEMENT, *values]
    if vocabulary["tokenizer"] != "bytes":
        return "".join(names[token] for token in tokens)
    replaced = REPLACEMENT.encode()
    parts = [
        (
            b""
            if token < UNKNOWN
            else replaced
            if token == UNKNOWN
            else bytes([ord(values[token - SPECIAL])])
        )
        for token in tokens
    ]
    return b"".join(parts).decode("utf-8", errors="replace")
