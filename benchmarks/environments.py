"""Environments of the tools that Bulkhead is compared with: made once below a cache folder, then
reused.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def environment(
    folder: Path, packages: tuple[str, ...], constraints: Path | None = None, on_top: bool = False
) -> Path:
    """Return the Python of an environment with these packages; make it unless it exists.

    Args:
        folder: of the environment; the caller names it after its content.
        packages: as pip takes them.
        constraints: versions that pip may not change.
        on_top: whether packages of the running Python can be imported too.

    Raises:
        RuntimeError: they cannot be installed here; the message is pip's last line.
    """
    python, done = folder / "bin" / "python", folder / "installed"
    if done.is_file():
        return python
    _run([sys.executable, "-m", "venv", str(folder)])
    if on_top:
        inside = Path(
            sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        )
        (inside / "parent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    bound = ["-c", str(constraints)] if constraints else []
    _run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            *bound,
            *packages,
        ]
    )
    done.touch()
    return python


def _run(command: list[str]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(
            (made.stderr.strip().splitlines() or [f"{command[0]} ended with {made.returncode}"])[
                -1
            ][:200]
        )
