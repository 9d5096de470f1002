"""Run the tools over the cases, interleaved, and save every result at once, so that an interrupted
run continues.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import benchmarks.leaks
import schemas
import training.data
from benchmarks.leaks.cases import Case, Tables
from benchmarks.leaks.tools import OURS, Bulkhead, Finding, Outcome, Peer, Tool

MEASURED = (schemas, training.data)
PLANTING = (
    "bases.py",
    "cases.py",
    "kinds.py",
    "plants_duplicates.py",
    "plants_labels.py",
    "plants_roles.py",
    "plants_ties.py",
    "splitting.py",
)


@dataclass(frozen=True)
class Record:
    """Result of one tool on one case."""

    tool: str
    case: Case
    outcome: Outcome


class Results:
    """Outcomes by tool and case, in a file that grows line by line; other code has its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.planting = _digest(
            [Path(str(benchmarks.leaks.__file__)).parent / name for name in PLANTING]
        )
        self.code = _digest(
            [
                f
                for package in MEASURED
                for f in sorted(Path(str(package.__file__)).parent.rglob("*.py"))
            ]
        )
        self.kept = 0  # requested results that existed already
        self.found: dict[str, Outcome] = {}
        for line in path.read_text().splitlines() if path.is_file() else ():
            entry = json.loads(line)
            findings = tuple(
                Finding(f["check"], f["verdict"], tuple(f["columns"]), f["text"])
                for f in entry["findings"]
            )
            self.found[entry["key"]] = Outcome(findings, entry["seconds"], entry["error"])

    def key(self, tool: str, version: str, case: Case) -> str:
        """Return the tool with its version or code, and the case with the code that plants it."""
        return f"{tool}|{self.code if tool == OURS else version}|{self.planting}|{case.name}"

    def keep(self, key: str, outcome: Outcome) -> None:
        """Save an outcome in memory and on disk."""
        self.found[key] = outcome
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, **asdict(outcome)}) + "\n")


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def run_cases(
    cases: Sequence[Case], tables: Tables, peers: Sequence[Peer], results: Results
) -> list[Record]:
    """Run every case by this project and, if it is marked for peers, by every installed peer."""
    tools: list[tuple[Tool, str]] = [
        (Bulkhead(), ""),
        *((peer, peer.version) for peer in peers if not peer.absent),
    ]
    records, started = [], time.monotonic()
    for number, case in enumerate(cases):
        wanted = [
            (tool, results.key(tool.name, version, case))
            for tool, version in tools
            if tool.name == OURS or case.peers
        ]
        missing = [(tool, key) for tool, key in wanted if key not in results.found]
        results.kept += len(wanted) - len(missing)
        if missing:
            _audit(case, tables, missing, results)
        records += [
            Record(tool.name, case, results.found[key])
            for tool, key in wanted
            if key in results.found
        ]
        if number % 20 == 19:
            print(
                f"  {number + 1} of {len(cases)} cases, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return records


def _audit(
    case: Case, tables: Tables, missing: Sequence[tuple[Tool, str]], results: Results
) -> None:
    planted = tables.planted(case)
    if planted is None:
        raise RuntimeError(f"{case.name}: the leak has no place here")
    with tempfile.TemporaryDirectory(prefix="bulkhead-leaks-") as folder:
        train, test = Path(folder) / "train.parquet", Path(folder) / "test.parquet"
        planted.sides.train.to_parquet(train, index=False)
        planted.sides.test.to_parquet(test, index=False)
        for tool, key in missing:
            results.keep(key, tool.audit(train, test, planted))
