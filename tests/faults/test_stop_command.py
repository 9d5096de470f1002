"""Ctrl-C and SIGTERM to the whole process group, at ten moments of `bulkhead run`: a quick end,
nothing left, and resumable.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "train.epochs=400",
    "train.patience=1000",
    "train.ranks=2",
    "model.kind=mlp",
    "evaluate.bootstrap=2000",
    "checks.min_rows=20",
    "register.thresholds={}",
]
SHORT = ["train.epochs=3"]
WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.02
END_SECONDS = 10.0  # the promise; a test on a busy machine allows for more
BUSY_SECONDS = 20.0

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def loads(word: str) -> Any:
    """Return whether the command has a file of this name in its memory."""
    return lambda command: word in Path(f"/proc/{command.process.pid}/maps").read_text()


def line(text: str) -> Any:
    return lambda command: text in command.output()


def process(word: str) -> Any:
    return lambda command: any(word in text for text in command.family().values())


MOMENTS = {
    "imports": (loads("_pydantic_core"), []),
    "server start": (process("tasks.embedded"), []),
    "validate": (line("✓ source"), []),
    "split": (line("✓ validate"), []),
    "leakage": (line("✓ disjoint"), []),
    "preflight": (line("✓ poison"), []),
    "launch": (process("training.agent"), []),
    "train": (line("epoch 2/"), []),
    "evaluate": (line("✓ best"), SHORT),
    "register": (line("✓ gate"), SHORT),
}


class Command:
    """`bulkhead run` in its own process group, as a terminal starts it."""

    def __init__(self, folder: Path, clinic: Path, *arguments: str) -> None:
        self.home, self.log = folder / "home", folder / "log"
        self.environment = os.environ | {
            "BULKHEAD_HOME": str(self.home),
            "BULKHEAD_CLINIC": str(clinic),
            "PYTHONUNBUFFERED": "1",
        }
        for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
            self.environment.pop(name, None)
        with self.log.open("wb") as output:
            command = [sys.executable, "-m", "flows.cli", *arguments]
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def family(self) -> dict[int, str]:
        """Return the command lines of all processes with this home in their environment."""
        wanted, found = f"BULKHEAD_HOME={self.home}".encode(), {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted in path.read_bytes().split(b"\0"):
                    found[int(path.parent.name)] = (
                        (path.parent / "cmdline").read_text().replace("\0", " ")
                    )
            except OSError:  # it ended meanwhile
                continue
        return found

    def wait_for(self, moment: Any) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not moment(self):
            assert self.process.poll() is None and time.monotonic() < deadline, (
                f"the moment did not come:\n{self.output()[-3000:]}"
            )
            time.sleep(LOOK_SECONDS)

    def send(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> float:
        """Return the seconds until the command and all its processes are gone."""
        begun = time.monotonic()
        self.process.wait(WAIT_SECONDS)
        while self.family() and time.monotonic() - begun < WAIT_SECONDS:
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - begun

    def run_dir(self) -> Path | None:
        return next((path.parent for path in self.home.glob("runs/*/*/run.json")), None)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clinic") / "clinic.parquet"
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "clinic_visits.py"),
            str(path),
            "--patients",
            "1200",
        ],
        check=True,
        capture_output=True,
    )
    return path


@contextmanager
def running(
    folder: Path, clinic: Path, *overrides: str, file: str = "tests/clinic_visits.yaml"
) -> Iterator[Command]:
    command = Command(folder, clinic, "run", file, *SMALL, *overrides)
    try:
        yield command
    finally:
        for pid in command.family():
            os.kill(pid, signal.SIGKILL)
        command.process.wait()


def require_stopped(command: Command, number: signal.Signals, seconds: float) -> None:
    """Check what every stop leaves: the exit code, a message, a record of the end, and a correct
    hint.
    """
    output = command.output()
    assert command.process.returncode == 128 + number, output[-3000:]
    assert seconds < BUSY_SECONDS and not command.family()
    assert "Traceback" not in output and "ConnectError" not in output, output[-3000:]
    assert (
        f"stopped by {number.name}" in output
        or "not stopped after" in output
        or "Aborted" in output
    ), output[-3000:]
    run_dir = command.run_dir()
    if run_dir is None:
        return
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] in ("killed", "running"), record  # running, lock free: also killed
    hint = re.search(r"Go on from the (beginning|last checkpoint).*: bulkhead resume (\S+)", output)
    assert hint and hint[2] == record["run_id"], output[-3000:]
    assert (hint[1] == "last checkpoint") == bool(list(run_dir.glob("checkpoints/step-*"))), (
        "the hint names a checkpoint where there is one"
    )


@pytest.mark.long
@pytest.mark.req("C6")
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param(
            moment,
            number,
            id=f"{moment}-{number.name}",
        )
        for moment in MOMENTS
        for number in (signal.SIGINT, signal.SIGTERM)
    ],
)
def test_a_signal_to_the_group_ends_the_command_and_leaves_no_process(
    tmp_path: Path, clinic: Path, moment: str, number: signal.Signals
) -> None:
    when, overrides = MOMENTS[moment]
    with running(tmp_path, clinic, *overrides) as command:
        command.wait_for(when)
        command.send(number)
        require_stopped(command, number, command.end())
        if moment == "train":
            assert list(command.run_dir().glob("checkpoints/step-*")), "what was trained is saved"  # type: ignore[union-attr]


@pytest.mark.long
@pytest.mark.parametrize("moment", ["preflight", "evaluate", "register"])
def test_what_a_stop_left_is_resumed_to_its_end(tmp_path: Path, clinic: Path, moment: str) -> None:
    when, _ = MOMENTS[moment]
    with running(tmp_path, clinic, *SHORT) as command:
        command.wait_for(when)
        command.send(signal.SIGINT)
        require_stopped(command, signal.SIGINT, command.end())
        run_id = json.loads((command.run_dir() / "run.json").read_text())["run_id"]  # type: ignore[union-attr, operator]
        again = subprocess.run(
            [sys.executable, "-m", "flows.cli", "resume", run_id],
            capture_output=True,
            text=True,
            env=command.environment,
            cwd=ROOT,
            check=False,
        )
        assert again.returncode == 0, again.stderr[-3000:]
        assert json.loads((command.run_dir() / "run.json").read_text())["status"] == "finished"  # type: ignore[operator]


@pytest.mark.long
def test_a_second_ctrl_c_ends_everything_at_once(tmp_path: Path, clinic: Path) -> None:
    with running(tmp_path, clinic) as command:
        command.wait_for(MOMENTS["train"][0])
        ranks = [
            pid
            for pid, text in command.family().items()
            if "training.main" in text and "training.agent" not in text
        ]
        for pid in ranks:
            # they save nothing: the first Ctrl-C alone would wait for them
            os.kill(pid, signal.SIGSTOP)
        command.send(signal.SIGINT)
        time.sleep(1.0)
        assert command.process.poll() is None, "the first one waits for the ranks"
        command.send(signal.SIGINT)
        seconds = command.end()
        assert command.process.returncode == 130 and "stopped at once" in command.output()
        assert seconds < BUSY_SECONDS and not command.family()


@pytest.mark.long
def test_the_server_ends_with_a_command_that_is_killed(tmp_path: Path, clinic: Path) -> None:
    with running(tmp_path, clinic) as command:
        command.wait_for(MOMENTS["validate"][0])
        assert MOMENTS["server start"][0](command)
        os.kill(command.process.pid, signal.SIGKILL)
        command.end()
        assert not command.family()


@pytest.mark.long
def test_a_command_ends_within_seconds_of_its_flow(tmp_path: Path, clinic: Path) -> None:
    """The flow refuses at once, so that only the end of the command remains."""
    command = Command(tmp_path, clinic, "promote", "models:/nothing", "--rollback")
    try:
        command.wait_for(line("RegistryError"))
        assert command.end() < BUSY_SECONDS + 10 and command.process.returncode == 1
    finally:
        for pid in command.family():
            os.kill(pid, signal.SIGKILL)
