"""D8: clusters of shared keys, and MinHash, against counting by hand."""

from __future__ import annotations

import itertools
import random
import string

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.split.clusters import least_connected, representatives
from training.data.split.minhash import BANDS, band_hashes


def united(edges: list[tuple[int, int]], num_keys: int) -> list[int]:
    """Least key of each key's cluster, by merging sets."""
    sets = [{k} for k in range(num_keys)]
    for row in {r for r, _ in edges}:
        keys = {k for r, k in edges if r == row}
        merged = set().union(*(s for s in sets if s & keys))
        sets = [s for s in sets if not s & keys] + [merged]
    return [min(next(s for s in sets if k in s)) for k in range(num_keys)]


EDGES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30)


def arrays(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    numbers = {r: i for i, r in enumerate(sorted({r for r, _ in edges}))}
    return np.array([numbers[r] for r, _ in edges], dtype=np.int64), np.array(
        [k for _, k in edges], dtype=np.int64
    )


@pytest.mark.req("D8")
@settings(max_examples=300, deadline=None)
@given(EDGES)
def test_clusters_are_what_merging_sets_gives(edges: list[tuple[int, int]]) -> None:
    assert least_connected(*arrays(edges), 12).tolist() == united(edges, 12)


@pytest.mark.req("D8")
@settings(max_examples=200, deadline=None)
@given(EDGES, st.sets(st.integers(0, 11)))
def test_known_keys_keep_themselves_and_new_ones_join_a_known_one_of_their_cluster(
    edges: list[tuple[int, int]], known: set[int]
) -> None:
    found = representatives(*arrays(edges), np.array([k in known for k in range(12)]))
    cluster = united(edges, 12)
    for key in range(12):
        mine = [k for k in sorted(known) if cluster[k] == cluster[key]]
        assert found[key] == (key if key in known else mine[0] if mine else cluster[key])


@pytest.mark.long
@pytest.mark.req("D8")
def test_a_chain_of_a_million_keys_is_one_cluster() -> None:
    rows = np.repeat(np.arange(999_999), 2)
    keys = np.random.default_rng(0).permutation(1_000_000)[np.repeat(np.arange(1_000_000), 2)[1:-1]]
    assert not least_connected(rows, keys, 1_000_000).any()


def shared(one: str, other: str) -> int:
    first, second = band_hashes(pa.array([one, other]))
    return int((first == second).sum())


@pytest.mark.req("D8")
def test_edited_texts_share_a_band_and_unrelated_ones_do_not() -> None:
    draw = random.Random(5)
    words = [
        "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9))) for _ in range(400)
    ]
    texts = [" ".join(draw.choices(words, k=30)) for _ in range(300)]
    edited = []
    for text in texts:
        parts = text.split()
        parts[draw.randrange(30)] = "changed"
        edited.append(" ".join(parts))
    near = sum(shared(a, b) > 0 for a, b in zip(texts, edited, strict=True))
    far = sum(shared(a, b) > 0 for a, b in itertools.pairwise(texts))
    assert near >= 290 and far == 0


@pytest.mark.req("D8")
def test_bands_depend_on_the_text_alone_and_never_change() -> None:
    texts = [f"a text of some length, number {i}, with ü and 漢字" for i in range(500)]
    found = band_hashes(pa.array(texts))
    assert found.shape == (500, BANDS)
    assert (band_hashes(pa.array(texts[::-1]))[::-1] == found).all() and (
        band_hashes(pa.array(texts)[100:200]) == found[100:200]
    ).all()
    assert int(found[0, 0]) == 10727534140337553356  # frozen ledgers rest on it
    with pytest.raises(ValueError, match="expected texts of at least 5 bytes"):
        band_hashes(pa.array(["abc"]))
