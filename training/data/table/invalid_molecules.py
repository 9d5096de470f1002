"""Texts of `kind: smiles` that are no molecules: refused by name, or counted as null."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import duckdb

from schemas.config import Declaration
from schemas.errors import counted
from schemas.records import TableSpec
from schemas.smiles_config import SmilesConfig
from training.data.engine.engine import ident
from training.data.rdkit_extra import require_rdkit
from training.data.serving_expressions.molecules import molecule

BATCH_ROWS, SHOWN = 4096, 5


def invalid_molecules(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, table: str, declaration: Declaration
) -> tuple[list[str], list[str]]:
    """Return findings that refuse the table, and notes on texts that are taken as null.

    Each names the column, how many rows, and of the first ones id, text and what RDKit says.

    Args:
        connection: has the table.
        spec: what its columns are.
        table: a relation with `__id` and the features.
        declaration: gives `smiles.invalid` of each column.

    Raises:
        ConfigError: RDKit is not installed.
    """
    findings, notes = list[str](), list[str]()
    for name in (n for n, kind in spec.bags.items() if kind == "smiles"):
        require_rdkit(f"data.columns.{name}: kind smiles")
        declared = declaration.data.column(name)
        config = (declared and declared.smiles) or SmilesConfig()
        found = [pair for pair in _texts(connection, name, table) if molecule(pair[1]) is None]
        if not found:
            continue
        shown = "; ".join(f"{id_} {text[:60]!r}: {fault(text)}" for id_, text in found[:SHOWN])
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        told = f"column {name!r}: RDKit reads no molecule in {counted(len(found), 'row')}"
        if config.invalid == "refuse":
            remedy = f"fix them, or declare {name}: {{kind: smiles, smiles: {{invalid: null}}}}"
            findings.append(f"{told} ({shown}{more}); {remedy} to take them as missing")
        else:
            notes.append(f"{told}, taken as null ({shown}{more}).")
    return findings, notes


def fault(text: str) -> str:
    """Return what RDKit says of a text that is no molecule, in one line.

    >>> fault("CC(C)(C)(C)C")
    'Explicit valence for atom # 1 C, 5, is greater than permitted'
    >>> fault("C1CC")
    'unclosed ring'
    """
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():
        found = Chem.MolFromSmiles(text, sanitize=False)
        if found is not None:
            problems = Chem.DetectChemistryProblems(found)
            return str(problems[0].Message()) if problems else "it has no atom"
    said = io.StringIO()
    rdBase.LogToPythonStderr()  # RDKit has no other way to say it
    try:
        with contextlib.redirect_stderr(said):
            Chem.MolFromSmiles(text)
    finally:
        rdBase.LogToCppStreams()
    _, _, message = said.getvalue().partition("SMILES Parse Error: ")
    first = message.partition("\n")[0].partition(" for input")[0]
    return first.replace(f" while parsing: {text}", "") or "it cannot be parsed"


def _texts(
    connection: duckdb.DuckDBPyConnection, name: str, table: str
) -> Iterator[tuple[str, str]]:
    """Yield id and text of each row with a text, in the order of the ids."""
    result = connection.execute(
        f"select __id, {ident(name)} from {table} where {ident(name)} is not null order by __id"
    )
    while rows := result.fetchmany(BATCH_ROWS):
        yield from rows
