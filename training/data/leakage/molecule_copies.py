"""Rows with the canonical SMILES of their molecules, by which copies are found."""

from __future__ import annotations

import importlib.util

import pyarrow as pa

from training.data.engine.engine import ident
from training.data.leakage.label_sql import label_numbers
from training.data.leakage.sides import Sides
from training.data.split.scaffold import molecule_keys

TRAIN_MOLECULES, HELD_OUT_MOLECULES = 5_000, 3_000  # RDKit reads some thousand a second
DECLARED_TIMES = 8  # so many more of a column of `kind: smiles`


def labelled(sides: Sides, columns: tuple[str, ...]) -> str:
    """Return rows of all splits with the first label as a number (null if there is none)."""
    labels = label_numbers(sides)
    label = labels[0].sql if labels else "cast(null as double)"
    listed = ", ".join(ident(c) for c in ("__id", "__group", *columns))
    return (
        "("
        + " union all ".join(
            f"select '{side}' as side, {listed}, {label} as label from {r}"
            for side, r in sides.relations.items()
        )
        + ")"
    )


def canonical_molecules(sides: Sides, name: str, is_declared: bool) -> str | None:
    """Return sampled rows with their canonical SMILES as key, as a relation; more if declared.

    Return None if RDKit is absent.
    """
    if importlib.util.find_spec("rdkit") is None:
        return None
    times = DECLARED_TIMES if is_declared else 1
    columns = ("__id", "__group", name)
    sizes = {
        side: times
        * (TRAIN_MOLECULES if side == "train" else HELD_OUT_MOLECULES // len(sides.held_out))
        for side in sides.relations
    }
    parts = {side: sides.sample(side, columns, size) for side, size in sizes.items()}
    table = pa.concat_tables(
        [
            part.append_column("side", pa.array([side] * len(part), pa.string()))
            for side, part in parts.items()
        ]
    )
    keys = pa.array(_canonical(table[name].to_pylist()), pa.string())
    sides.connection.register(
        "molecules", table.select(["side", "__id"]).append_column("key", keys)
    )
    sides.connection.execute(
        "create or replace temp table molecule_keys as select * from molecules"
    )
    sides.connection.unregister("molecules")
    return (
        f"(select l.side, l.__id, l.__group, l.{ident(name)} as text, m.key, l.label from"
        f" molecule_keys m join {labelled(sides, (name,))} l using (side, __id))"
    )


def _canonical(texts: list[str | None]) -> list[str | None]:
    """Return canonical SMILES, None where a text is no molecule."""
    distinct = sorted({text for text in texts if text})
    keys = {
        text: key if is_read else None
        for text, (key, is_read) in zip(distinct, molecule_keys(distinct, "molecule"), strict=True)
    }
    return [keys.get(text or "") for text in texts]
