"""An environment in which the same program gives the same bits on every x86-64 machine with the
pinned packages.

Libraries pick their kernels by the processor they find, and kernels differ in the order of sums and
in fused multiply-adds. Pinned is, for each library that computes something of a training:

- ATEN_CPU_CAPABILITY: PyTorch's own kernels, to those without AVX;
- MKL_CBWR, MKL_DYNAMIC, MKL_NUM_THREADS: products of matrices, to the branch that is equal on all
  processors, on one thread;
- ONEDNN_MAX_CPU_ISA: oneDNN, which also decides by it whether fp16 has kernels of its own;
- GLIBC_TUNABLES: exp, log, sin … of the C library, which have variants with FMA;
- NPY_DISABLE_CPU_FEATURES, OPENBLAS_CORETYPE, OPENBLAS_NUM_THREADS: NumPy and SciPy;
- OMP_NUM_THREADS: sums are cut by threads.

Everything else of the run, `train.threads` among it, is part of the declaration.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PINS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_DYNAMIC": "FALSE",
    "MKL_NUM_THREADS": "1",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-FMA,-FMA4",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
TEXT = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PYTHONHASHSEED": "0"}
TIMEOUT_SECONDS = 600  # on however busy a machine
OTHERS = (
    "BULKHEAD_",
    "PREFECT_",
    "MLFLOW_",
    "AWS_",
    "FORCE_COLOR",
    "TERMINAL_WIDTH",
    "TORCHELASTIC_",
)  # of the caller's, which would change what happens


def recorded_elsewhere() -> str:
    """Return why the recorded bits cannot be those of this machine; empty where they must be."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"the weights were recorded on x86-64, and this machine is {platform.machine()}"
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    installed = metadata.version("torch").partition("+")[0]
    if pinned is None or pinned[1] != installed:
        return f"the weights were recorded with the pinned torch, and this is torch {installed}"
    return ""


def environment(**extra: str) -> dict[str, str]:
    """The caller's environment without what would change the outcome, pinned, with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
    return (
        kept
        | PINS
        | TEXT
        | {
            "PYTHONPATH": str(ROOT),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "true",
        }
        | extra
    )


def python(*arguments: str, folder: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with arguments in a folder, in the pinned environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(**extra),
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def bulkhead(*arguments: str, folder: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, as its installed script does, in the pinned environment."""
    return python(
        "-c",
        "import sys; from flows.cli import main; sys.exit(main())",
        *arguments,
        folder=folder,
        **extra,
    )


def calls(
    given: Sequence[dict[str, Any]], load: Sequence[str], scratch: Path
) -> list[dict[str, Any]]:
    """Make calls of programs, each in a fork of a process that has loaded these modules; each one's
    `code`, `stdout` and `stderr`.

    Raises:
        RuntimeError: the process that makes them failed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "calls.json").write_text(json.dumps({"load": list(load), "calls": list(given)}))
    done = python(
        "-m",
        "tests.golden._calls",
        str(scratch / "calls.json"),
        str(scratch / "out.json"),
        folder=ROOT,
    )
    if done.returncode:
        raise RuntimeError(f"the calls ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return list(json.loads((scratch / "out.json").read_text()))
