"""Bemis-Murcko scaffolds and canonical forms of SMILES by RDKit, once for each distinct text.

RDKit is optional (`pip install 'bulkhead[chem]'`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from typing import Any, Literal

Kind = Literal["scaffold", "molecule"]
CHUNK = 2000
PARALLEL_FROM = (
    20_000  # texts; a pool takes two seconds to start, RDKit reads 4,000 molecules in one
)
MAX_PROCESSES = 8


def molecule_keys(
    texts: list[str], kind: Kind, processes: int | None = None
) -> list[tuple[str, bool]]:
    """Return for each SMILES its key, and whether RDKit could read it.

    The key of a scaffold is the canonical SMILES of rings and linkers. A molecule without a ring
    has no scaffold: its key is its own canonical SMILES, so that such molecules do not become one
    giant group. A text that RDKit cannot read is its own key. Stereochemistry is left out of
    scaffolds, as is usual, and kept in molecules.

    Args:
        texts: distinct SMILES.
        kind: scaffold or molecule.
        processes: number of processes; default: one, and all cores from 20,000 texts on.

    Source: Bemis and Murcko 1996, J. Med. Chem. 39, 2887, 10.1021/jm9602928.
    """
    count = processes or (
        min(MAX_PROCESSES, os.cpu_count() or 1) if len(texts) >= PARALLEL_FROM else 1
    )
    chunks = [texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK)]
    if count == 1:
        return list(chain.from_iterable(_keys(chunk, kind) for chunk in chunks))
    # a forked process with threads may hang
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        return list(chain.from_iterable(pool.map(_keys, chunks, [kind] * len(chunks))))


def _keys(texts: list[str], kind: Kind) -> list[tuple[str, bool]]:
    from rdkit import rdBase

    with rdBase.BlockLogs():  # it prints each failure on standard error
        return list(_each(texts, _reader(kind)))


def _each(texts: list[str], read: Callable[[str], str | None]) -> Iterator[tuple[str, bool]]:
    for text in texts:
        found = read(text)
        yield (f"unread:{text}", False) if found is None else (found, True)


def _reader(kind: Kind) -> Callable[[str], str | None]:
    from rdkit.Chem import MolFromSmiles, MolToSmiles
    from rdkit.Chem.Scaffolds.MurckoScaffold import GetScaffoldForMol

    scaffold_of: Callable[[Any], Any] = GetScaffoldForMol

    def read(text: str) -> str | None:
        """Return the key of one SMILES; None if RDKit cannot read it."""
        molecule = MolFromSmiles(text)
        if molecule is None or not molecule.GetNumAtoms():
            return None
        if kind == "molecule":
            return str(MolToSmiles(molecule))
        scaffold = str(MolToSmiles(scaffold_of(molecule), isomericSmiles=False))
        return f"rings:{scaffold}" if scaffold else f"no ring:{MolToSmiles(molecule)}"

    return read
