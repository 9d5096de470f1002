"""Launcher that a test kills: python -m tests.faults.launcher FOLDER LOG."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.launches import start

if __name__ == "__main__":
    start(Path(sys.argv[1]), Path(sys.argv[2]), 2).wait()
