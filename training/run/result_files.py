"""Files in the directory of a finished training."""

from __future__ import annotations

from pathlib import Path

from schemas.digest import sha256_file
from schemas.errors import ConfigError, IntegrityError
from schemas.records import RunSpec, TrainReport
from training.run.record import PREPARED, RESULT, SPEC, START_AGAIN, read_part


def read_run(run_dir: Path) -> tuple[RunSpec, TrainReport]:
    """Return the records of a finished training in its directory.

    Raises:
        ConfigError: the folder is not a run directory, or its training did not finish.
        IntegrityError: one of the records was changed after it was written.
    """
    for path in (run_dir / SPEC, run_dir / RESULT):
        if not path.is_file():
            raise ConfigError(
                f"{run_dir}: expected the directory of a finished training, but {path.name} is"
                " missing; runs are in .bulkhead/runs/NAME/"
            )
    spec = read_part(run_dir, SPEC, RunSpec)
    prepared = run_dir / PREPARED
    if (
        spec.prepared_sha256
        and prepared.is_file()
        and sha256_file(prepared) != spec.prepared_sha256
    ):
        raise IntegrityError(
            f"{prepared}: is not the record that {SPEC} was made from; {START_AGAIN}"
        )
    return spec, read_part(run_dir, RESULT, TrainReport)
