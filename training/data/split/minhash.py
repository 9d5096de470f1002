"""MinHash of texts: edited copies of a long text almost surely share a band; other texts do not.

A text is the set of its substrings of five bytes. Each of 64 hash functions keeps its least value
over the set; two texts agree in one with probability J, their Jaccard similarity. Eight bands of
eight values: some band agrees with probability 1 - (1 - J^8)^8, which is 0.99 at J = 0.9, 0.77 at
0.8, 0.03 at 0.5 and below 1e-4 at 0.25.

Shapes: N texts, B = 8 bands.

Source: Broder 1997, On the resemblance and containment of documents; Leskovec, Rajaraman and
Ullman, Mining of Massive Datasets, ch. 3.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SHINGLE_BYTES, BANDS, ROWS_OF_BAND = 5, 8, 8
CHUNK_BYTES = 1 << 21  # of text at once; needs some arrays of eight bytes per byte of text


def band_hashes(texts: pa.Array) -> np.ndarray:
    """Hash each band of each text, uint64 [N, B]; equal on every machine and in every run.

    Args:
        texts: strings of at least five bytes, without nulls.
    """
    values = texts.cast(pa.large_string())
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int64)[
        values.offset : values.offset + len(values) + 1
    ]
    if len(values) and int(np.diff(offsets).min()) < SHINGLE_BYTES:
        raise ValueError(f"expected texts of at least {SHINGLE_BYTES} bytes")
    data = (
        np.frombuffer(values.buffers()[2], dtype=np.uint8) if len(values) else np.empty(0, np.uint8)
    )
    found = np.empty((len(values), BANDS), dtype=np.uint64)
    first = 0
    while first < len(values):
        last = max(
            first + 1, int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES, side="right")) - 1
        )
        found[first:last] = _bands(
            data[offsets[first] : offsets[last]], offsets[first : last + 1] - offsets[first]
        )
        first = last
    return found


def _bands(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return bands [N, B] of the texts that lie between offsets [N + 1] in data (bytes)."""
    lengths = np.diff(offsets) - SHINGLE_BYTES + 1  # substrings of each text
    starts = np.concatenate([[0], np.cumsum(lengths)])
    within = (
        np.arange(starts[-1]) - np.repeat(starts[:-1], lengths) + np.repeat(offsets[:-1], lengths)
    )
    shingles = np.zeros(len(within), dtype=np.uint64)
    for place in range(SHINGLE_BYTES):
        shingles |= data[within + place].astype(np.uint64) << np.uint64(8 * place)
    shingles = _mixed(shingles)
    factors, terms = _functions()
    bands = np.zeros((len(lengths), BANDS), dtype=np.uint64)
    for number in range(BANDS * ROWS_OF_BAND):
        least = np.minimum.reduceat(shingles * factors[number] + terms[number], starts[:-1])
        band = number // ROWS_OF_BAND
        bands[:, band] = _mixed(bands[:, band] ^ least)
    return bands


def _functions() -> tuple[np.ndarray, np.ndarray]:
    """Return odd factors and terms of the hash functions, uint64 [64] each.

    They are fixed numbers, so that a text always has the same bands.
    """
    numbers = _mixed(np.arange(1, 2 * BANDS * ROWS_OF_BAND + 1, dtype=np.uint64))
    return numbers[::2] | np.uint64(1), numbers[1::2]


def _mixed(values: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64: every bit of the input changes half of the output bits.

    Source: Steele, Lea and Flood 2014.
    """
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
