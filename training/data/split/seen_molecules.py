"""Rows of two tables with the same molecule, or with the same scaffold.

Molecules are compared by their canonical SMILES, so that the spelling does not matter. N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow.parquet as pq

from schemas.config import Declaration
from schemas.digest import verify
from schemas.records import TableRef, TableSpec
from schemas.split_config import GROUPED
from training.data.rdkit_extra import require_rdkit
from training.data.split.scaffold import Kind, molecule_keys


def smiles_of(spec: TableSpec) -> tuple[str, ...]:
    """Return the features of a table that are molecules."""
    return tuple(name for name, kind in spec.bags.items() if kind == "smiles")


def scaffold_of(spec: TableSpec, declaration: Declaration) -> str | None:
    """Return the feature of molecules whose scaffolds the split keeps whole; None without one."""
    by = declaration.data.group_by
    whole = declaration.split.kind in GROUPED and by is not None
    return by.scaffold if whole and by and by.scaffold in smiles_of(spec) else None


def same_molecules(
    sides: Mapping[str, TableRef],
    ours: Sequence[str],
    theirs: Mapping[str, Sequence[TableRef]],
    columns: Sequence[str],
    kind: Kind,
) -> dict[str, np.ndarray]:
    """Return masks [N] of rows with a molecule (or its scaffold) that is also among other rows.

    Args:
        sides: tables to look at, by name.
        ours: their columns of SMILES.
        theirs: the other rows of each side.
        columns: their columns of SMILES.
        kind: what two molecules must have in common.
    """
    require_rdkit("comparing the molecules of two runs")
    texts = {side: _texts(table, ours) for side, table in sides.items()}
    others = {
        side: {text for table in tables for row in _texts(table, columns) for text in row if text}
        for side, tables in theirs.items()
    }
    read = {text for rows in texts.values() for row in rows for text in row if text}
    every = sorted(read.union(*others.values()))
    found = zip(every, molecule_keys(every, kind), strict=True)
    keys = {text: key for text, (key, _) in found}
    known = {side: {keys[text] for text in found} for side, found in others.items()}
    return {
        side: np.array(
            [any(text and keys[text] in known[side] for text in row) for row in rows], dtype=bool
        )
        for side, rows in texts.items()
    }


def _texts(table: TableRef, columns: Sequence[str]) -> list[tuple[str | None, ...]]:
    """Return the texts of the columns, by row."""
    found = pq.read_table(verify(table.file), columns=list(columns))
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))
