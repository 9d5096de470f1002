"""Statistics of rows in memory are those of the engine, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DataError
from tests.training.data.chain import declared, split_of, write_table
from training.data.engine.engine import connect
from training.data.engine.in_memory import CODE, Rows, holding
from training.data.fit import held_columns
from training.data.fit.held_columns import BLOCK_ROWS, held_counts, held_moments, held_quantiles
from training.data.fit.moments import BITS, Moments, column_moments, column_quantiles
from training.data.fit.normalize import fit

LEVELS = (0.0, 0.1, 0.5, 0.999, 1.0)
HALF = 2.0 ** -(BITS + 1)  # rounded to an integer in units of 2^-62, away from zero
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e300,
    -1e300,
    5e-324,
    HALF,
    -HALF,
    3 * HALF,
    -5 * HALF,
    0.1,
    2.0**53 + 2,
]
NUMBERS = st.one_of(st.none(), st.floats(-1e300, 1e300), st.floats(-4, 4), st.sampled_from(SPECIAL))


def _by_engine(rows: Rows, name: str) -> tuple[Moments, tuple[float, ...] | None]:
    connection = connect()
    connection.register("held", rows.table)
    chosen = f"(select * from held where {CODE} = {rows.code})"
    found = column_moments(connection, chosen, [name])[name]
    return found, (
        column_quantiles(connection, chosen, {name: LEVELS}, {name: found.present})[name]
        if found.present
        else None
    )


def _in_memory(rows: Rows, name: str) -> tuple[Moments, tuple[float, ...] | None]:
    found = held_moments(rows, [name])[name]
    return found, held_quantiles(rows, name, LEVELS) if found.present else None


def _bits(found: tuple[Moments, tuple[float, ...] | None]) -> str:
    return repr(found)  # tells -0.0 from 0.0


@pytest.mark.req("D7")
@pytest.mark.parametrize("shape", ["normal", "sorted", "few values", "two ends", "periodic"])
@pytest.mark.parametrize("margin", [0, 2, 400])
def test_ranks_among_many_values_are_those_of_a_sort(
    shape: str, margin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_columns, "MANY_VALUES", 1)
    monkeypatch.setattr(held_columns, "SAMPLE_VALUES", 256)
    monkeypatch.setattr(held_columns, "SAMPLE_MARGIN", margin)
    rng = np.random.default_rng(0)
    values = {
        "normal": rng.normal(size=40_000),
        "sorted": np.arange(40_000.0),
        "few values": rng.integers(0, 3, 40_000) * 1.0,
        "two ends": rng.choice([-1e300, 1e300], 40_000),
        "periodic": np.arange(40_000) % 156 * 1.0,
    }[shape]
    ranks = [0, 9_999, 10_000, 20_000, 39_999]
    ordered = np.sort(values)
    found = held_columns._at_ranks(values.copy(), ranks)
    assert found == {rank: ordered[rank] for rank in ranks}


@pytest.mark.req("D7")
@given(st.lists(st.tuples(NUMBERS, st.integers(0, 2)), min_size=1, max_size=30))
def test_moments_and_quantiles_are_those_of_the_engine(
    values: list[tuple[float | None, int]],
) -> None:
    numbers, codes = zip(*values, strict=True)
    table = pa.table({"x": pa.array(numbers, pa.float64()), CODE: pa.array(codes, pa.uint8())})
    rows = Rows(table, codes[0])
    assert _bits(_in_memory(rows, "x")) == _bits(_by_engine(rows, "x"))


@pytest.mark.req("D7")
@pytest.mark.parametrize("shape", ["normal", "skewed", "whole", "far", "nulls"])
def test_many_rows_are_summed_block_by_block(shape: str) -> None:
    rng = np.random.default_rng(1)
    size = 3 * BLOCK_ROWS + 7
    drawn = {
        "normal": rng.normal(size=size),
        "skewed": rng.lognormal(0, 9, size),
        "whole": rng.poisson(3, size).astype(float),
        "far": 1e9 + rng.random(size),
    }
    x = pa.array(
        drawn.get(shape, drawn["normal"]), mask=rng.random(size) < 0.2 if shape == "nulls" else None
    )
    table = (
        pa.table(
            {
                "before": pa.nulls(size, pa.int8()),
                "x": x,
                CODE: pa.array(rng.integers(0, 3, size), pa.uint8()),
            }
        )
        .slice(5)
        .combine_chunks()
    )
    assert _bits(_in_memory(Rows(table, 1), "x")) == _bits(_by_engine(Rows(table, 1), "x"))
    whole = held_moments(Rows(table), ["x"])["x"]
    assert whole.present + whole.nulls == size - 5


@pytest.mark.req("S2")
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 2e300])
def test_extraordinary_numbers_are_refused_by_name(bad: float) -> None:
    with pytest.raises(
        DataError, match=r"expected finite numbers up to 1e\+300; 1 column holds others: y \("
    ):
        held_moments(Rows(pa.table({"x": [1.0, 2.0], "y": [1.0, bad]})), ["x", "y"])


@pytest.mark.req("D7")
@given(
    st.lists(
        st.tuples(st.sampled_from([None, "", "a", "b", "ä", "Z", "😀"]), st.integers(0, 1)),
        min_size=1,
        max_size=30,
    )
)
def test_texts_are_counted_as_by_hand(values: list[tuple[str | None, int]]) -> None:
    texts, codes = zip(*values, strict=True)
    column = pa.array(texts, pa.string())
    table = pa.table(
        {"c": column.dictionary_encode(), "t": column, CODE: pa.array(codes, pa.uint8())}
    )
    mine = [text for text, code in values if code == 1]
    expected = {text: mine.count(text) for text in mine if text is not None}, mine.count(None)
    assert held_counts(Rows(table, 1), "c") == expected
    assert held_counts(Rows(table, 1), "t") is None


@pytest.mark.req("D7")
@pytest.mark.parametrize("scale", ["standard", "robust", "smooth", "quantile"])
def test_a_fit_on_held_rows_is_that_on_their_file(scale: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    size = 900
    columns = {
        "id": pa.array(rng.permutation(size)),
        "y": pa.array(rng.integers(0, 2, size)),
        "x": pa.array(rng.normal(size=size), mask=rng.random(size) < 0.2),
    }
    columns |= {
        "zero": pa.array(rng.choice([0.0, -0.0, np.nan, 1.0], size)),
        "on": pa.array(rng.random(size) < 0.5),
        "n": pa.array(rng.integers(0, 9, size), pa.int16()),
    }
    columns |= {
        "day": pa.array(rng.integers(0, 9, size), pa.int32()).cast(pa.date32()),
        "c": pa.array(rng.choice(["b", "ä", "a", ""], size), mask=rng.random(size) < 0.1),
    }
    columns |= {"note": pa.array([f"note {i % 300}" for i in range(size)])}
    kinds = {"id": "id", "y": "label", "day": "time", "on": "categorical", "*": "feature"}
    declaration = declared(
        write_table(tmp_path / "t.parquet", columns),
        kinds,
        split="random",
        normalize={"scale": scale, "min_count": 2, "max_categories": 3},
    )
    with holding():
        validated, sides = split_of(declaration, tmp_path)
        held = fit(sides.train, validated.spec, declaration)
    assert held == fit(sides.train, validated.spec, declaration)
