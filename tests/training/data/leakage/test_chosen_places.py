"""Rows at chosen places of an order are the same whether all rows or those near are ordered."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from training.data.leakage.chosen_places import NEAR, chosen_places

ROWS, STEP, LENGTH = 12_345, 617, 30
VALUES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "measures": lambda rng: rng.normal(size=ROWS),
    "moments": lambda rng: rng.integers(0, 10**15, ROWS).astype(float),
    "places": lambda rng: np.arange(ROWS) * 1.0,
    "few values": lambda rng: rng.integers(0, 50, ROWS).astype(float),
    "two values": lambda rng: rng.choice([1.0, 2.0], ROWS),
}


@pytest.mark.req("D9")
@pytest.mark.parametrize("kind", VALUES)
def test_the_same_rows_are_chosen_with_and_without_a_sample(kind: str) -> None:
    rng = np.random.default_rng(0)
    values = VALUES[kind](rng)
    ids = [f"id{number}" for number in rng.permutation(ROWS)]
    connection = duckdb.connect()
    nulls = rng.random(ROWS) < 0.05
    table = pa.table({"__id": ids, "v": pa.array(values, mask=nulls)})
    connection.register("t", table)
    sample = rng.choice(values[~nulls], 3_000)
    found = [
        connection.execute(chosen_places(connection, "t", "v", STEP, LENGTH, chosen)).fetchall()
        for chosen in (None, sample)
    ]
    assert sorted(found[0]) == sorted(found[1]) and len(found[0]) > 18 * LENGTH
    near = connection.execute(f"select count(*) from {NEAR}").fetchall()[0][0]
    assert near < ROWS / 8 or "values" in kind, "few rows are ordered"
