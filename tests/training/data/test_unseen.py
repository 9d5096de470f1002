"""Which rows a model has learned from is recognised later, by id and by group."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import IntegrityError
from tests.training.data.sides import write_side
from training.data.split.unseen import trained_keys, unseen_rows


def table(path: Path, ids: list[str], groups: list[str | None], side: str = "train"):
    return write_side(path, {"__id": pa.array(ids), "__group": pa.array(groups, pa.string())}, side)


@pytest.mark.req("D10")
def test_keys_are_sorted_distinct_hashes_of_ids_and_groups_of_all_tables(tmp_path: Path) -> None:
    train = table(tmp_path / "t.parquet", ["a", "b", "c"], ["g", "g", None])
    val = table(tmp_path / "v.parquet", ["é"], ["g"], "val")
    wanted = sorted(
        int(hashlib.md5(text.encode()).hexdigest()[:16], 16)
        for text in ("id:a", "id:b", "id:c", "id:é", "group:g")
    )
    found = trained_keys([train, val])
    assert found.dtype == np.uint64
    assert found.tolist() == wanted


@pytest.mark.req("D10")
def test_rows_of_known_ids_or_groups_are_seen_in_the_tables_order(tmp_path: Path) -> None:
    seen = trained_keys([table(tmp_path / "t.parquet", ["a", "b"], ["g", None])])
    test = table(
        tmp_path / "s.parquet", ["x", "b", "y", "z", "g"], ["g", "h", None, "h", "a"], "test"
    )
    assert unseen_rows(test, seen, by_group=True).tolist() == [False, False, True, True, True]
    assert unseen_rows(test, seen, by_group=False).tolist() == [True, False, True, True, True]


@pytest.mark.req("D10")
def test_many_rows_keep_their_order(tmp_path: Path) -> None:
    seen = trained_keys(
        [table(tmp_path / "t.parquet", [f"r{i}" for i in range(0, 300_000, 3)], [None] * 100_000)]
    )
    test = table(
        tmp_path / "s.parquet", [f"r{i}" for i in range(300_000)], [None] * 300_000, "test"
    )
    np.testing.assert_array_equal(
        unseen_rows(test, seen, by_group=True), np.arange(300_000) % 3 != 0
    )


@pytest.mark.req("D10")
def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    train = table(tmp_path / "t.parquet", ["a"], [None])
    table(tmp_path / "t.parquet", ["b"], [None])
    with pytest.raises(IntegrityError, match=r"t.parquet: SHA-256 is"):
        trained_keys([train])
