#!/usr/bin/env python3
"""Pre-commit hook that reviews the given files with Python alone, so nothing is installed."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":  # not in the processes that the review starts
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may be first on the path
        sys.exit(f"bulkhead review needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    runpy.run_module("training.review", run_name="__main__")
