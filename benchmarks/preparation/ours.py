"""This project's preparation in one process, as `bulkhead prepare` runs it, without Prefect.

    python -m benchmarks.preparation.ours TABLE OUT [--alike]

`--alike` leaves out the checks that the scripts written by hand lack: the poison test and every
leakage check except the one for equal rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from schemas.config import Declaration
from schemas.load import declare
from training.data.arrays.shards import materialise
from training.data.engine.engine import engine_for
from training.data.engine.in_memory import holding
from training.data.fit.normalize import fit
from training.data.leakage import check_leakage, check_overlap, require_passed
from training.data.leakage.duplicates import duplicate_results, hash_features
from training.data.leakage.sides import sides_of
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

COLUMNS = {
    "row_id": "id",
    "patient": "group",
    "seen_at": "time",
    "outcome": "label",
    "c*": "categorical",
    "*": "feature",
}


def prepare(
    table: Path,
    out: Path,
    alike: bool = False,
    columns: dict[str, str] = COLUMNS,
    split: str = "group",
) -> None:
    """Prepare arrays below `out` from the table."""
    declaration = declare(
        {
            "name": "benchmark",
            "data": {"uri": str(table), "columns": columns},
            "task": {"kind": "binary"},
            "split": {"kind": split},
        }
    )
    with holding():
        _prepare(declaration, out, alike)


def _prepare(declaration: Declaration, out: Path, alike: bool) -> None:
    validated = validate(fingerprint(declaration.data), declaration, out / "validated")
    sides = split(validated, declaration, out / "split", out / "ledger")
    require_passed(check_overlap(sides, validated, declaration))
    if alike:
        with engine_for(declaration.data) as connection:
            opened = sides_of(connection, sides, validated.spec, declaration)
            hash_features(opened)
            duplicate_results(opened)
    else:
        require_passed(check_leakage(sides, validated, declaration))
    materialise(
        sides, validated, fit(sides.train, validated.spec, declaration), declaration, out / "arrays"
    )
    if not alike:
        from training.preflight.poisoned_fit import poison_check

        poison_check(sides, validated, declaration)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]), "--alike" in sys.argv)
