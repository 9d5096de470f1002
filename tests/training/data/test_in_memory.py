"""Rows held in memory: only within their block and where they fit, never in the place of a file
that was changed, always in the same order.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.config import Declaration
from schemas.errors import IntegrityError, SchemaError
from tests.training.data.chain import declared, split_of, validated_of
from training.data.arrays.shards import materialise
from training.data.engine import in_memory, threads
from training.data.engine.engine import connect
from training.data.engine.in_memory import available_memory, held, holding
from training.data.engine.sorted_rows import Texts, hash_order, hash_sorted
from training.data.fit.normalize import fit

COLUMNS = {"id": "id", "site": "group", "answer": "label", "w": "weight", "*": "feature"}
ROWS = 2000


@pytest.fixture
def declaration(tmp_path: Path) -> Declaration:
    """A text label, categories and numbers with nulls, whole numbers, a weight; ids in no order."""
    rng = np.random.default_rng(0)
    pq.write_table(_table(rng.permutation(ROWS), rng), tmp_path / "t.parquet", row_group_size=300)
    return declared(tmp_path / "t.parquet", COLUMNS, split="group")


def _table(ids: np.ndarray, rng: np.random.Generator) -> pa.Table:
    size = len(ids)
    columns = {
        "id": pa.array(ids),
        "site": pa.array(rng.integers(0, 90, size)),
        "answer": pa.array(rng.choice(["yes", "no"], size)),
        "w": pa.array(rng.random(size)),
        "color": pa.array(rng.choice(["red", "blue", "green"], size), mask=rng.random(size) < 0.2),
        "note": pa.array([f"note {i}" for i in ids]),
        "count": pa.array(rng.integers(0, 9, size)),
        "x": pa.array(rng.normal(size=size), mask=rng.random(size) < 0.1),
    }
    return pa.table(columns)


def _digests(declaration: Declaration, out: Path, keep: bool) -> tuple[Any, ...]:
    with holding() if keep else nullcontext():
        validated, sides = split_of(declaration, out)
        statistics = fit(sides.train, validated.spec, declaration)
        was_held = held(sides.train) is not None
        arrays = materialise(sides, validated, statistics, declaration, out / "arrays")
    return was_held, validated.table.file.sha256, statistics, arrays.sha256


@pytest.mark.req("D9")
def test_rows_are_held_where_they_fit_and_within_the_block_alone(
    tmp_path: Path, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _digests(declaration, tmp_path / "kept", True)
    assert kept == (True, *_digests(declaration, tmp_path / "read", False)[1:])
    (tmp_path / "meminfo").write_text("MemAvailable: 700 kB\n")
    monkeypatch.setattr(in_memory, "MEMINFO", tmp_path / "meminfo")
    assert _digests(declaration, tmp_path / "scarce", True) == (False, *kept[1:])


@pytest.mark.req("D9")
def test_files_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, declaration: Declaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number in (1, 5):
        monkeypatch.setattr(threads, "num_threads", lambda number=number: number)
        found.append(_digests(declaration, tmp_path / str(number), True))
    assert found[0] == found[1]


@pytest.mark.req("D9")
def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemFree: 1 kB\nMemAvailable: 4000 kB\n")
    monkeypatch.setattr(in_memory, "MEMINFO", meminfo)
    monkeypatch.setattr(in_memory, "CGROUP", limit)
    found = [available_memory()]
    for text in ("max\n", "1000000\n"):
        limit.write_text(text)
        found.append(available_memory())
    assert found == [4_096_000, 4_096_000, 1_000_000]


@pytest.mark.req("D5")
def test_held_rows_do_not_stand_for_a_file_that_was_changed(
    tmp_path: Path, declaration: Declaration
) -> None:
    with holding():
        validated, sides = split_of(declaration, tmp_path)
        content = bytearray(sides.train.file.file.read_bytes())
        content[100] ^= 1
        sides.train.file.file.write_bytes(bytes(content))
        with pytest.raises(
            IntegrityError,
            match=r"train\.parquet: SHA-256 is .* the file was changed after it was written",
        ):
            fit(sides.train, validated.spec, declaration)


@pytest.mark.req("D2")
def test_equal_ids_are_refused_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pq.write_table(_table(np.array([*range(50), 7]), rng), tmp_path / "t.parquet")
    with (
        holding(),
        pytest.raises(
            SchemaError,
            match=(
                r"column 'id': expected each value once \(a row id\), but 1 value is that of 2 rows"
                r" \(first: '7'\)"
            ),
        ),
    ):
        validated_of(declared(tmp_path / "t.parquet", COLUMNS, split="group"), tmp_path / "out")


@pytest.mark.req("D4")
def test_rows_are_in_the_order_of_the_engine() -> None:
    connection = connect()
    rows = (
        "(select cast(range as varchar) as __id, range * 0.5 as half, case when range % 3 > 0 then"
        " range end as some, range % 2 = 0 as even from range(3000))"
    )
    found, ids_differ = hash_sorted(connection, rows, 3000)
    wanted = connection.sql(f"select * from {rows} order by md5(__id)").to_arrow_table()
    assert ids_differ
    assert found.cast(wanted.schema).equals(wanted)
    assert found["__id"][0].as_py() == min(
        map(str, range(3000)), key=lambda i: hashlib.md5(i.encode()).hexdigest()
    )
    assert len(hash_sorted(connection, f"(select * from {rows} where false)", 0)[0]) == 0


IDS = [f"id {i}" for i in range(3000)]
TEXTS = {
    "short": (IDS, True),
    "of more bytes than letters": ([f"é{text}" for text in IDS], True),
    "ever longer ones": ([*IDS, "x" * 9, "y" * 32, *IDS], True),
    "empty ones": ([*IDS, "", ""], True),
    "long ones at the end": ([*IDS, "x" * 33, "y" * 1000], False),
    "long ones": (["x" * 40 + text for text in IDS], False),
    "ends that are NUL": ([*IDS, "a\0"], False),
    "nulls at the end": ([*IDS, None], False),
    "few values": (IDS[:9] * 300, False),
    "nothing but nulls": ([None] * 500, False),
    "no rows": ([], False),
}


@pytest.mark.req("D4")
@pytest.mark.parametrize("texts", TEXTS)
def test_texts_are_gathered_as_they_were(texts: str) -> None:
    given, padded = TEXTS[texts]
    values, order = pa.array(given, pa.string()), np.random.default_rng(0).permutation(len(given))
    column = Texts(pa.string(), len(values) + 5)
    for start in range(0, len(values), 700):
        column.add(values.slice(start, 700))
    found = column.gathered(order, [])
    found.validate(full=True)
    assert found.cast(pa.string()).equals(values.take(pa.array(order)))
    assert column.is_padded == padded


@pytest.mark.req("D4")
@pytest.mark.parametrize(
    ("second", "order", "differ"), [((5, 2, 0), [2, 1, 0], True), ((2, 2, 0), [2, 0, 1], False)]
)
def test_hashes_with_one_first_half_are_told_apart_by_the_second(
    second: tuple[int, ...], order: list[int], differ: bool
) -> None:
    content = b"".join(
        first.to_bytes(8, "big") + half.to_bytes(8, "big")
        for first, half in zip((9, 9, 1), second, strict=True)
    )
    hashes = pa.Array.from_buffers(pa.decimal128(38), 3, [None, pa.py_buffer(content)])
    found, ids_differ = hash_order(hashes)
    assert (found.tolist(), ids_differ) == (order, differ)


@pytest.mark.req("D4")
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 1000, 5000])
@pytest.mark.parametrize("most", [1, 60, 2**64 - 1])
@pytest.mark.parametrize("shift", [0, 40])
def test_hashes_are_sorted_as_by_both_halves(rows: int, most: int, shift: int) -> None:
    rng = np.random.default_rng(rows)
    first, second = (rng.integers(0, most, rows, dtype=np.uint64, endpoint=True) for _ in range(2))
    first = first << np.uint64(shift)  # the digits that are sorted alone, or those that are not
    content = np.stack([first, second], axis=1).astype(">u8").tobytes()
    order, ids_differ = hash_order(
        pa.Array.from_buffers(pa.decimal128(38), rows, [None, pa.py_buffer(content)])
    )
    assert order.tolist() == np.lexsort((second, first)).tolist()
    assert ids_differ == (len(set(zip(first.tolist(), second.tolist(), strict=True))) == rows)
