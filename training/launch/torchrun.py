"""Start torchrun for the training program here, stop it completely, report its failure."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from schemas import errors
from schemas.config import TrainConfig
from schemas.digest import write_atomic
from schemas.errors import BulkheadError, LaunchError, TrainingError
from training.distributed.lost_peer import LOST_PEER
from training.launch.nodes import Node
from training.launch.stop_signal import LAUNCHER

GRACE_SECONDS = 20.0  # before the agent is killed; Prefect kills 30 s after its request
OTHER_CAUSE_SECONDS = 5.0  # for the cause of another machine to reach the shared folder
CAUSES = "error*.json"


def command(ranks: int, resolved: Path, run_dir: Path, node: Node | None = None) -> list[str]:
    """Return the torchrun command.

    Args:
        ranks: processes of this machine.
        resolved: file of the run.
        run_dir: directory of the run.
        node: this machine among several; None for a run on one machine, where port 0 lets
            concurrent runs choose free ports.
    """
    place = (
        node.arguments() if node else ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    )
    launch = ["-m", "training.agent", "--nproc-per-node", str(ranks), *place, "--max-restarts", "0"]
    return [
        sys.executable,
        *launch,
        "-m",
        "training.main",
        "--config",
        str(resolved),
        "--run-dir",
        str(run_dir),
    ]


def boosting_command(resolved: Path, run_dir: Path) -> list[str]:
    """Return the command that fits `model.kind: boosting`, in one process without torchrun."""
    program = [sys.executable, "-m", "training.boosting"]
    return [*program, "--config", str(resolved), "--run-dir", str(run_dir)]


def program(run_dir: Path, train: TrainConfig, node: Node | None, kind: str) -> list[str]:
    """Return the command of this machine's part of a run; boosting has its own program."""
    resolved = run_dir / "resolved.json"
    if kind == "boosting":
        return boosting_command(resolved, run_dir)
    return command(train.ranks // train.nodes, resolved, run_dir, node)


def start(
    run_dir: Path,
    train: TrainConfig,
    node: Node | None = None,
    kind: str = "",
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start this machine's ranks of a run in their own session; output goes to `train.log`, that of
    a joined machine to `train-node-N.log`.

    Args:
        run_dir: of the run, with its `resolved.json`.
        train: gives ranks and threads.
        node: this machine among several.
        kind: of the model; boosting has its own program.
        variables: added to the environment.
    """
    suffix = f"-node-{node.number}" if node and node.number else ""
    with (run_dir / f"train{suffix}.log").open("ab") as log:
        return subprocess.Popen(
            program(run_dir, train, node, kind),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(train, run_dir / f"error{suffix}.json")
            | (node.variables() if node else {})
            | dict(variables or {}),
            start_new_session=True,
        )


def environment(train: TrainConfig, error_file: Path) -> dict[str, str]:
    """Return the parent's environment with threads per rank, an error file, and this project's
    path.
    """
    threads = train.threads or max(1, (os.cpu_count() or 1) * train.nodes // train.ranks)
    ours = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": path,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """End torchrun and its ranks, of one launch or several.

    Ask all, wait for their checkpoints at the step boundary, then kill the sessions.
    """
    going = [process for process in processes if process.poll() is None]
    for process in going:
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for process in going:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def forget_causes(run_dir: Path) -> None:
    """Remove the failure causes of earlier launches."""
    for path in run_dir.glob(CAUSES):
        path.unlink(missing_ok=True)


def failure(run_dir: Path, code: int, nodes: int = 1) -> BulkheadError:
    """Return the error of a training program that ended with `code`, in the failing rank's class.

    Args:
        run_dir: where each machine's agent wrote the cause that it knows.
        code: exit code of this machine's agent.
        nodes: machines of the run.
    """
    deadline = time.monotonic() + (OTHER_CAUSE_SECONDS if nodes > 1 else 0)
    causes = _causes(run_dir)
    while all(LOST_PEER in cause for cause in causes) and time.monotonic() < deadline:
        time.sleep(0.1)
        causes = _causes(run_dir)
    log = run_dir / "train.log"
    if not causes:
        machines = (
            f"; did all {nodes} machines join (bulkhead join {run_dir})?" if nodes > 1 else ""
        )
        return LaunchError(
            f"the training program ended with exit code {code} and left no cause{machines};"
            f" {_tail(log)}"
        )
    kind, _, text = next(
        (cause for cause in causes if LOST_PEER not in cause), causes[0]
    ).partition(": ")
    known = getattr(errors, kind.rsplit(".", 1)[-1], None)
    if isinstance(known, type) and issubclass(known, BulkheadError):
        return known(f"{text}\nWhole log: {log}")
    return TrainingError(f"{kind}: {text}\nWhole log: {log}")


def leave_cause(run_dir: Path, node: Node, code: int) -> None:
    """Report this machine's failure to the first one, if its agent did not: a rank that was killed
    leaves no message.
    """
    path = run_dir / f"error-node-{node.number}.json"
    if code and not path.exists():
        text = (
            f"LaunchError: machine {node.number} ({socket.gethostname()}): torchrun ended with exit"
            f" code {code} and left no cause; "
        )
        details = {
            "message": text + _tail(run_dir / f"train-node-{node.number}.log"),
            "extraInfo": {"timestamp": int(time.time())},
        }
        write_atomic(path, json.dumps({"message": details}))


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
    return f"last lines of {log}:\n" + "\n".join(lines)


def _causes(run_dir: Path) -> list[str]:
    """Return the failing ranks' messages from the error files, one per machine, oldest first."""
    found = []
    for path in run_dir.glob(CAUSES):
        try:
            message = json.loads(path.read_text())["message"]
        except (OSError, ValueError, KeyError):
            continue
        details = message if isinstance(message, dict) else {"message": message}
        moment = details.get("extraInfo", {}).get("timestamp", 0)
        found.append((int(moment or 0), path.name, str(details.get("message", message))))
    return [text for _, _, text in sorted(found)]
