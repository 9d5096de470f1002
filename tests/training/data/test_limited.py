"""Splits, folds and leak checks under `data.memory_limit`: the same bytes and verdicts as without,
in memory that does not hold them at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.preparation.rows import write_rows
from schemas import data_config
from schemas.config import SPLITS
from schemas.errors import DataError, SplitError
from tests.training.data.chain import declared, split_of, write_table
from training.data.engine import hash_order
from training.data.engine.engine import engine_for
from training.data.fit.normalize import fit
from training.data.leakage.duplicates import duplicate_results, hash_features, quick_hash_sql
from training.data.leakage.shared_times import shared_time_results
from training.data.leakage.sides import sides_of
from training.data.split import groups, strata
from training.data.split.folds import make_fold
from training.data.split.split import split

COLUMNS = {
    "row_id": "id",
    "patient": "group",
    "seen_at": "time",
    "outcome": "label",
    "c*": "categorical",
    "*": "feature",
}
MANY_PARTS = (  # of a few thousand rows: units are dealt out, and rows ordered, in a dozen parts
    "4MB"
)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of some megabytes, which stand to a small table as a real one to millions of rows; the
    engine itself needs more than that.
    """
    monkeypatch.setattr(data_config, "LEAST_MEMORY", 1)
    monkeypatch.setattr("training.data.engine.engine.ENGINE_SHARE", 25.0)
    monkeypatch.setattr(hash_order, "PART_SHARE", 0.01)
    monkeypatch.setattr(strata, "BYTES_A_UNIT", 16_384)


def _digests(
    folder: Path, table: Path, kind: str, cv: str | None, limit: str | None, seed: int, task: str
) -> list[str]:
    """Digests of the sides, of the ledger and of a fold."""
    columns = COLUMNS if task == "binary" else COLUMNS | {"x0": "label", "outcome": "feature"}
    sections: dict[str, Any] = {"cv": {"folds": 3, "kind": cv, "seed": seed}} if cv else {}
    way = {"kind": kind} | ({} if kind == "time" else {"seed": seed})
    declaration = declared(table, columns, task, way, {"memory_limit": limit}, **sections)
    validated, sides = split_of(declaration, folder, folder / "ledger")
    made = [sides] + (
        [make_fold(validated, sides, declaration, 1, folder / "fold", folder / "folds")]
        if cv
        else []
    )
    parts = sorted(path.name for path in folder.rglob("*.parts/*.parquet"))
    return [*(found.side(side).file.sha256 for found in made for side in SPLITS), *parts]


@pytest.mark.req("D9")
@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("kind", "cv", "task"),
    [
        ("stratified", "stratified", "binary"),
        ("stratified_group", "stratified_group", "binary"),
        pytest.param("stratified_group", "group", "regression", marks=pytest.mark.long),
        pytest.param("random", "kfold", "binary", marks=pytest.mark.long),
        pytest.param("time", "walk_forward", "binary", marks=pytest.mark.long),
    ],
)
@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1000), rows=st.integers(1500, 4000))
def test_a_limit_changes_no_byte_of_a_split_or_fold(
    tmp_path_factory: pytest.TempPathFactory, kind: str, cv: str, task: str, seed: int, rows: int
) -> None:
    folder = tmp_path_factory.mktemp("limited")
    table = write_rows(folder / "t.parquet", rows, measures=2, levels=(20,))
    free, limited = (
        _digests(folder / str(limit), table, kind, cv, limit, seed, task)
        for limit in (None, MANY_PARTS)
    )
    assert free == limited


@pytest.mark.req("D9")
@pytest.mark.usefixtures("small_limits")
def test_new_rows_join_the_frozen_strata_alike_under_a_limit(tmp_path: Path) -> None:
    found = []
    for limit in (None, MANY_PARTS):
        for rows in (1500, 3000):  # the second time units of the first are held
            table = write_rows(tmp_path / f"{rows}.parquet", rows, measures=2, levels=(20,))
            declaration = declared(
                table, COLUMNS, "binary", {"kind": "stratified_group"}, {"memory_limit": limit}
            )
            _, sides = split_of(
                declaration, tmp_path / f"{limit}-{rows}", tmp_path / f"ledger-{limit}"
            )
        found.append([sides.side(side).file.sha256 for side in SPLITS])
    assert found[0] == found[1]


@pytest.mark.req("D9")
def test_leak_checks_find_the_same_in_a_fraction_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300,000 rows under 24 MB; in half of that the engine's own grouping of all of them at once
    fails for certain.
    """
    monkeypatch.setattr(data_config, "LEAST_MEMORY", 1)
    table = write_rows(tmp_path / "t.parquet", 300_000, measures=2, levels=(50,))
    declaration = declared(table, COLUMNS, split="group")
    validated, sides = split_of(declaration, tmp_path / "out")
    found = []
    for limit in (None, "24MB"):
        limited = declared(table, COLUMNS, split="group", data={"memory_limit": limit})
        with engine_for(limited.data) as connection:
            opened = sides_of(connection, sides, validated.spec, limited)
            hash_features(opened)
            found.append(
                (
                    [*duplicate_results(opened), *shared_time_results(opened)],
                    fit(sides.train, validated.spec, limited),
                )
            )
    assert found[0] == found[1]
    limited = declared(table, COLUMNS, split="group", data={"memory_limit": "12MB"})
    with (
        pytest.raises(DataError, match=r"data\.memory_limit 12MB does not suffice"),
        engine_for(limited.data) as connection,
    ):
        opened = sides_of(connection, sides, validated.spec, limited)
        grouped = (
            f"select {quick_hash_sql(opened)} as h from {opened.together(validated.spec.features)}"
            " group by 1 having count(*) > 1"
        )
        connection.execute(f"create temp table at_once as {grouped}")


@pytest.mark.req("D9")
@pytest.mark.usefixtures("small_limits")
def test_groups_that_cannot_be_derived_within_the_limit_are_refused_with_the_one_that_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    table = write_table(
        tmp_path / "t.parquet",
        {
            "id": np.arange(2000),
            "y": np.arange(2000) % 2,
            "a": rng.normal(size=2000),
            "b": rng.normal(size=2000),
        },
    )
    columns, way = (
        {"id": "id", "y": "label", "*": "feature"},
        {"group_by": {"duplicates": ["a", "b"]}},
    )
    sides = []
    for limit in (None, "1MB"):
        declaration = declared(table, columns, split="group", data={**way, "memory_limit": limit})
        validated, made = split_of(declaration, tmp_path / str(limit))
        sides.append([made.side(side).file.sha256 for side in SPLITS])
    assert sides[0] == sides[1]
    monkeypatch.setattr(groups, "BYTES_A_KEY", 1600)
    with pytest.raises(
        SplitError,
        match=(
            r"2,000 keys of data\.group_by .* takes about 3MB, more than the limit of 1MB; set"
            r" data\.memory_limit: 4MB or more"
        ),
    ):
        split(validated, declaration, tmp_path / "refused", tmp_path / "ledger")
    assert not (tmp_path / "refused" / "train.parquet").exists()
