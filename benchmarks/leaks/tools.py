"""Audit tools under comparison: this project in the same process, each peer in its own environment
and process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.environments import environment
from benchmarks.leaks.plants_roles import Planted
from schemas.audit import FilesToAudit

WORKERS = Path(__file__).parent / "workers"
OURS = "bulkhead"


@dataclass(frozen=True)
class Finding:
    """A check that fired: name, verdict, the columns that it names, and text."""

    check: str
    verdict: str
    columns: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """A tool's result on a case: findings, duration, and the error if it gave up."""

    findings: tuple[Finding, ...]
    seconds: float
    error: str = ""


class Tool(Protocol):
    """A tool that audits two files."""

    name: str

    def audit(self, train: Path, test: Path, planted: Planted) -> Outcome:
        """Return the findings of the tool between two Parquet files."""


def request_of(train: Path, test: Path, planted: Planted) -> FilesToAudit:
    """Return the roles that a person who split this way would declare."""
    sides = planted.sides
    roles = sides.roles
    settings = (
        (f"split.embargo={sides.base.embargo:g}d",)
        if sides.kind == "time" and sides.base.embargo
        else ()
    )
    asked: dict[str, Any] = {
        "train": [str(train)],
        "test": [str(test)],
        "id": [roles["id"]],
        "group": [roles["group"]] if "group" in roles else [],
        "time": roles.get("time"),
        "label": roles["label"],
        "task": sides.base.task,
        "settings": settings,
    }
    asked |= {
        "available": {name: [feature] for name, feature in (planted.available or {}).items()},
        "label_time": planted.label_time,
    }
    return FilesToAudit.model_validate(asked)


class Bulkhead:
    """This project's audit, as `bulkhead audit --train --test` runs it."""

    name = OURS

    def audit(self, train: Path, test: Path, planted: Planted) -> Outcome:
        """Return the checks that failed or warned."""
        from schemas.errors import BulkheadError
        from training.data.leakage.audit import audit_files

        started = time.perf_counter()
        try:
            report = audit_files(request_of(train, test, planted))
        except BulkheadError as error:
            return Outcome((), time.perf_counter() - started, f"{type(error).__name__}: {error}")
        fired = tuple(
            Finding(r.name, r.verdict, r.columns, r.summary)
            for r in report.checks.results
            if r.verdict in ("fail", "warn")
        )
        return Outcome(fired, time.perf_counter() - started)


@dataclass
class Peer:
    """Another tool, installed from the registry into its own environment below a cache folder."""

    name: str
    packages: tuple[str, ...]
    version: str
    home: Path
    seconds: float = 120.0
    absent: str = ""
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def install(self) -> bool:
        """Make the environment unless it exists; `absent` says why there is none."""
        try:
            return self._start(
                environment(self.home / f"{self.name}-{self.version}", self.packages)
            )
        except RuntimeError as error:
            self.absent = str(error)
            return False

    def _start(self, python: Path) -> bool:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {
            "OMP_NUM_THREADS": "2"
        }
        self._process = subprocess.Popen(
            [str(python), str(WORKERS / f"{self.name}_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        ready = self._answer(180.0)
        self.absent = (
            ""
            if ready and "version" in ready
            else f"does not import: {(ready or {}).get('error', 'no answer within 180 s')}"
        )
        return not self.absent

    def audit(self, train: Path, test: Path, planted: Planted) -> Outcome:
        """Return the findings of the peer's checks; give up after `seconds`."""
        if self._process is None or self._process.poll() is not None:
            self._start(self.home / f"{self.name}-{self.version}" / "bin" / "python")
        assert self._process is not None and self._process.stdin is not None  # noqa: S101 - started above
        job = {
            "train": str(train),
            "test": str(test),
            "task": planted.sides.base.task,
            "roles": planted.sides.roles,
        }
        started = time.perf_counter()
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._answer(self.seconds)
        taken = time.perf_counter() - started
        if answer is None:
            self.stop()
            return Outcome((), taken, f"gave no answer within {self.seconds:g} s")
        found = tuple(
            Finding(f["check"], f["verdict"], tuple(f.get("columns", ())), f.get("text", ""))
            for f in answer.get("findings", ())
        )
        return Outcome(found, taken, answer.get("error", ""))

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        assert self._process is not None and self._process.stdout is not None  # noqa: S101 - called after the start
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        return json.loads(line) if line else None

    def stop(self) -> None:
        """Stop the peer's process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def peers(home: Path) -> list[Peer]:
    """Return the peers whose checks claim to see leaks, duplicates or overlap, at the versions that
    still install.
    """
    old = (
        "scikit-learn==1.4.2",
        "pandas==2.1.4",
        "numpy==1.26.4",
        "setuptools==79.0.1",
        "pyarrow==17.0.0",
    )
    return [
        Peer("deepchecks", ("deepchecks==0.19.1", *old), "0.19.1", home),
        Peer(
            "cleanlab",
            ("cleanlab[datalab]==2.9.0", "pyarrow==26.0.1", "pandas==3.1.1"),
            "2.9.0",
            home,
        ),
    ]


NOT_RUN: Sequence[tuple[str, str]] = (
    (
        "evidently 0.7",
        "compares distributions of two data sets; no check of rows, ids or groups that they share",
    ),
    ("ydata-profiling 4.18", "describes one data set; no check between train and test"),
    (
        "great-expectations 1",
        "checks declared expectations of one table; none between train and test",
    ),
)
