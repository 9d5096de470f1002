"""Folds of an ensemble's members: disjoint, groups whole, purged in time; arrays by index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.config import Declaration
from schemas.errors import IntegrityError, SplitError
from schemas.members import folded
from schemas.records import ArraysRef, SplitTables, ValidatedTable
from tests.training.data.chain import declared, read, split_of, write_table
from training.data.arrays.fold_arrays import write_fold
from training.data.arrays.shards import load_arrays, materialise
from training.data.fit.normalize import fit
from training.data.split.member_folds import FoldIds, member_fold

MEMBERS, HORIZON, EMBARGO = 3, 4, 2
WAYS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "random": ({"kind": "random"}, {}, {}),
    "group": ({"kind": "group"}, {"who": "group"}, {}),
    "stratified_group": ({"kind": "stratified_group"}, {"who": "group"}, {}),
    "time": ({"kind": "time", "embargo": EMBARGO}, {"at": "time"}, {"horizon": HORIZON}),
    "group_time": ({"kind": "group_time"}, {"at": "time", "who": "group"}, {}),
}


def table_of(rows: int = 360, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "id": [f"r{i}" for i in range(rows)],
        "who": [f"g{g}" for g in rng.integers(0, 60, rows)],
        "at": rng.integers(0, 200, rows).astype(float),
        "y": (rng.random(rows) < 0.4).astype(int),
        "x": rng.normal(size=rows),
    }


def pool_of(
    folder: Path, way: str, table: dict[str, Any] | None = None
) -> tuple[ValidatedTable, SplitTables, Declaration]:
    """The table split as declared, and the declaration that divides members."""
    split, roles, cv = WAYS[way]
    columns = {"id": "id", "y": "label", "x": "numeric", "who": "ignore", "at": "ignore", **roles}
    declaration = declared(
        write_table(folder / "t.parquet", table or table_of()),
        columns,
        split=split,
        cv=cv,
        ensemble={"members": MEMBERS, "over": "folds"},
    )
    validated, pool = split_of(declaration, folder / "pool")
    by_folds = folded(declaration)
    assert by_folds is not None and by_folds.cv.folds == MEMBERS
    return validated, pool, by_folds


def rows_of(pool: SplitTables, side: str) -> dict[str, dict[str, Any]]:
    columns = read(pool.side(side))  # type: ignore[arg-type]
    return {
        name: {key: columns[key][i] for key in ("__group", "__time")}
        for i, name in enumerate(columns["__id"])
    }


@pytest.mark.parametrize("way", WAYS)
def test_folds_are_disjoint_and_keep_what_the_split_keeps(tmp_path: Path, way: str) -> None:
    validated, pool, declaration = pool_of(tmp_path, way)
    rows = rows_of(pool, "train") | rows_of(pool, "val")
    seen: list[str] = []
    for number in range(1, MEMBERS + 1):
        train, val = (
            part.to_pylist() for part in member_fold(validated, pool, declaration, number)
        )
        assert train and val and not set(train) & set(val)
        assert set(train) | set(val) <= set(rows), "no test row"
        if "group" in way:
            groups = [{rows[n]["__group"] for n in part} for part in (train, val)]
            assert not groups[0] & groups[1], "a group is whole"
        if way == "time":
            begin, end = (f(rows[n]["__time"] for n in val) for f in (min, max))
            for name in train:
                at = rows[name]["__time"]
                assert at + HORIZON < begin or at > end + HORIZON + EMBARGO, "purged"
        seen += val
    assert len(seen) == len(set(seen)), "a row is in one fold"
    if way != "group_time":
        assert set(seen) == set(rows)


def test_test_rows_decide_nothing_about_the_folds(tmp_path: Path) -> None:
    for way in ("stratified_group", "time"):
        table = table_of()
        validated, pool, declaration = pool_of(tmp_path / way / "a", way, table)
        tested = set(rows_of(pool, "test"))
        values = zip(table["id"], table["x"], strict=True)
        changed = {**table, "x": [9.0 if name in tested else x for name, x in values]}
        other = pool_of(tmp_path / way / "b", way, changed)
        for number in range(1, MEMBERS + 1):
            assert member_fold(validated, pool, declaration, number) == member_fold(*other, number)


def test_too_many_members_are_refused_by_the_name_of_the_key(tmp_path: Path) -> None:
    validated, pool, declaration = pool_of(tmp_path, "group")
    cv = declaration.cv.model_copy(update={"folds": 300})
    many = declaration.model_copy(update={"cv": cv})
    with pytest.raises(SplitError, match=r"ensemble.over: folds: cv.folds: expected at least 300"):
        member_fold(validated, pool, many, 1)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> tuple[ArraysRef, FoldIds]:
    folder = tmp_path_factory.mktemp("fold-arrays")
    validated, pool, declaration = pool_of(folder, "group")
    statistics = fit(pool.train, validated.spec, declaration)
    made = materialise(pool, validated, statistics, declaration, folder / "arrays")
    for ref in (*made.test.arrays.values(), made.test.ids):
        ref.file.unlink()  # nothing below may open them
    return made, member_fold(validated, pool, declaration, 2)


def test_arrays_of_a_fold_are_the_rows_of_the_run_unchanged(
    arrays: tuple[ArraysRef, FoldIds], tmp_path: Path
) -> None:
    run, fold = arrays
    made = write_fold(run, fold.train, fold.val, tmp_path / "fold")
    before: dict[str, tuple[Any, Any]] = {}
    for side in (run.train, run.val):
        data, ids = load_arrays(side), pq.read_table(side.ids.path)["__id"].to_pylist()
        before |= {n: (data["numeric"][i], data["label"][i]) for i, n in enumerate(ids)}
    for side, wanted in ((made.train, fold.train), (made.val, fold.val)):
        data, ids = load_arrays(side), pq.read_table(side.ids.path)["__id"].to_pylist()
        assert sorted(ids) == sorted(wanted.to_pylist()) and side.rows == len(ids)
        for i, name in enumerate(ids):
            np.testing.assert_array_equal(data["numeric"][i], before[name][0])
            assert data["label"][i] == before[name][1]
    assert made.test == run.test and made.statistics == run.statistics
    assert write_fold(run, fold.train, fold.val, tmp_path / "again").sha256 == made.sha256
    assert made.sha256 != run.sha256


def test_a_fold_that_a_member_would_train_on_is_refused(
    arrays: tuple[ArraysRef, FoldIds], tmp_path: Path
) -> None:
    run, fold = arrays
    leaked = pa.concat_arrays([fold.train, fold.val[:2]])
    with pytest.raises(SplitError, match=r"no row of a member's own fold .* got 2"):
        write_fold(run, leaked, fold.val, tmp_path / "fold")
    assert not (tmp_path / "fold").exists()


def test_rows_that_are_not_the_runs_and_folds_without_a_class_are_refused(
    arrays: tuple[ArraysRef, FoldIds], tmp_path: Path
) -> None:
    run, fold = arrays
    with pytest.raises(IntegrityError, match=r"expected .* rows of a fold's val"):
        write_fold(run, fold.train, pa.concat_arrays([fold.val, pa.array(["x"])]), tmp_path / "a")
    ids = pq.read_table(run.train.ids.path)["__id"].to_pylist()
    positives = [n for n, y in zip(ids, load_arrays(run.train)["label"], strict=True) if y == 1]
    negatives = [n for n in ids if n not in positives]
    with pytest.raises(SplitError, match=r"class numbers \[1\] in the fold"):
        write_fold(
            run, pa.array(negatives + positives[5:]), pa.array(positives[:5]), tmp_path / "b"
        )
    with pytest.raises(SplitError, match="has no rows"):
        write_fold(run, fold.train, fold.val[:0], tmp_path / "c")
