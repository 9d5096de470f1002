"""Origin of a run: code, libraries, machine. It contains no environment, host or user name.

Passwords in addresses, and secrets that BULKHEAD_EXPAND names, are masked in all stored text of a
run (`masked`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from schemas.variables import MASK, without_secrets

LIBRARIES = (
    "bulkhead", "torch", "numpy", "pandas", "pyarrow", "duckdb", "scikit-learn", "mlflow",
    "prefect", "fastapi", "pandera", "pydantic", "matplotlib",
)  # fmt: skip
GIT_SECONDS = 30
COMMIT = "BULKHEAD_COMMIT"  # commit of an image's sources
# Take no lock, start no program that the repository's settings name.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_USER_INFO = re.compile(r"(?<=://)[^/\s@'\"]+@")
_SECRET_VALUE = re.compile(
    r"(?i)([?&;](?:[\w.-]*(?:password|passwd|secret|token|signature|credential|api_?key|access_?key)|pwd|sig)=)[^&;\s'\"]+"
)


def masked(text: str) -> str:
    """Return the text with user names, passwords and tokens of addresses replaced by `***`.

    >>> masked("postgresql://ann:pw@db.local/m?sslpassword=x&a=1")
    'postgresql://***@db.local/m?sslpassword=***&a=1'
    """
    return _SECRET_VALUE.sub(rf"\1{MASK}", _USER_INFO.sub(f"{MASK}@", without_secrets(text)))


def provenance(repo: Path | None) -> dict[str, Any]:
    """Return commit, library versions, interpreter, platform and hardware, as JSON-able values.

    Args:
        repo: a folder inside the checkout whose code runs; None if there is none. A missing git
            program or a folder that is no checkout gives `sha: None` with the reason, never an
            error.
    """
    return {
        "git": git_state(repo),
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "versions": library_versions(),
        "hardware": hardware(),
    }


# -------------------------------------------------------------------------------------------- code


def git_state(repo: Path | None) -> dict[str, Any]:
    """Return commit, branch (None when detached), dirty flag, and number of untracked files.

    Of the diff it has SHA-256 and lines.
    """
    sha = _git(repo, "rev-parse", "--verify", "HEAD")
    # of an image, which has no repository
    if sha is None and repo is not None and (built_from := os.environ.get(COMMIT)):
        return {"sha": built_from, "branch": None, "dirty": None, "reason": f"named by {COMMIT}"}
    if sha is None:
        return {
            "sha": None,
            "branch": None,
            "dirty": None,
            "reason": (
                "no repository given" if repo is None else "git is absent, or no commit is there"
            ),
        }
    diff, untracked = (
        dirty_diff(repo),
        _git(repo, "ls-files", "--others", "--exclude-standard", "--full-name", ":/") or "",
    )
    return {
        "sha": sha,
        "branch": _git(repo, "symbolic-ref", "--short", "-q", "HEAD"),
        "dirty": bool(diff),
        "diff_sha256": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "diff_lines": diff.count("\n"),
        "untracked_files": len(untracked.splitlines()),
    }


def dirty_diff(repo: Path | None) -> str:
    """Return the full diff of tracked files, with credentials in addresses masked; empty when
    clean.

    Untracked files are left out: keys and data are among them. Binary files are named, not shown.
    """
    return masked(
        _git(repo, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", strip=False)
        or ""
    )


def _git(repo: Path | None, *arguments: str, strip: bool = True) -> str | None:
    """Return the output of a read-only git command; None if it cannot run or prints nothing."""
    if repo is None:
        return None
    try:
        done = subprocess.run(
            [*GIT, "-C", str(repo), *arguments],
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout.decode(errors="replace")
    return (text.strip() if strip else text) or None


# ------------------------------------------------------------------------------- libraries, machine


def library_versions() -> dict[str, str]:
    """Return installed versions of the libraries that affect results, without missing ones."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Return CPU model, cores (all and usable), memory in bytes and GPUs; None where unknown."""
    return {
        "cpu": _cpu_model(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(),
    }


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or None,
    )


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _gpus() -> list[dict[str, str]]:
    """Return name, driver and memory of each GPU from the driver's tool, without a CUDA context."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(", ") for line in done.stdout.splitlines())
    return [
        dict(zip(("name", "driver", "memory"), row, strict=True)) for row in rows if len(row) == 3
    ]
