"""D3: folds of every kind against an oracle that counts by hand, on the written files."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from schemas.config import SPLITS, Declaration
from schemas.digest import file_ref
from schemas.errors import ConfigError, SplitError
from schemas.records import SplitTables, TestTable, TrainTable, ValidatedTable
from tests.training.data.chain import declared, read, sides_of, split_of, write_table
from training.data.leakage import check_leakage, check_overlap, require_passed
from training.data.leakage.fold_checks import check_folds, check_intervals
from training.data.split.fold_times import nearest_cuts
from training.data.split.folds import fold_declaration, make_fold

WAYS: dict[
    str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]
] = {  # split, cv, roles besides id, label and feature
    "kfold": ({"kind": "random"}, {}, {}),
    "stratified": ({"kind": "stratified"}, {}, {}),
    "group": ({"kind": "group"}, {}, {"who": "group"}),
    "stratified_group": ({"kind": "stratified_group"}, {}, {"who": "group"}),
    "walk_forward": ({"kind": "time", "embargo": 2}, {"horizon": 3}, {"at": "time"}),
    "sliding": ({"kind": "time"}, {"window": 30, "embargo": 4}, {"at": "time"}),
    "known later": ({"kind": "time"}, {"embargo": 1}, {"at": "time", "known": "label_time"}),
    "group_walk_forward": (
        {
            "kind": "group_time",
            "embargo": 2,
            "group_fractions": {"train": 0.6, "val": 0.2, "test": 0.2},
        },
        {},
        {"who": "group", "at": "time"},
    ),
    "purged": (
        {"kind": "time", "embargo": 2},
        {"kind": "purged", "horizon": 3},
        {"at": "time"},
    ),
    "purged of intervals": (
        {"kind": "random"},
        {"kind": "purged", "embargo": 5},
        {"at": "time", "known": "label_time"},
    ),
}
EACH = [
    (
        w
        if w
        in (
            "stratified_group",
            "group_walk_forward",
        )
        else pytest.param(w, marks=pytest.mark.long)
    )
    for w in WAYS
]
ONCE = {"kfold", "stratified", "group", "stratified_group", "purged", "purged of intervals"}
ROLES = {"who": "ignore", "at": "ignore", "known": "ignore"}


def table_of(num_rows: int, seed: int, first: int = 0) -> dict[str, list[Any]]:
    draw = random.Random(seed)
    at = [float(draw.randrange(120)) for _ in range(num_rows)]
    return {
        "id": [f"r{first + i}" for i in range(num_rows)],
        "who": [f"g{draw.randrange(max(1, num_rows // 3))}" for _ in range(num_rows)],
        "at": at,
        "known": [t + draw.choice([0, 0, 1, 7]) for t in at],
        "y": [int(draw.random() < 0.4) for _ in range(num_rows)],
        "x": [draw.random() for _ in range(num_rows)],
    }


def taken(table: dict[str, list[Any]], order: list[int]) -> dict[str, list[Any]]:
    return {name: [values[i] for i in order] for name, values in table.items()}


def made(
    folder: Path,
    table: dict[str, list[Any]],
    way: str,
    k: int,
    ledger: Path | None = None,
    split: dict[str, Any] | None = None,
    **cv: Any,
) -> tuple[ValidatedTable, SplitTables, list[SplitTables], Declaration]:
    declared_split, own, roles = WAYS[way]
    split = {**declared_split, **(split or {})}
    columns = {"id": "id", "y": "label", "x": "numeric", **ROLES, **roles}
    declaration = declared(
        write_table(folder / "t.parquet", table), columns, split=split, cv={**own, "folds": k, **cv}
    )
    validated, pool = split_of(declaration, folder / "pool", ledger)
    folds = [
        make_fold(validated, pool, declaration, i, folder / f"fold{i}", ledger or folder / "ledger")
        for i in range(k)
    ]
    return validated, pool, folds, declaration


def assert_in_time(
    way: str,
    rows: dict[str, dict[str, Any]],
    folds: list[SplitTables],
    pool: SplitTables,
    declaration: Declaration,
) -> None:
    """Purging, embargo and order, row by row, from the table alone; nothing more than that is left
    out.
    """
    gap = float(
        declaration.cv.embargo
        if declaration.cv.embargo is not None
        else getattr(declaration.split, "embargo", 0)
    )

    def end(name: str) -> float:
        known = rows[name]["known"] if "known" in WAYS[way][2] else rows[name]["at"]
        return float(known + declaration.cv.horizon)

    usable = [n for s in ("train", "val") for n in read(pool.side(s))["__id"]]
    for fold in folds:
        side = sides_of(fold)
        at = {s: [rows[n]["at"] for n in side if side[n] == s] for s in SPLITS}
        test = [n for n in side if side[n] == "test"]
        begin, last = min(at["test"]), max(end(n) for n in test)
        v = min(at["val"])
        for name in usable:
            t, e = rows[name]["at"], end(name)
            if name in test:
                continue
            if "purged" in way:
                near_test = (t <= last and e >= begin) or last < t <= last + gap
                expected = None if near_test else "val" if t >= v else None if e >= v else "train"
            else:
                start = fold.plan["test_begins"]
                near_test = t >= start or e >= start or t + gap > start
                outside = (
                    "window" in fold.plan
                    and fold.plan["window"] is not None
                    and t < start - gap - fold.plan["window"]
                )
                expected = (
                    None
                    if near_test or outside
                    else "val"
                    if t >= v
                    else None
                    if e >= v or t + gap > v
                    else "train"
                )
            if way != "group_walk_forward":
                assert side.get(name) == expected, (name, t, e, side.get(name), expected)
            else:
                assert side.get(name) in (None, expected)
        if "purged" not in way:
            assert (
                max(at["train"]) + gap <= min(at["val"])
                and max(at["val"]) + gap <= begin
                and max(at["val"]) < begin
            )
        assert not set(at["test"]) & set(at["train"] + at["val"]) and not set(at["val"]) & set(
            at["train"]
        )


@pytest.mark.req("D3")
@pytest.mark.req("D5")
@pytest.mark.parametrize("way", EACH)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(num_rows=st.integers(200, 350), seed=st.integers(0, 10_000), k=st.integers(3, 5))
def test_folds_keep_their_promise_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, way: str, num_rows: int, seed: int, k: int
) -> None:
    table = table_of(num_rows, seed)
    folder = tmp_path_factory.mktemp("folds")
    try:
        validated, pool, folds, declaration = made(folder, table, way, k, val=0.25)
    except SplitError as error:
        assert "expected" in str(error)
        reject()
    rows = {name: {c: table[c][i] for c in table} for i, name in enumerate(table["id"])}
    usable = {n for s in ("train", "val") for n in read(pool.side(s))["__id"]}
    tested: list[str] = []
    for fold in folds:
        side = sides_of(fold)
        assert set(side) <= usable and len(side) + sum(fold.excluded.values()) == num_rows
        assert fold.excluded.get("holdout") == pool.test.rows
        tested += [n for n in side if side[n] == "test"]
        if "who" in WAYS[way][2]:
            sides_of(fold, "__group")
    assert len(tested) == len(set(tested)) and (way not in ONCE or set(tested) == usable)
    if "at" in WAYS[way][2]:
        assert_in_time(way, rows, folds, pool, declaration)
    for fold in folds:
        require_passed(check_overlap(fold, validated, fold_declaration(declaration)))
        require_passed(check_intervals(fold, validated.spec, declaration))
    check_leakage(folds[0], validated, fold_declaration(declaration))
    require_passed(check_folds(folds, declaration))


@pytest.mark.req("D4")
@pytest.mark.parametrize("way", EACH)
def test_rows_that_are_added_removed_or_reordered_move_no_other_row(
    tmp_path: Path, way: str
) -> None:
    first, later, draw = table_of(300, 5), table_of(60, 6, first=300), random.Random(7)
    both = {name: first[name] + later[name] for name in first}
    ledger = tmp_path / "ledger"
    before = [sides_of(f) for f in made(tmp_path / "1", first, way, 3, ledger, val=0.25)[2]]
    same = [
        sides_of(f)
        for f in made(
            tmp_path / "2", taken(first, draw.sample(range(300), 300)), way, 3, ledger, val=0.25
        )[2]
    ]
    assert same == before
    grown = [
        sides_of(f)
        for f in made(
            tmp_path / "3", taken(both, draw.sample(range(360), 330)), way, 3, ledger, val=0.25
        )[2]
    ]
    for old, new in zip(before, grown, strict=True):
        # a longer last label purges more
        assert "purged" in way or all(new[n] == old[n] for n in new if n in old)
        assert all(new[n] == old[n] for n in new if n in old and "test" in (new[n], old[n]))


@pytest.mark.req("D4")
def test_the_fold_of_a_row_is_the_hash_that_every_language_computes(tmp_path: Path) -> None:
    _, pool, folds, _ = made(tmp_path, table_of(200, 1), "group", 4, seed=9)
    found = {g: i for i, fold in enumerate(folds) for g in read(fold.test)["__group"]}
    for group in {g for s in ("train", "val") for g in read(pool.side(s))["__group"]}:
        assert (
            found[group]
            == int(hashlib.md5(f"cv:9:{group}".encode()).hexdigest()[:8], 16) * 4 // 2**32
        )


@pytest.mark.req("D3")
@pytest.mark.parametrize("way", ["stratified", "stratified_group"])
def test_strata_are_even_over_folds(tmp_path: Path, way: str) -> None:
    folds = made(tmp_path, table_of(900, 3), way, 5)[2]
    shares = [np.mean(read(fold.test)["y"]) for fold in folds]
    sizes = [fold.test.rows for fold in folds]
    assert max(shares) - min(shares) < 0.02 and max(sizes) - min(sizes) < 20
    assert all(abs(np.mean(read(fold.val)["y"]) - np.mean(shares)) < 0.05 for fold in folds)


@pytest.mark.req("D3")
def test_a_number_is_stratified_over_folds(tmp_path: Path) -> None:
    table = table_of(600, 3)
    table["y"] = [random.Random(i).lognormvariate(0, 1) for i in range(600)]
    columns = {"id": "id", "y": "label", "x": "numeric", **ROLES}
    declaration = declared(
        write_table(tmp_path / "t.parquet", table),
        columns,
        "regression",
        "stratified",
        cv={"folds": 3},
    )
    validated, pool = split_of(declaration, tmp_path / "pool")
    folds = [
        make_fold(validated, pool, declaration, i, tmp_path / f"f{i}", tmp_path / "ledger")
        for i in range(3)
    ]
    medians = [np.median(read(fold.test)["y"]) for fold in folds]
    assert max(medians) - min(medians) < 0.15
    require_passed(check_folds(folds, declaration))


@pytest.mark.req("D8")
def test_rows_of_derived_groups_stay_in_one_fold_also_where_they_bridge_groups(
    tmp_path: Path,
) -> None:
    columns = {"id": "id", "who": "group", "y": "label", "x": "numeric"}
    draw = random.Random(3)
    first = {
        "id": [f"r{i}" for i in range(240)],
        "who": [f"g{i // 2}" for i in range(240)],
        "x": [float(i) for i in range(240)],
    }
    first["y"] = [draw.randrange(2) for _ in range(240)]
    more = {
        "id": [f"n{i}" for i in range(60)],
        "who": [f"g{draw.randrange(120)}" for _ in range(60)],
        "x": [float(draw.randrange(240)) for _ in range(60)],
    }
    more["y"] = [draw.randrange(2) for _ in range(60)]
    left_out = []
    for name, table in (("1", first), ("2", {n: first[n] + more[n] for n in first})):
        source = write_table(tmp_path / f"{name}.parquet", table)
        declaration = declared(
            source,
            columns,
            split="group",
            data={"group_by": {"duplicates": "features"}},
            cv={"folds": 4},
        )
        validated, pool = split_of(declaration, tmp_path / name, tmp_path / "ledger")
        folds = [
            make_fold(
                validated, pool, declaration, i, tmp_path / name / str(i), tmp_path / "ledger"
            )
            for i in range(4)
        ]
        x = {
            i: v
            for s in SPLITS
            for i, v in zip(*(read(pool.side(s))[n] for n in ("__id", "x")), strict=True)
        }
        for fold in folds:
            side = sides_of(fold)
            for value in set(x.values()):
                assert len({side[i] for i in side if x[i] == value}) <= 1
        require_passed(check_folds(folds, declaration))
        left_out.append(sum(fold.excluded.get("bridge", 0) for fold in folds))
    assert left_out[0] == 0 and left_out[1] > 4 * pool.excluded["bridge"]


@pytest.mark.req("D3")
@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(2, 8))
def test_cuts_make_blocks_that_are_as_even_as_single_steps_allow(
    counts: list[int], blocks: int
) -> None:
    if len(counts) < blocks:
        reject()
    times = np.arange(len(counts), dtype=float)
    cuts = nearest_cuts(times, np.array(counts), blocks)
    assert (
        len(cuts) == blocks - 1
        and all(a < b for a, b in pairwise([times[0], *cuts]))
        and set(cuts) <= set(times)
    )
    if max(counts) * blocks <= sum(counts):
        earlier = [sum(counts[: int(c)]) for c in cuts]
        assert all(
            abs(e - sum(counts) * (i + 1) / blocks) <= max(counts) for i, e in enumerate(earlier)
        )


def moved(folds: list[SplitTables], name: str, folder: Path) -> SplitTables:
    """The first fold, with a row of its train or validation written into its test as well."""
    fold = folds[0]
    tables = {s: pq.read_table(fold.side(s).file.path) for s in SPLITS}
    source = next(t for s, t in tables.items() if s != "test" and name in t["__id"].to_pylist())
    row = source.filter([i == name for i in source["__id"].to_pylist()])
    folder.mkdir()
    path = folder / "test.parquet"
    pq.write_table(pa.concat_tables([tables["test"], row]), path)
    return fold.model_copy(update={"test": TestTable(file=file_ref(path), rows=fold.test.rows + 1)})


@pytest.mark.req("D5")
@pytest.mark.parametrize("way", ["purged", "walk_forward"])
def test_a_planted_row_near_the_test_block_is_found(tmp_path: Path, way: str) -> None:
    validated, _, folds, declaration = made(tmp_path, table_of(300, 4), way, 3)
    clean = check_intervals(folds[1], validated.spec, declaration).results[0]
    assert clean.verdict == "pass" and "no timestamp is in both" in clean.summary
    both = {s: pq.read_table(folds[1].side(s).file.path) for s in SPLITS}
    inside = both["test"].slice(0, 1)
    path = tmp_path / "train.parquet"
    pq.write_table(pa.concat_tables([both["train"], inside]), path)
    leaky = folds[1].model_copy(
        update={"train": TrainTable(file=file_ref(path), rows=folds[1].train.rows + 1)}
    )
    found = check_intervals(leaky, validated.spec, declaration).results[0]
    assert (
        found.verdict == "fail"
        and "1 row has a timestamp of the test block" in found.summary
        and "labels of 1 row overlap" in found.summary
    )


@pytest.mark.req("D5")
def test_a_row_that_is_tested_twice_or_never_is_found(tmp_path: Path) -> None:
    _, _, folds, declaration = made(tmp_path, table_of(300, 4), "kfold", 3)
    name = read(folds[0].train)["__id"][0]
    twice = check_folds([moved(folds, name, tmp_path / "moved"), *folds[1:]], declaration).results[
        0
    ]
    assert (
        twice.verdict == "fail" and f"rows are tested in two folds (first: {name})" in twice.summary
    )
    never = check_folds(folds[:2], declaration).results[0]
    assert (
        never.verdict == "fail"
        and f"{folds[2].test.rows} of " in never.summary
        and "rows are tested in no fold" in never.summary
    )


PINNED = {"pin": {"g0": "train", "g1": "val", "g2": "test", "g3": "train"}}
REFUSED: list[tuple[str, int, dict[str, Any], dict[str, Any], dict[str, list[Any]], str]] = [
    (
        "group",
        5,
        PINNED,
        {},
        {"who": [f"g{i % 4}" for i in range(200)]},
        (
            r"cv\.folds: expected at least 5 groups in train and validation, one for each fold, got"
            r" 3; lower cv\.folds"
        ),
    ),
    (
        "walk_forward",
        5,
        {"embargo": 0},
        {},
        {"at": [float(i % 7) for i in range(200)]},
        r"cv\.folds: 5 folds of kind 'walk_forward' need at least 7 different times, got \d; lower",
    ),
    (
        "walk_forward",
        3,
        {},
        {"embargo": 80},
        {},
        (
            r"fold 1 of 3 \(walk_forward\): expected at least two different times to train and"
            r" validate on, got 0; lower cv\.folds, or shorten"
        ),
    ),
    (
        "group",
        4,
        {},
        {"val": 1e-6},
        {},
        (
            r"fold \d of 4 \(group\): expected rows on every side, .*val would be empty; lower"
            r" cv\.folds, change cv\.seed"
        ),
    ),
]


@pytest.mark.req("S2")
@pytest.mark.parametrize(
    ("way", "k", "split", "cv", "columns", "message"),
    REFUSED,
    ids=["groups", "times", "embargo", "val"],
)
def test_folds_that_cannot_be_made_are_refused_with_what_to_do(
    tmp_path: Path,
    way: str,
    k: int,
    split: dict[str, Any],
    cv: dict[str, Any],
    columns: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(SplitError, match=message):
        made(tmp_path, {**table_of(200, 2), **columns}, way, k, split=split, **cv)


IMPOSSIBLE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"kind": "random"}, {"folds": 1}, "folds must be 0 .* or at least 2, got 1"),
    (
        {"kind": "random"},
        {"folds": 5, "kind": "group"},
        "cv.kind 'group' needs a column with role group, or groups derived",
    ),
    (
        {"kind": "random"},
        {"folds": 5, "kind": "purged"},
        "cv.kind 'purged' needs a column with role time",
    ),
    (
        {"kind": "random"},
        {"folds": 5, "horizon": "2h"},
        "cv.horizon has no meaning for folds of kind 'kfold'",
    ),
    (
        {"kind": "group"},
        {"folds": 5, "kind": "kfold"},
        (
            "cv.kind 'kfold' would put a group into train and test, which split.kind 'group' keeps"
            " apart"
        ),
    ),
    (
        {"kind": "time"},
        {"folds": 5, "kind": "kfold"},
        "cv.kind 'kfold' would train on what is later than the test rows",
    ),
    ({"kind": "group_time"}, {"folds": 2}, "group_walk_forward needs at least 3"),
    (
        {"kind": "time"},
        {"folds": 3, "kind": "purged", "window": 3},
        "cv.window has no meaning for folds of kind 'purged'",
    ),
]


@pytest.mark.req("P1")
@pytest.mark.parametrize(("split", "cv", "message"), IMPOSSIBLE, ids=lambda v: str(v)[:30])
def test_impossible_folds_are_refused_before_anything_runs(
    split: dict[str, Any], cv: dict[str, Any], message: str
) -> None:
    roles = {
        "group": {"who": "group"},
        "time": {"at": "time"},
        "group_time": {"who": "group", "at": "time"},
    }.get(split["kind"], {})
    with pytest.raises(ConfigError, match=message):
        declared(
            "t.parquet", {"id": "id", "y": "label", "x": "numeric", **roles}, split=split, cv=cv
        )
