"""Values at ranks are those of a sort, however the column is distributed and however small the
parts are.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.fit import order_statistics
from training.data.fit.order_statistics import values_at

NUMBERS = st.floats(-1e300, 1e300, allow_nan=False) | st.sampled_from(
    [0.0, -0.0, 5e-324, 1e-320, 1.0, 1e300, -1e300]
)


@pytest.mark.req("D9")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(NUMBERS, min_size=1, max_size=80),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.sampled_from([(2, 1), (3, 4), (4096, 2**20)]),
)
def test_values_at_ranks_are_those_of_a_sort(
    values: list[float], shares: list[float], sizes: tuple[int, int]
) -> None:
    ranks = [int(share * (len(values) - 1)) for share in shares]
    with pytest.MonkeyPatch.context() as patch, duckdb.connect() as connection:
        patch.setattr(order_statistics, "PARTS", sizes[0])
        patch.setattr(order_statistics, "SORTED_ROWS", sizes[1])
        connection.register("given", pa.table({"x": pa.array(values, pa.float64())}))
        found = values_at(connection, "(select x from given)", ranks)
    ordered = np.sort(values) + 0.0
    assert found == {rank: ordered[rank] for rank in ranks}


@pytest.mark.req("D9")
def test_a_column_of_one_far_value_and_many_equal_ones_is_divided_again() -> None:
    """All but one value fall into one part of 4,096, and so on: what is left is a few passes, not
    one for each value.
    """
    values = np.concatenate([np.geomspace(1e-12, 1.0, 100_000), [1e12]])
    with pytest.MonkeyPatch.context() as patch, duckdb.connect() as connection:
        patch.setattr(order_statistics, "SORTED_ROWS", 100)
        connection.register("given", pa.table({"x": values}))
        assert values_at(connection, "(select x from given)", [50_000, 100_000]) == {
            50_000: values[50_000],
            100_000: 1e12,
        }
