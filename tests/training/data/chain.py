"""Source to sides in one call, on small tables built in the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import SPLITS, Declaration
from schemas.load import declare
from schemas.records import SplitTables, ValidatedTable
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

COLUMNS = {"id": "id", "y": "label", "*": "feature"}


def declared(
    uri: Path | str | Sequence[str],
    columns: Mapping[str, Any] = COLUMNS,
    task: str | Mapping[str, Any] = "binary",
    split: Mapping[str, Any] | str = "random",
    data: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Declaration:
    """A declaration over a path; a bare kind stands for the split or task of that kind."""
    return declare(
        {
            "name": "built",
            "data": {
                "uri": str(uri) if isinstance(uri, Path) else uri,
                "columns": dict(columns),
                **(data or {}),
            },
            "task": {"kind": task} if isinstance(task, str) else dict(task),
            "split": {"kind": split} if isinstance(split, str) else dict(split),
            **sections,
        }
    )


def write_table(path: Path, columns: Mapping[str, Any]) -> Path:
    """A Parquet source from lists or Arrow arrays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path)
    return path


def write_text(path: Path, text: str) -> Path:
    """A text source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def validated_of(declaration: Declaration, out: Path) -> ValidatedTable:
    """Fingerprint and validate."""
    return validate(fingerprint(declaration.data), declaration, out)


def split_of(
    declaration: Declaration, out: Path, ledger: Path | None = None
) -> tuple[ValidatedTable, SplitTables]:
    """Fingerprint, validate and split."""
    validated = validated_of(declaration, out)
    return validated, split(validated, declaration, out, ledger or out / "ledger")


def read(table: Any) -> dict[str, list[Any]]:
    """Columns of a table reference."""
    return pq.read_table(table.file.path).to_pydict()


def sides_of(sides: SplitTables, column: str = "__id") -> dict[str, str]:
    """Which side each value of a column stands on, and a failure where one stands on two."""
    found: dict[str, str] = {}
    for side in SPLITS:
        for value in read(sides.side(side))[column]:
            assert found.setdefault(value, side) == side, f"{value} is on {found[value]} and {side}"
    return found
