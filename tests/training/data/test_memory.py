"""`data.memory_limit`: the same bytes with it as without, an error that names it where it does not
suffice, and memory that stays within it.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from benchmarks.preparation.memory import Measured, measure, section
from benchmarks.preparation.processes import Peak, Step, sampled
from benchmarks.preparation.rows import write_rows
from schemas.config import SPLITS, DataConfig, Declaration
from schemas.errors import DataError
from tests.training.data.chain import declared, split_of
from training.data.arrays.shards import materialise
from training.data.engine.engine import engine_for
from training.data.engine.hash_order import in_hash_order
from training.data.engine.in_memory import held, holding
from training.data.fit.normalize import fit
from training.data.leakage import check_leakage, check_overlap

COLUMNS = {
    "row_id": "id",
    "patient": "group",
    "seen_at": "time",
    "outcome": "label",
    "c*": "categorical",
    "*": "feature",
}


@pytest.mark.req("D9")
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("100MB", "at least 200MB"),
        ("1 gigabyte", "such as 512MB, 1GB"),
        ("many", "size with its unit"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(limit: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig(uri="t.parquet", columns={"y": "label"}, memory_limit=limit)


@pytest.mark.req("D9")
def test_an_engine_that_runs_out_of_memory_names_the_limit() -> None:
    data = DataConfig(uri="t.parquet", columns={"y": "label"}, memory_limit="200MB")
    with (
        pytest.raises(DataError, match=r"data\.memory_limit 200MB does not suffice.*raise it"),
        engine_for(data),
    ):
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to pin block")
    with engine_for(data) as connection:
        share = connection.execute("select current_setting('memory_limit')").fetchall()[0][0]
    # seven tenths of 200 MB; the rest is for what stands next to the engine
    assert share == "133.5 MiB"


@pytest.mark.req("D9")
def test_rows_sorted_part_by_part_are_in_the_order_of_the_engine(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"__id": [f"row {i}" for i in range(5000)], "x": [float(i) for i in range(5000)]}),
        tmp_path / "t.parquet",
    )
    table = f"read_parquet('{tmp_path}/t.parquet')"
    with duckdb.connect() as connection:
        wanted = connection.execute(f"select __id, x from {table} order by md5(__id)").fetchall()
        for limit in (10_000, 100_000_000):  # many parts, and one
            found = pa.Table.from_batches(
                list(in_hash_order(connection, table, ("__id", "x"), limit, tmp_path))
            )
            assert [tuple(row.values()) for row in found.to_pylist()] == wanted
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


@pytest.mark.req("D9")
@pytest.mark.parametrize(
    "split",
    [
        *(pytest.param(way, marks=pytest.mark.long) for way in ("group", "stratified")),
        {"kind": "time", "cuts": {"val": "2024-10-01", "test": "2025-04-01"}},
    ],
)
def test_no_path_changes_a_byte(tmp_path: Path, split: str | dict[str, Any]) -> None:
    """Rows held in memory from step to step, read from files step by step, or within a limit;
    whatever the order of the source.
    """
    table = write_rows(tmp_path / "t.parquet", 70_000, measures=2, levels=(20,))
    turned = tmp_path / "turned.parquet"
    rows = pq.read_table(table)
    pq.write_table(
        rows.take(np.random.default_rng(0).permutation(len(rows))), turned, row_group_size=20_000
    )
    found = [
        _digests(
            declared(source, COLUMNS, split=split, data={"memory_limit": limit}),
            tmp_path / str(number),
            keep,
        )
        for number, (source, limit, keep) in enumerate(
            [(turned, None, True), (table, None, False), (table, "200MB", False)]
        )
    ]
    assert found[1:] == found[:1] * 2


def _digests(declaration: Declaration, out: Path, keep: bool) -> tuple[Any, ...]:
    """SHA-256 of everything that preparation writes, and the verdicts of its checks."""
    with holding() if keep else nullcontext():
        validated, sides = split_of(declaration, out)
        assert (held(sides.train) is not None) == (keep and declaration.split.kind != "stratified")
        report = [check_overlap(sides, validated, declaration)]
        report += (
            [check_leakage(sides, validated, declaration)]
            if declaration.split.kind == "group"
            else []
        )
        statistics = fit(sides.train, validated.spec, declaration)
        arrays = materialise(sides, validated, statistics, declaration, out / "arrays")
    assert held(sides.train) is None
    return (
        validated.table.file.sha256,
        [sides.side(side).file.sha256 for side in SPLITS],
        sides.summary,
        report,
        statistics,
        arrays.sha256,
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.req("D9")
def test_a_table_of_several_times_the_limit_stays_within_it(tmp_path: Path) -> None:
    """1.1 GB of rows under 200 MB: no more than 700 MB next to the limit, over all processes."""
    assert measure(10_000_000, "200MB", "prepare", tmp_path).prepared.anonymous < 900e6


@pytest.mark.req("D9")
def test_memory_and_cpu_are_told_by_step_and_by_process(tmp_path: Path) -> None:
    """A child that holds 200 MB between two lines of a log is found in the step that it belongs to,
    and nowhere else.
    """
    child = "x = bytearray(200_000_000); import time; time.sleep(0.8)"
    work = (
        "import subprocess, sys, time; print('✓ before  done', flush=True);"
        f" subprocess.run([sys.executable, '-c', {child!r}, 'uvi' + 'corn']); print('✓ held  done',"
        " flush=True); time.sleep(0.5); print('✓ after  done', flush=True)"
    )
    peak = sampled([sys.executable, "-c", work], dict(os.environ), tmp_path / "log")
    steps = {step.name: step for step in peak.steps}
    assert peak.ended_well and list(steps) == ["before", "held", "after", "end"]
    assert steps["held"].anonymous > 200e6 > steps["after"].anonymous
    assert peak.anonymous >= steps["held"].anonymous
    assert {role: held > 200e6 for role, held, _ in peak.roles} == {
        "command and its tasks": False,
        "Prefect's server": True,
    }


@pytest.mark.req("D9")
def test_the_page_gives_peaks_until_the_data_are_prepared_and_the_exponent_of_each_step() -> None:
    found = []
    for rows in (1000, 100):
        steps = (Step("poison", rows / 20.0, 10**9, 0), Step("train", rows / 20.0, 3 * 10**9, 0))
        found.append(
            Measured(
                rows,
                "1GB",
                "run",
                Peak(3 * 10**9, 0, 9.0, rows / 10.0, True, steps, (("rank", 10**9, 0),)),
            )
        )
    text = section(found)
    assert "| 1,000 | 1.00 | 3.00 | 0.00 | 100 | 9 |" in text
    assert "| train | 5.0 | 50.0 | 1.00 | 3.00 | 0.00 |" in text
