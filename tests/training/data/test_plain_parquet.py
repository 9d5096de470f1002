"""Columns that are read without the engine: the typed table is the same, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import SchemaError
from tests.training.data.chain import declared, validated_of
from training.data.engine.engine import connect
from training.data.engine.sorted_rows import Column, Numbers, Texts, hash_sorted
from training.data.sources.plain_parquet import plain_columns
from training.data.sources.source import fingerprint
from training.data.table import typed_rows

ROWS = 600
RNG = np.random.default_rng(0)
SOME = RNG.random(ROWS) < 0.2
ODD = np.where(RNG.random(ROWS) < 0.3, np.nan, np.where(SOME, -0.0, RNG.normal(size=ROWS)))
WORDS = RNG.choice(["red", "grün", ""], ROWS)
COLUMNS = {
    "id": pa.array(RNG.permutation(ROWS)),
    "y": pa.array(np.arange(ROWS) % 2),
    "odd": pa.array(ODD, mask=SOME & (np.arange(ROWS) % 2 == 0)),
    "small": pa.array(ODD, from_pandas=False).cast(pa.float32()),
    "large": pa.array(RNG.integers(2**62, 2**63, ROWS, dtype=np.uint64) * np.uint64(2)),
    "whole": pa.array(RNG.integers(-99, 99, ROWS), pa.int8(), mask=SOME),
    "words": pa.array(WORDS, pa.string(), mask=SOME),
    "large words": pa.array(WORDS, pa.large_string()),
    "coded": pa.array(WORDS).dictionary_encode(),
    "notes": pa.array([f"note {i}" for i in range(ROWS)]),
    "flag": pa.array(SOME),
    "a.b": pa.array(RNG.normal(size=ROWS)),
    "price": pa.array(np.arange(ROWS)).cast(pa.decimal128(21, 2)),
}
PLAIN = {"odd", "small", "large", "whole", "words", "large words"}
ROLES = {"id": "id", "y": "label", "*": "feature"}


def _source(folder: Path, columns: Mapping[str, pa.Array] = COLUMNS, files: int = 3) -> Path:
    folder.mkdir()
    size = ROWS // files
    for number in range(files):
        part = pa.table(dict(columns)).slice(number * size, size)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=70)
    return folder


@pytest.mark.req("D4")
@pytest.mark.parametrize(
    ("data", "is_plain"),
    [
        ({}, True),
        ({"derive": {"twice": "odd * 2"}}, True),
        ({"row_number": "place", "columns": {**ROLES, "place": "id", "id": "ignore"}}, True),
        ({"filter": "whole > 0"}, False),
        ({"memory_limit": "200MB"}, False),
    ],
)
def test_typed_tables_are_those_of_the_engine(
    data: Mapping[str, Any], is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration = declared(_source(tmp_path / "source"), ROLES, data=data)
    read: dict[str, Column] = {}

    def noted(*given: Any) -> dict[str, Column]:
        found = plain_columns(*given)
        read.update(found)
        return found

    monkeypatch.setattr(typed_rows, "plain_columns", noted)
    found = validated_of(declaration, tmp_path / "plain")
    assert set(read) == (PLAIN if is_plain else set())
    monkeypatch.setattr(typed_rows, "plain_columns", lambda *_: {})
    assert found.digests == validated_of(declaration, tmp_path / "engine").digests


@pytest.mark.req("D4")
def test_rows_of_another_order_or_number_are_refused() -> None:
    values = np.arange(3000.0)
    relation = "(select cast(range as varchar) as __id, range * 1.0::double as x from range(3000))"

    def plain(numbers: np.ndarray) -> dict[str, Numbers]:
        column = Numbers(len(numbers), pa.float64())
        column.add_plain(pa.array(numbers))
        return {"x": column}

    found, _ = hash_sorted(connect(), relation, 3000, plain(values))
    assert found["x"].to_pylist() == [float(i) for i in found["__id"].to_pylist()]
    swapped = values.copy()
    swapped[[7, 8]] = swapped[[8, 7]]
    for wrong in (swapped, np.where(values == 5, np.nan, values), values[:-1]):
        with pytest.raises(RuntimeError, match="rows of the source differently: 'x' differs"):
            hash_sorted(connect(), relation, 3000, plain(wrong))
    with pytest.raises(RuntimeError, match="the engine read 3000 rows of the source, Arrow"):
        hash_sorted(connect(), relation, 3001, plain(np.arange(3001.0)))


@pytest.mark.req("D4")
def test_texts_that_are_not_utf8_and_files_that_differ_are_left_to_the_engine(
    tmp_path: Path,
) -> None:
    bad = pa.array([b"\xff", b"b"] * (ROWS // 2)).view(pa.string())
    for name, columns in {"bad": {"words": bad}, "good": {}}.items():
        source = fingerprint(declared(_source(tmp_path / name, {**COLUMNS, **columns})).data)
        found = plain_columns(source, ["odd"], ["words"], ROWS)
        assert set(found) == ({"odd", "words"} if name == "good" else set())
        assert plain_columns(source, ["odd"], [], ROWS + 1) == {}
    pq.write_table(
        pa.table({**COLUMNS, "odd": COLUMNS["whole"]}), tmp_path / "good" / "other.parquet"
    )
    source = fingerprint(declared(tmp_path / "good").data)
    assert plain_columns(source, ["odd"], [], 2 * ROWS) == {}


@pytest.mark.req("D2")
def test_infinity_is_refused_by_name(tmp_path: Path) -> None:
    odd = pa.array(np.where(np.arange(ROWS) == 3, np.inf, 1.0 * np.arange(ROWS)))
    source = _source(tmp_path / "source", {**COLUMNS, "odd": odd})
    with pytest.raises(SchemaError, match=r"column 'odd': expected finite numbers, but 1 row"):
        validated_of(declared(source, ROLES), tmp_path / "out")


@pytest.mark.req("D4")
def test_columns_without_rows_are_empty() -> None:
    for column in (Numbers(0, pa.float64()), Texts(pa.string(), 0)):
        assert len(column.gathered(np.empty(0, np.int64), [])) == 0
