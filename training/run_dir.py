"""What stands in the directory of a finished training."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import ConfigError
from schemas.records import RunSpec, TrainReport


def read_run(run_dir: Path) -> tuple[RunSpec, TrainReport]:
    """What a finished training left in its directory.

    Raises:
        ConfigError: the folder is no run directory, or its training did not finish.
    """
    found = [run_dir / name for name in ("resolved.json", "result.json")]
    for path in found:
        if not path.is_file():
            raise ConfigError(f"{run_dir}: expected the directory of a finished training, but {path.name} is missing; runs stand in .bulkhead/runs/NAME/")
    return RunSpec.model_validate_json(found[0].read_bytes()), TrainReport.model_validate_json(found[1].read_bytes())
