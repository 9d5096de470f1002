"""Real processes for tests: a function in R gloo ranks, or a real torchrun of the training program.

python -m tests.distributed.launch module:function '{"argument": 1}' OUT.json    (one rank; started by run_ranks)
"""  # noqa: E501

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a launched process."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_WAIT_POLICY": "PASSIVE",
        "BULKHEAD_ALLOW_IMPORTS": "tests",
        **extra,
    }


def run_ranks(
    function: str, world_size: int, output: Path, timeout_seconds: float = 120.0, **arguments: Any
) -> list[Any]:
    """Call `module:function(parallel, **arguments)` on every rank; return the results by rank.

    Raises:
        AssertionError: a rank failed or did not end in time; with the end of its output.
    """
    output.mkdir(parents=True, exist_ok=True)
    group = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    processes = []
    for rank in range(world_size):
        command = [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.distributed.launch",
            function,
            json.dumps(arguments),
            str(output / f"rank-{rank}.json"),
        ]
        with open(output / f"rank-{rank}.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment(**group, RANK=str(rank), LOCAL_RANK=str(rank)),
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                )
            )
    deadline = time.monotonic() + timeout_seconds
    try:
        codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    tails = "\n".join(
        f"rank {r}, exit {c}: {(output / f'rank-{r}.log').read_text()[-3000:]}"
        for r, c in enumerate(codes)
        if c != 0
    )
    assert not tails, tails
    return [json.loads((output / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def torchrun(
    world_size: int, config: Path, run_dir: Path, timeout_seconds: float = 120.0, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run the training program under a real torchrun, and capture its output."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world_size),
    ]
    command += ["-m", "training.main", "--config", str(config), "--run-dir", str(run_dir)]
    return subprocess.run(
        command,
        env=environment(**extra),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def main() -> None:
    """Call the function on this rank and write its result."""
    from training.distributed.parallel import Parallel

    module, _, name = sys.argv[1].partition(":")
    with Parallel.open("cpu", timeout_seconds=60) as parallel:
        result = getattr(importlib.import_module(module), name)(parallel, **json.loads(sys.argv[2]))
    Path(sys.argv[3]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
