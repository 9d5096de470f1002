"""Where Bulkhead keeps its files: one folder, `BULKHEAD_HOME` or `.bulkhead` in the working directory."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder of prepared data, ledgers, runs, Prefect's and MLflow's databases; created when absent."""
    path = Path(os.environ.get("BULKHEAD_HOME", ".bulkhead")).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path
