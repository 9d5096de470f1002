"""Columns of SMILES, found by reading their texts as molecules."""

from __future__ import annotations

import importlib.util

from training.data.draft.guesses import Guess, Table
from training.data.draft.profile import SAMPLE, Profile
from training.data.engine.engine import ident, rows
from training.data.serving_expressions.molecules import molecule

MOLECULES = ("smiles", "canonical_smiles", "smiles_canonical", "mol_smiles")
READ = 500  # texts that RDKit reads in less than a tenth of a second
VALID, NAMED_VALID = 0.95, 0.5  # least share of molecules; less where the name says it
LEAST_TEXTS, LEAST_LENGTH = 20, 6.0  # short words, such as CO and IN, are molecules by accident
WITH_RDKIT = (
    "molecules: with the extra chem (RDKit), pip install 'bulkhead[chem]', kind: smiles would read"
    " them, and they could be grouped by scaffold (data.group_by)"
)


def smiles_guess(table: Table, column: Profile) -> Guess | None:
    """Return the guess of a column whose texts RDKit reads as molecules; else None."""
    if column.family != "text" or importlib.util.find_spec("rdkit") is None:
        return None
    is_named = column.name.lower() in MOLECULES
    name = ident(column.name)
    found = rows(
        table.connection,
        f"select distinct {name} from {SAMPLE} where {name} is not null order by md5({name}) limit"
        f" {READ}",
    )
    texts = [str(text) for (text,) in found]
    if not texts or not (is_named or _look_like_molecules(texts)):
        return None
    valid = sum(molecule(text) is not None for text in texts)
    if valid < (NAMED_VALID if is_named else VALID) * len(texts):
        return None
    why = f"RDKit reads {valid} of {len(texts)} different texts as molecules"
    if valid < len(texts) or len(texts) == READ:  # others were not read
        others = "the others" if valid < len(texts) else "any that it cannot read"
        return Guess("{kind: smiles, smiles: {invalid: null}}", f"{why}; {others} count as null")
    return Guess("smiles", why)


def _look_like_molecules(texts: list[str]) -> bool:
    """Return True for different, long enough texts without spaces, before any is read."""
    return (
        len(texts) >= LEAST_TEXTS
        and sum(map(len, texts)) >= LEAST_LENGTH * len(texts)
        and not any(" " in text.strip() for text in texts)
    )
