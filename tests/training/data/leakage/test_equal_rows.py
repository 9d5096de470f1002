"""Rows that may be equal are found by a few columns first; what is found is what all columns would
find.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.training.data.sides import declaration_of, spec_of, split_of
from training.data.engine.engine import connect
from training.data.leakage import duplicates, straddle
from training.data.leakage.duplicates import hash_features, repeated_hashes
from training.data.leakage.sides import sides_of

ROWS = 1500
NAMES = ("a", "b", "c", "d", "e", "text")


def _table(rng: np.random.Generator, kind: str, copied: pa.Table | None) -> pa.Table:
    drawn = (
        rng.integers(0, 3, (5, ROWS)).astype(float)
        if kind == "coarse"
        else rng.normal(size=(5, ROWS))
    )
    columns = {
        name: pa.array(values, mask=rng.random(ROWS) < 0.05)
        for name, values in zip(NAMES, drawn, strict=False)
    }
    table = pa.table(
        {
            **columns,
            "text": pa.array(rng.choice(["x", "y"], ROWS)),
            "y": pa.array(rng.integers(0, 2, ROWS)),
        }
    )
    if copied is None or kind in ("coarse", "none"):
        return table
    rest = table.slice(10 if kind == "copies" else ROWS // 2)
    return pa.concat_tables([copied.slice(0, ROWS - len(rest)), rest])


@pytest.mark.req("D6")
@pytest.mark.parametrize(
    ("kind", "scans"), [("none", 1), ("copies", 2), ("many copies", 2), ("coarse", 1)]
)
@pytest.mark.parametrize("rows_at_once", [2**25, ROWS])
def test_few_columns_find_what_all_find(
    kind: str, scans: int, rows_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    train = _table(rng, kind, None)
    tables = {
        side: table.to_pydict()
        for side, table in {
            "train": train,
            "val": _table(rng, kind, train),
            "test": _table(rng, kind, train),
        }.items()
    }
    for columns in tables.values():
        columns.update({name: pa.array(columns[name], pa.float64()) for name in NAMES[:5]})
    written, spec = split_of(tmp_path, **tables), spec_of(numeric=NAMES[:5], categorical=NAMES[5:])
    monkeypatch.setattr(straddle, "ROWS_AT_ONCE", rows_at_once)
    asked: list[Any] = []
    all_columns = duplicates._repeated
    monkeypatch.setattr(
        duplicates,
        "_repeated",
        lambda sides, columns, *more: asked.append(columns) or all_columns(sides, columns, *more),
    )
    with connect() as connection:
        sides = sides_of(connection, written, spec, declaration_of())
        found = repeated_hashes(sides)
        assert np.array_equal(found, all_columns(sides, spec.features)) and len(asked) == scans
        hash_features(sides)
        counted = connection.execute("select count(*) from equal_rows").fetchall()[0][0]
    assert counted == {"none": 0, "copies": 30, "many copies": 3 * ROWS // 2}.get(
        kind, counted
    ) and (counted > ROWS if kind == "coarse" else True)
