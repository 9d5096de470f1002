"""Duration of the review of a large repository.

    python -m benchmarks.review_speed [--files 1000] [--lines 300]

Writes that many files of that many lines on average from the programs of `tests/zoo` (training
scripts, so that every rule has work to do), and reviews them as the command line does. Exit code 0
if it takes under a minute. The time of Python to compile the same files in one process is printed
too, since machines differ more than versions of the review.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from training.review.engine import chosen_rules, python_files, review_files

ZOO = Path(__file__).resolve().parent.parent / "tests" / "zoo"
MOST_SECONDS = 60.0


def write_files(folder: Path, files: int, lines: int) -> None:
    """Write files of `lines` lines on average, each of one or more whole programs.

    Each file begins with the next program in turn.
    """
    programs = [
        path.read_text() for path in sorted([*ZOO.glob("scripts/*.py"), *ZOO.glob("sound/*.py")])
    ]
    written = 0
    for number in range(files):
        text, following = "", number
        while not text or written + text.count("\n") + programs[following % len(programs)].count(
            "\n"
        ) / 2 < lines * (number + 1):
            text += programs[following % len(programs)]
            following += 1
        written += text.count("\n")
        (folder / f"file_{number:04}.py").write_text(text)


def main() -> int:
    """Measure and print; return 0 if it was fast enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, given.files, given.lines)
        paths = python_files([folder])
        total = sum(path.read_text().count("\n") for path in paths)
        started = time.perf_counter()
        found = review_files(paths, chosen_rules())
        seconds = time.perf_counter() - started
        texts = [path.read_text() for path in paths]
        started = time.perf_counter()
        for text in texts:
            compile(text, "text", "exec", dont_inherit=True)
        compiled = time.perf_counter() - started
    print(
        f"{len(paths):,} files, {total:,} lines, {os.cpu_count()} cores: {seconds:.1f} s,"
        f" {1e6 * seconds / total:.0f} µs a line, {len(found)} findings"
    )
    print(f"{seconds / compiled:.1f} times as long as compiling them, {compiled:.1f} s")
    return 0 if seconds < MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
