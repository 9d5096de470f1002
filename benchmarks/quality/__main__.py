"""Compare this project with other libraries on tables: `python -m benchmarks.quality`.

Or `make bench-quality`. It takes hours; results are kept one by one, so that an interrupted run
continues. `--quick` takes less than 20 minutes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import write_section
from benchmarks.quality.candidates import CANDIDATES, QUICK
from benchmarks.quality.page import HEAD, details, summary
from benchmarks.quality.run import job, prepared_rows, run
from benchmarks.quality.tables import QUICK as QUICK_TABLES
from benchmarks.quality.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    options = _options(arguments)
    names = options.tables or (QUICK_TABLES if options.quick else [t.name for t in TABLES])
    seeds = 1 if options.quick else options.seeds
    wanted = options.candidates or (QUICK if options.quick else [c.name for c in CANDIDATES])
    jobs = [
        job(one, seed, options.cache, options.data)
        for one in TABLES
        if one.name in names
        for seed in range(seeds)
    ]
    found = run([c for c in CANDIDATES if c.name in wanted], jobs, options.cache)
    rows = {(one.table.name, one.seed): prepared_rows(one, options.cache) for one in jobs}
    text = summary(jobs, rows, found, options.first)
    print(text)
    write_section("summary", text, options.output, HEAD)
    write_section("scores", details(jobs, rows, found), options.output, HEAD)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four small tables, one seed")
    parser.add_argument("--tables", nargs="*", help="only these")
    parser.add_argument("--candidates", nargs="*", help="only these; constant is needed")
    parser.add_argument("--seeds", type=int, default=3, help="split seeds of each table")
    parser.add_argument("--first", default="Bulkhead, default", help="who is compared with each")
    data = os.environ.get("BULKHEAD_DATA", str(ROOT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(data), help="folder of data sets")
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache" / "bulkhead-quality", help="results"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "benchmarks-quality.md", help="the page"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
