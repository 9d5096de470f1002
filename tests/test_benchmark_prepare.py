"""The benchmark of preparation: its table, its arithmetic and its section of the page."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.preparation.ours import prepare
from benchmarks.preparation.processes import Peak
from benchmarks.preparation.rows import write_rows
from benchmarks.prepare import ALIKE, PANDAS, POLARS, SCAN, WHOLE, Run, exponent, section


def test_the_same_number_of_rows_is_the_same_table(tmp_path: Path) -> None:
    first, again = (write_rows(tmp_path / name, 500).read_bytes() for name in ("a", "b"))
    assert first == again
    names = pq.read_schema(tmp_path / "a").names
    assert (
        len([n for n in names if n[0] in "xnm"]) == 20
        and len([n for n in names if n[0] == "c"]) == 5
    )


def test_time_that_grows_faster_than_the_rows_has_an_exponent_above_one() -> None:
    assert exponent([10, 100, 1000], [1.0, 10.0, 100.0]) == 1.0
    assert exponent([10, 1000], [1.0, 1000.0]) == 1.5


def test_ratios_of_the_section_are_against_the_same_checks_and_the_scan() -> None:
    seconds = {WHOLE: 30.0, ALIKE: 10.0, PANDAS: 40.0, POLARS: 5.0, SCAN: 2.0}
    runs = [
        Run(tool, rows, Peak(10**9, 0, cpu * rows / 2000, cpu * rows / 1000, True))
        for rows in (1000, 10_000)
        for tool, cpu in seconds.items()
    ]
    runs[2] = runs[2]._replace(peak=runs[2].peak._replace(seconds=60.0))
    text = section(runs, 1)
    assert f"| {PANDAS} | 40.0 | 60.0 | 1.00 | 12.00 | 4.00 | 60.0 | 20.0 |" in text
    assert f"| {POLARS} | 1.00 |" in text


def test_both_forms_of_the_preparation_run(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "t.parquet", 3000)
    prepare(table, tmp_path / "out", alike=True)
    assert (tmp_path / "out" / "arrays" / "train" / "numeric.npy").is_file()
