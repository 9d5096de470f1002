"""Where Bulkhead keeps its files: one folder, `BULKHEAD_HOME` or `.bulkhead` in the working directory."""

from __future__ import annotations

import os
from pathlib import Path

from schemas.errors import ConfigError


def home() -> Path:
    """The folder of prepared data, ledgers, runs, Prefect's and MLflow's databases; created when absent.

    Raises:
        ConfigError: it cannot be created, or is no folder.
    """
    path = Path(os.environ.get("BULKHEAD_HOME", ".bulkhead")).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be the folder of Bulkhead's files: {error.strerror}; let BULKHEAD_HOME name one that you may write to") from error
    return path
