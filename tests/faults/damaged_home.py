"""Damage each file of a home, one at a time: the same final bytes, or a refusal that names the
file.

    python -m tests.faults.damaged_home --every 5 --seed 0

A small run is finished in a home. Then each of its files in turn is flipped in one bit, cut, and
removed, a command is run, and the home is restored. A trial passes if the command ends with code 0
and the run's weights, arrays and verdicts are those of the undamaged home. It also passes with code
1 or 2, no traceback and the name of the file. Exit code 1 if any trial shows anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.corrupt import damage

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = [
    "train.epochs=3",
    "train.ranks=1",
    "model.kind=mlp",
    "evaluate.bootstrap=60",
    "checks.min_rows=20",
    "name=small",
    "register.thresholds={}",
]
KINDS = ("flip", "truncation", "removal")
RUN = ["run", "tests/clinic_visits.yaml", *SMALL, "--json"]
COMMANDS = {  # by the part of the home whose files the command reads; for other parts: RUN
    "runs": ["evaluate", "RUN_DIR", "--json"],
    "resume": ["resume", "RUN_ID", "--json"],
    "mlartifacts": ["verify", "models:/small@champion", "--json"],
}
# where the resumed run is killed: everything is recorded, nothing is ended
CRASH = {"BULKHEAD_CRASH": "finish.begun"}


@dataclass(frozen=True)
class Trial:
    """Damage of one file; `failure` is empty if it was handled as promised."""

    file: str
    kind: str
    command: str
    code: int
    failure: str


def harm(path: Path, kind: str, dice: random.Random) -> None:
    """Flip one bit of a file, cut it, or remove it; an empty file can only be removed."""
    if kind == "removal" or not path.stat().st_size:
        path.unlink()
    else:
        damage(path, kind, dice)


def files_of(home: Path) -> Iterator[Path]:
    """Yield every file of a home except pages for people and files that each process rewrites."""
    for path in sorted(home.rglob("*")):
        if (
            path.is_file()
            and not path.name.endswith((".lock", "-shm", "-wal"))
            and path.parent.name not in ("locks", "logs")
        ):
            yield path


class Home:
    """A home with one run, and a copy to restore it from."""

    def __init__(self, folder: Path, crash: bool) -> None:
        self.home, self.pristine, self.crash = folder / "home", folder / "pristine", crash
        self.environment = {
            k: v
            for k, v in os.environ.items()
            if k not in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")
        }
        self.environment |= {
            "BULKHEAD_HOME": str(self.home),
            "BULKHEAD_CLINIC": str(folder / "clinic.parquet"),
            "PYTHONPATH": str(ROOT),
        }
        visits = [
            sys.executable,
            str(ROOT / "examples" / "clinic_visits.py"),
            self.environment["BULKHEAD_CLINIC"],
            "--patients",
            "1200",
        ]
        subprocess.run(visits, check=True, capture_output=True)
        done = self.call(RUN, CRASH if crash else {})
        if (done.returncode == 0) == crash:
            raise RuntimeError(
                f"the first run ended with {done.returncode}:\n{done.stderr[-2000:]}"
            )
        self.run_dir = next((self.home / "runs" / "small").iterdir())
        shutil.copytree(self.home, self.pristine, symlinks=True)
        self.expected: Any = None

    def call(
        self, command: list[str], more: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line to its end."""
        words = [sys.executable, "-m", "flows.cli", *command]
        return subprocess.run(
            words,
            env=self.environment | (more or {}),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    def put_back(self) -> None:
        """Restore the home to its state after the run."""
        shutil.rmtree(self.home)
        shutil.copytree(self.pristine, self.home, symlinks=True)

    def command_for(self, path: Path) -> list[str]:
        """Return the command that reads a file."""
        return self.command("resume" if self.crash else path.relative_to(self.home).parts[0])

    def command(self, part: str) -> list[str]:
        """Return the command that reads the files of a part of the home."""
        return [
            word.replace("RUN_DIR", str(self.run_dir)).replace("RUN_ID", self.run_dir.name)
            for word in COMMANDS.get(part, RUN)
        ]

    def trial(self, path: Path, kind: str, dice: random.Random) -> Trial:
        """Damage one file, run the command, check the outcome, and restore the home."""
        command = self.command_for(path)
        harm(path, kind, dice)
        try:
            done = self.call(command)
            failure = self._failure(path, command[0], done)
            code = done.returncode
        except subprocess.TimeoutExpired:
            failure, code = "it did not end within 900 s", -1
        self.put_back()
        return Trial(str(path.relative_to(self.home)), kind, command[0], code, failure)

    def _failure(self, path: Path, command: str, done: subprocess.CompletedProcess[str]) -> str:
        if "Traceback" in done.stderr:
            return f"a traceback: {done.stderr.strip().splitlines()[-1]}"
        if done.returncode == 0:
            found = outcome(command, done.stdout)
            return (
                ""
                if found == self.expected[command]
                else f"code 0 and another outcome: {found}, expected {self.expected[command]}"
            )
        if done.returncode not in (1, 2):
            return f"exit code {done.returncode}"
        told = done.stderr + done.stdout
        return (
            ""
            if path.name.removesuffix(".sha256") in told
            else f"refused without the name of the file: {done.stderr.strip()[-300:]}"
        )


def outcome(command: str, text: str) -> Any:
    """Return what must not depend on damage: weights and test figures of a run, figures of an
    evaluation, statements of a proof.
    """
    found = json.loads(text)
    if command in ("run", "resume"):
        return {
            "model": trained(Path(found["run_dir"]))["model_sha256"],
            "metrics": found["metrics"],
        }
    if command == "evaluate":
        return {
            "metrics": found["metrics"],
            "baselines": found["baselines"],
            "verdict": found["verdict"],
        }
    return [(result["name"], result["verdict"]) for result in found["results"]]


def trained(run_dir: Path) -> dict[str, Any]:
    """Return `result.json` of a run."""
    return dict(json.loads((run_dir / "result.json").read_bytes()))


def chosen(home: Home, every: int, dice: random.Random, within: Path) -> list[tuple[Path, str]]:
    """Return each file in a folder with each kind of damage, one in `every`."""
    everything = [
        (path, kind)
        for path in files_of(home.home)
        for kind in KINDS
        if path.is_relative_to(within)
    ]
    dice.shuffle(everything)
    return everything[: max(1, len(everything) // every)]


def undamaged(home: Home) -> None:
    """Return the outcome of each command on the undamaged home."""
    home.expected = {}
    for part in ("runs", "mlartifacts", "") if not home.crash else ("resume",):
        command = home.command(part)
        done = home.call(command)
        if done.returncode:
            raise RuntimeError(
                f"{command[0]} of the undamaged home ended with"
                f" {done.returncode}:\n{done.stderr[-2000:]}"
            )
        home.expected[command[0]] = outcome(command[0], done.stdout)
        home.put_back()


def run(folder: Path, every: int, seed: int) -> list[Trial]:
    """Run all trials, on a home with a finished run and on one whose run is resumed."""
    dice, done = random.Random(seed), list[Trial]()
    for name, crash in (("finished", False), ("interrupted", True)):
        (folder / name).mkdir()
        home = Home(folder / name, crash)
        undamaged(home)
        for path, kind in chosen(home, every, dice, within=home.run_dir if crash else home.home):
            done.append(home.trial(path, kind, dice))
            print(
                f"{'FAILED' if done[-1].failure else 'ok'} {done[-1]}", file=sys.stderr, flush=True
            )
        shutil.rmtree(folder / name)
    return done


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.damaged_home",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--every", type=int, default=1, help="only one in so many trials; all take hours"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bulkhead-damaged-") as folder:
        done = run(Path(folder), options.every, options.seed)
    wrong = [one for one in done if one.failure]
    refused = sum(one.code != 0 for one in done)
    print(
        f"{len(done) - len(wrong)} of {len(done)} damages handled: {len(done) - refused} ended with"
        f" the same bytes, {refused} were refused by name"
    )
    for one in wrong:
        print(f"FAILED {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
