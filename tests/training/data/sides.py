"""Sides as the split writes them, built by hand: the tables that fit and materialise are
tested on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.config import Declaration
from schemas.digest import file_ref
from schemas.load import declare
from schemas.records import (
    SplitTables,
    TableRef,
    TableSpec,
    TestTable,
    TrainTable,
    ValidatedTable,
    ValTable,
)

REFERENCES: dict[str, type[TableRef]] = {"train": TrainTable, "val": ValTable, "test": TestTable}


def write_side(path: Path, columns: dict[str, Any], side: str, row_group: int = 1000) -> TableRef:
    """A side's Parquet file with ids r00000… unless given, and the reference to it."""
    arrays = {
        name: value if isinstance(value, pa.Array) else pa.array(value)
        for name, value in columns.items()
    }
    rows = len(next(iter(arrays.values())))
    fixed = {
        "__id": pa.array([f"{side}{i:05d}" for i in range(rows)]),
        "__group": pa.nulls(rows, pa.string()),
        "__time": pa.nulls(rows, pa.float64()),
    }
    table = pa.table(
        {**{n: v for n, v in fixed.items() if n not in arrays}, **arrays}
    ).replace_schema_metadata({"bulkhead.side": side})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group)
    return REFERENCES[side](file=file_ref(path), rows=rows)


def numbers(values: Any) -> pa.Array:
    """Float64 column; NaN and None become null."""
    return pa.array(
        [None if v is None else float(v) for v in values], type=pa.float64(), from_pandas=True
    )


def images(values: np.ndarray) -> pa.Array:
    """Fixed-size lists from [N, ...]."""
    flat = values.reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])


def split_of(
    folder: Path,
    train: dict[str, Any],
    val: dict[str, Any],
    test: dict[str, Any],
    row_group: int = 1000,
) -> SplitTables:
    """Three sides written and referenced."""
    refs = {
        side: write_side(folder / f"{side}.parquet", columns, side, row_group)
        for side, columns in (("train", train), ("val", val), ("test", test))
    }
    return SplitTables(strategy="random", **refs)


def spec_of(label: str = "y", label_type: str = "int", **parts: Any) -> TableSpec:
    """A table's meaning with id `id` and no group, time, weight or split unless given."""
    base = {
        "id": ("id",),
        "group": (),
        "time": None,
        "weight": None,
        "split": None,
        "numeric": (),
        "categorical": (),
        "tensor": {},
    }
    return TableSpec(**{**base, "label": label, "label_type": label_type, **parts})


def validated(split: SplitTables, spec: TableSpec) -> ValidatedTable:
    """What validation would hand on; the table itself is not read again."""
    return ValidatedTable(table=TableRef(file=split.train.file, rows=split.train.rows), spec=spec)


def declaration_of(
    task: str | dict[str, Any] = "binary", columns: dict[str, Any] | None = None, **sections: Any
) -> Declaration:
    """A declaration with id `id`, label `y`, and every other column a feature."""
    tree = {
        "name": "built",
        "data": {
            "uri": "built.parquet",
            "columns": {"id": "id", "y": "label", **(columns or {}), "*": "feature"},
        },
        "task": {"kind": task} if isinstance(task, str) else task,
        "split": {"kind": "random"},
        "model": {"kind": "mlp"},
        **sections,
    }
    return declare(tree)
