"""Files in the directory of a finished training."""

from __future__ import annotations

from pathlib import Path

from schemas.config import Declaration
from schemas.digest import sha256_file
from schemas.errors import ConfigError, IntegrityError
from schemas.load import declare
from schemas.members import first_network_number, members_of
from schemas.records import Prepared, Record, RunSpec, TrainReport, digest_of
from schemas.seal import read_record
from training.run.record import PREPARED, RESULT, SPEC, START_AGAIN, read_part

FINAL = "final"  # folder of what is made of the best weights after training


class Final(Record):
    """`final/result.json`: the report after temperature and threshold, and what it was made from.

    `trained_sha256`: digest of the report in `result.json`.
    """

    trained_sha256: str
    report: TrainReport


def read_final(run_dir: Path, trained: TrainReport) -> TrainReport:
    """Return the report of the finished model.

    Args:
        run_dir: Directory of the run.
        trained: The report in `result.json`.

    Raises:
        IntegrityError: there is none, it was changed, or it was made from another training.
    """
    path = run_dir / FINAL / RESULT
    final = read_record(path, Final, f"`bulkhead resume {run_dir}` makes it again")
    if final.trained_sha256 != digest_of(trained):
        raise IntegrityError(
            f"{path}: was made from another training than that of {run_dir / RESULT}; `bulkhead"
            f" resume {run_dir}` makes it again"
        )
    return final.report


def read_run(run_dir: Path) -> tuple[RunSpec, TrainReport]:
    """Return the records of a finished training in its directory.

    If the declaration has a temperature or threshold, the report is that of the finished model.

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
    trained = read_part(run_dir, RESULT, TrainReport)
    finishes = declare(spec.declaration).evaluate.is_finished_after_training
    return spec, read_final(run_dir, trained) if finishes else trained


def member_folder(run_dir: Path, number: int) -> Path:
    """Return the directory of a member's training, counted from 1."""
    return run_dir / "members" / f"{number:02d}"


def first_network(
    run_dir: Path, declaration: Declaration, prepared: Prepared, trained: TrainReport
) -> tuple[Path, Declaration, Prepared, TrainReport]:
    """Return directory, declaration, data and result of a run's network, or of the first of its
    members that is one.

    It is the network that the checks before training were made on.

    Raises:
        IntegrityError: a record of the member was changed after it was written.
    """
    if not trained.members:
        return run_dir, declaration, prepared, trained
    number = first_network_number(declaration)
    number = number if number <= len(trained.members) else 1  # its minutes were used up
    folder = member_folder(run_dir, number)
    arrays = read_part(folder, SPEC, RunSpec).arrays  # those of its fold, if it has one
    own = prepared.model_copy(update={"arrays": arrays})
    return folder, members_of(declaration)[number - 1], own, read_part(folder, RESULT, TrainReport)
