"""Time and memory of the hard assertions and of the whole audit, compared with a bare scan of the
columns that they use.

Each is measured in its own process: `python -m benchmarks.leaks.speed {scan,hard,audit}
FOLDER`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from schemas.audit import FilesToAudit
from schemas.load import declare
from schemas.records import TableSpec
from training.data.engine.engine import connect, literal, row
from training.data.leakage.sides import Sides

NUMERIC, CATEGORICAL = 12, 4
TRAIN_SHARE = 0.75
SIDES = ("train", "test")
USED = ("id", "person", "seen")  # columns that the hard assertions read


def write_tables(folder: Path, rows: int, keys: str = "numbers") -> Path:
    """Write two Parquet files with ten consecutive rows a person; train ends an hour before test.

    Args:
        folder: where the files go.
        rows: of both files together.
        keys: `numbers`, or `texts` such as K123-7, which have other spellings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cut = int(rows * TRAIN_SHARE) // 10 * 10
    noise = "(hash(i * {0} + {0}) % 1000000007) / 1000000007.0"
    parts = [
        f"cast(({noise.format(2 * k + 3)} + {noise.format(2 * k + 101)} +"
        f" {noise.format(2 * k + 211)} - 1.5) * 2 as double) as x{k}"
        for k in range(NUMERIC)
    ]
    parts += [
        f"'v' || cast(hash(i * {k + 31}) % {10 ** (k + 1)} as varchar) as c{k}"
        for k in range(CATEGORICAL)
    ]
    parts += [f"cast(x0 + x1 + {noise.format(7)} * 3 > 1.5 as integer) as outcome"]
    texts = (
        "'K' || cast(hash(i) % 100000000 as varchar) || '-' || cast(i as varchar) as id, 'P' ||"
        " cast(hash(i // 10) as varchar) as person"
    )
    names = texts if keys == "texts" else "i * 7919 as id, i // 10 * 104729 as person"
    seen = (
        f"make_timestamp(1600000000000000 + i * 1000000 + case when i >= {cut} then 3600000000 else"
        " 0 end) as seen"
    )
    with closing(connect()) as connection:
        for side, low, high in (("train", 0, cut), ("test", cut, rows)):
            query = f"select {names}, {seen}, {', '.join(parts)} from range({low}, {high}) t(i)"
            connection.execute(
                f"copy ({query}) to {literal(str(folder / f'{side}.parquet'))} (format parquet,"
                " compression zstd)"
            )
    return folder


def bare_scan(folder: Path) -> Callable[[], None]:
    """Read every value of the columns that the hard assertions use, and do nothing else."""

    def scan() -> None:
        with closing(connect()) as connection:
            for side in SIDES:
                row(
                    connection,
                    f"select {', '.join(f'bit_xor(hash({c}))' for c in USED)} from"
                    f" read_parquet({literal(str(folder / f'{side}.parquet'))})",
                )

    return scan


def hard_assertions(folder: Path) -> Callable[[], None]:
    """Check ids, groups, their spellings and times, on files as a split writes them."""
    from training.data.leakage import hard_results

    columns = {"id": "id", "person": "group", "seen": "time", "outcome": "label", "*": "feature"}
    tree = {
        "name": "speed",
        "data": {"uri": "speed.parquet", "columns": columns},
        "task": {"kind": "binary"},
        "split": {"kind": "group_time"},
    }
    numeric, categorical = (
        tuple(f"x{k}" for k in range(NUMERIC)),
        tuple(f"c{k}" for k in range(CATEGORICAL)),
    )
    spec = TableSpec(
        id=("id",),
        group=("person",),
        time="seen",
        time_is_timestamp=True,
        label="outcome",
        label_type="int",
        weight=None,
        split=None,
        numeric=numeric,
        categorical=categorical,
        tensor={},
    )

    def check() -> None:
        with closing(connect()) as connection:
            paths = {side: literal(str(folder / f"{side}.parquet")) for side in SIDES}
            typed = (
                "cast(id as varchar) as __id, cast(id as varchar) as __key, cast(person as varchar)"
                " as __group, epoch(seen) as __time, outcome"
            )
            relations: Any = {
                side: (
                    f"(select {typed}, {', '.join((*numeric, *categorical))} from"
                    f" read_parquet({path}))"
                )
                for side, path in paths.items()
            }
            counts: Any = {
                side: int(row(connection, f"select count(*) from read_parquet({path})")[0])
                for side, path in paths.items()
            }
            failed = [
                r
                for r in hard_results(Sides(connection, relations, counts, spec, declare(tree)))
                if r.verdict == "fail"
            ]
        if failed:
            raise RuntimeError(f"the generated sides are honest, but: {failed[0].summary}")

    return check


def full_audit(folder: Path) -> Callable[[], None]:
    """Audit the files, as `bulkhead audit --train --test` does."""
    from training.data.leakage.audit import audit_files

    paths = {side: (str(folder / f"{side}.parquet"),) for side in SIDES}
    request = FilesToAudit(
        train=paths["train"],
        test=paths["test"],
        id=("id",),
        group=("person",),
        time="seen",
        label="outcome",
        task="binary",
    )
    return lambda: print(len(audit_files(request).checks.results), file=sys.stderr)


WORK = {"scan": bare_scan, "hard": hard_assertions, "audit": full_audit}


def measured(mode: str, folder: Path, repeats: int) -> dict[str, float]:
    """Return the median seconds of the work alone, and the largest memory of its process, in MB."""
    runs = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.leaks.speed", mode, str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{mode} on {folder}: {done.stderr.strip().splitlines()[-1]}")
        runs.append(json.loads(done.stdout))
    return {name: median(r[name] for r in runs) for name in ("seconds", "megabytes")}


def peak_megabytes() -> float:
    """Return the peak memory of this program.

    `ru_maxrss` would begin with the memory of the process that started it.
    """
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def main() -> None:
    """Measure one kind of work on one folder and print the figures."""
    work = WORK[sys.argv[1]](Path(sys.argv[2]))
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "megabytes": peak_megabytes()}))


if __name__ == "__main__":
    main()
