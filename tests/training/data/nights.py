"""A table that grows night by night, validated as the pipeline would, split with one ledger."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.records import SplitTables, TableRef, TableSpec, ValidatedTable, digest_of
from tests.training.data.chain import declared
from tests.training.data.sides import spec_of
from training.data.split.ledger import opened
from training.data.split.rolling import Rolled, roll_cuts
from training.data.split.split import split, way_of

ROLL: dict[str, Any] = {"kind": "time", "roll": 7, "test": 20, "val": 10}
COLUMNS = {"id": "id", "at": "time", "x": "numeric", "y": "label"}


def table(days: Iterable[float], prefix: str = "r") -> dict[str, list[Any]]:
    """A row for each day; its id tells whether it was there from the beginning."""
    days = list(days)
    return {
        "__id": [f"{prefix}{day:g}" for day in days],
        "__time": [float(day) for day in days],
        "x": [float(day % 5) for day in days],
        "y": [int(day) % 2 for day in days],
    }


def joined(*tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Rows of several tables."""
    return {name: [v for one in tables for v in one[name]] for name in tables[0]}


class Nights:
    """Splits of one table after the other with the same ledger.

    Args:
        folder: gets tables, splits and the ledger.
        way: section `split`.
        timestamps: the time is in seconds.
    """

    def __init__(
        self, folder: Path, way: dict[str, Any] = ROLL, timestamps: bool = False, **sections: Any
    ) -> None:
        self.folder, self.number, self.ledger = folder, 0, folder / "ledger"
        columns = COLUMNS | ({"who": "group"} if way["kind"] == "group_time" else {})
        self.declaration: Declaration = declared("rows", columns, split=way, **sections)
        self.spec: TableSpec = spec_of(
            time="at",
            label_type="int" if self.declaration.task.kind == "binary" else "float",
            time_is_timestamp=timestamps,
            numeric=("x",),
            group=("who",) if "who" in columns else (),
        )

    def validated(self, rows: dict[str, list[Any]]) -> ValidatedTable:
        """Write the table."""
        self.number += 1
        path = self.folder / str(self.number) / "validated.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        groups = pa.array(rows.get("__group", [None] * len(rows["__id"])), pa.string())
        pq.write_table(
            pa.table({"__id": rows["__id"], "__key": rows["__id"], "__group": groups} | rows), path
        )
        found = TableRef(file=file_ref(path), rows=len(rows["__id"]))
        return ValidatedTable(table=found, spec=self.spec)

    def split(self, rows: dict[str, list[Any]]) -> SplitTables:
        """Split the table of a night."""
        validated = self.validated(rows)
        return split(validated, self.declaration, self.folder / f"{self.number}", self.ledger)

    def roll(self, rows: dict[str, list[Any]]) -> Rolled:
        """Decide the cuts of a night's table and write them down, as `split` does."""
        validated, way = self.validated(rows), way_of(self.declaration, self.spec)
        with opened(self.ledger, digest_of(way)) as book:
            found = roll_cuts(validated, self.declaration, book.entries)
            book.note(way, validated.table.file.sha256, found.frozen)
        return found
