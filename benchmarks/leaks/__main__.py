"""Plant leaks, split honestly, and audit both with this project and its peers: `python -m
benchmarks.leaks`, or `make bench-leaks`.

The page goes to docs/benchmarks-leaks.md. Results are saved by case, so that an interrupted run
continues. The whole takes about an hour on two idle cores; `--quick` takes a minute.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.leaks.bases import Base
from benchmarks.leaks.cases import Case, Tables, honest_cases, planted_cases
from benchmarks.leaks.page import HEAD, Measured, cases_section, speed_section
from benchmarks.leaks.plants_roles import Planted
from benchmarks.leaks.run import Results, run_cases
from benchmarks.leaks.speed import measured, write_tables
from benchmarks.leaks.splitting import Sides
from benchmarks.leaks.tools import Peer, peers
from benchmarks.page import write_section

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "benchmarks-leaks.md"
HONEST = 300
QUICK_CASES, QUICK_HONEST = 8, 4
PEER_SECONDS = 300.0
TABLES = [
    (words, rows, keys)
    for words, rows in (("1 M", 1_000_000), ("10 M", 10_000_000))
    for keys in ("numbers", "texts")
]  # of the speed table
QUICK_TABLES = [("20 k", 20_000, "numbers")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the page."""
    options = _options(arguments)
    installed = [] if options.no_peers else _installed(peers(options.cache / "environments"))
    try:
        if options.part != "speed":
            write_section(
                "cases", cases_section(_measured(options, installed)), options.output, HEAD
            )
        if options.part != "cases" and not options.only:
            write_section("speed", speed_section(_speed(options, installed)), options.output, HEAD)
    finally:
        for peer in installed:
            peer.stop()
    print(options.output, file=sys.stderr)


def _measured(options: argparse.Namespace, installed: Sequence[Peer]) -> Measured:
    """Run every case through every tool, and the poison test."""
    started = time.monotonic()
    tables = Tables(None if options.quick else _data(options.data))
    cases, results = _cases(tables, options), Results(options.cache / "results.jsonl")
    return Measured(
        columns={c.name: planted.columns for c in cases if (planted := tables.planted(c))},
        peers=installed,
        records=run_cases(cases, tables, installed, results),
        poison=poison_results(),
        settings=f"seed {options.seed}"
        + (", the quick form" if options.quick else "")
        + (f", only {options.only}" if options.only else ""),
        minutes=(time.monotonic() - started) / 60,
        kept=results.kept,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leaks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    home = Path(os.environ.get("BULKHEAD_HOME", ROOT / ".bulkhead"))
    parser.add_argument(
        "--quick", action="store_true", help="a few cases on generated data, no large tables"
    )
    parser.add_argument(
        "--part",
        choices=("cases", "speed"),
        help="what is found and what is wrongly accused, or how long it takes; default both",
    )
    parser.add_argument(
        "--only", metavar="KIND", help="one kind or family of leaks, e.g. shared_ids or copies"
    )
    parser.add_argument("--no-peers", action="store_true", help="this project alone")
    parser.add_argument(
        "--seed", type=int, default=0, help="chooses rows, splits and places of the leaks"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help=(
            "folder of the public data sets; default BULKHEAD_DATA, then shared/data next to the"
            " project"
        ),
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=home / "bench-leaks",
        help="environments of the peers and results by case",
    )
    parser.add_argument("--output", type=Path, default=PAGE)
    return parser.parse_args(arguments)


def _data(given: Path | None) -> Path | None:
    """Return the folder of public data; None if there is none, for generated tables only."""
    folder = given or Path(os.environ.get("BULKHEAD_DATA", ROOT.parent / "shared" / "data"))
    if folder.is_dir():
        return folder
    print(
        f"public data are absent (no folder {folder}; set BULKHEAD_DATA): generated tables alone",
        file=sys.stderr,
    )
    return None


def _cases(tables: Tables, options: argparse.Namespace) -> list[Case]:
    """Return planted cases, their honest counterparts, and honest splits up to the wanted number.

    The cases of the peers are the first of each.
    """
    planted = list(planted_cases(tables, options.only, options.seed))
    if options.quick:
        planted = planted[:: max(1, len(planted) // QUICK_CASES)][:QUICK_CASES]
    honest = list(honest_cases(tables, QUICK_HONEST if options.quick else HONEST, options.seed))[
        : QUICK_HONEST if options.quick else None
    ]
    shown = {c.honest for c in planted if c.peers}
    counterparts = [
        Case(c.base, c.task, c.split, c.seed, peers=c in shown)
        for c in dict.fromkeys(c.honest for c in planted)
    ]
    known = {c.name for c in counterparts}
    return [*planted, *counterparts, *(c for c in honest if c.name not in known)]


def _installed(every: list[Peer]) -> list[Peer]:
    for peer in every:
        print(
            f"{peer.name} {peer.version}:"
            f" {'ready' if peer.install() else 'not run: ' + peer.absent}",
            file=sys.stderr,
            flush=True,
        )
    return every


def poison_results() -> list[tuple[str, bool, bool]]:
    """Run the poison test on each fit: name, whether it reads held-out rows, whether it fails."""
    from benchmarks.leaks.pipelines import CLEAN, LEAKY, accused

    return [
        (name, is_leaky, accused(fit))
        for is_leaky, fits in ((True, LEAKY), (False, CLEAN))
        for name, fit in fits.items()
    ]


def _speed(options: argparse.Namespace, installed: Sequence[Peer]) -> list[dict[str, str]]:
    """Return the lines of the speed table; the large tables only in the full form."""
    lines = []
    for words, rows, keys in QUICK_TABLES if options.quick else TABLES:
        folder = Path(tempfile.mkdtemp(prefix="bulkhead-speed-"))
        try:
            write_tables(folder, rows, keys)
            found = {
                mode: measured(mode, folder, 1 if options.quick or rows > 1e6 else 3)
                for mode in ("scan", "hard", "audit")
            }
            line = {"rows": words, "keys": keys}
            line |= {
                "bare scan": f"{found['scan']['seconds']:.2f} s",
                "hard assertions": (
                    f"{found['hard']['seconds']:.2f} s, {found['hard']['megabytes']:.0f} MB"
                ),
            }
            line |= {"of the scan": f"{found['hard']['seconds'] / found['scan']['seconds']:.1f} ×"}
            line |= {
                "full audit": (
                    f"{found['audit']['seconds']:.1f} s, {found['audit']['megabytes']:.0f} MB"
                )
            }
            line |= {
                p.name: _peer_time(p, folder) if rows <= 1e6 and keys == "numbers" else "–"
                for p in installed
                if not p.absent
            }
            lines.append(line)
        finally:
            shutil.rmtree(folder)
    return lines


def _peer_time(peer: Peer, folder: Path) -> str:
    empty = pd.DataFrame()
    sides = Sides(
        Base("speed", empty, "binary", "outcome", id="id", group="person", time="seen"),
        "time",
        empty,
        empty,
    )
    peer.seconds = PEER_SECONDS
    outcome = peer.audit(folder / "train.parquet", folder / "test.parquet", Planted(sides))
    return f"{outcome.seconds:.1f} s" + (f" ({outcome.error})" if outcome.error else "")


if __name__ == "__main__":
    main()
