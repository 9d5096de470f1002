"""D3: how units of a label profile are dealt out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.split.strata import allocate

NONE = np.zeros((3, 2), dtype=np.int64), np.zeros(3, dtype=np.int64)
FRACTIONS = (0.7, 0.15, 0.15)


@pytest.mark.req("D3")
@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 40)).filter(
            lambda p: p[0] + p[1] > 0
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.integers(0, 30), min_size=9, max_size=9),
)
def test_each_unit_is_dealt_once_and_no_side_is_left_empty_while_another_has_two(
    cells: list[tuple[int, int, int]], held: list[int]
) -> None:
    profiles, units = np.array([c[:2] for c in cells]), np.array([c[2] for c in cells])
    held_rows, held_units = np.array(held[:6]).reshape(3, 2), np.array(held[6:])
    counts = allocate(profiles, units, held_rows, held_units, FRACTIONS)
    assert (
        counts.shape == (len(cells), 3)
        and (counts >= 0).all()
        and (counts.sum(axis=1) == units).all()
    )
    totals = held_units + counts.sum(axis=0)
    assert (totals > 0).all() or units.sum() < 3 or counts.sum(axis=0).max() < 2


@pytest.mark.req("D3")
@settings(max_examples=100, deadline=None)
@given(st.integers(4, 3000), st.integers(4, 3000))
def test_single_rows_have_the_declared_shares_to_one_row(zeros: int, ones: int) -> None:
    counts = allocate(np.eye(2, dtype=np.int64), np.array([zeros, ones]), *NONE, FRACTIONS)
    expected = np.array([[zeros], [ones]]) * np.array([0.7, 0.15, 0.15])
    assert (np.abs(counts - expected) <= 1).all() and (counts >= 1).all()


@pytest.mark.req("D3")
def test_later_units_fill_what_the_sides_lack() -> None:
    held = np.array([[100, 0], [0, 0], [0, 0]])
    counts = allocate(np.array([[1, 0]]), np.array([100]), held, np.array([100, 0, 0]), FRACTIONS)
    assert counts.tolist() == [[40, 30, 30]]
    counts = allocate(np.array([[1, 0]]), np.array([20]), held, np.array([100, 0, 0]), FRACTIONS)
    assert counts.tolist() == [[0, 10, 10]]  # train has more than its share already


@pytest.mark.req("D3")
def test_a_rare_class_in_few_groups_is_spread_over_all_sides() -> None:
    profiles = np.array([[40, 10], [42, 8], [41, 9], [50, 0], [49, 0], [48, 0], [47, 0]])
    counts = allocate(profiles, np.array([1, 1, 1, 2, 2, 2, 2]), *NONE, (0.5, 0.25, 0.25))
    positives = (counts * profiles[:, 1:]).sum(axis=0)
    assert (positives > 0).all()
