"""Molecules as arrays: Morgan fingerprints, descriptors, graphs, and tokens, computed by RDKit.

A rule is what a model's spec has for such an array: `of` (what it is), `radius` and `counts` of the
fingerprint, `center` and `scale` of descriptors, `values` of tokens, `shape` and `dtype`. RDKit is
imported where it is needed. N rows, A atoms, L tokens.

`bits`: uint8 [2048]. `graph`: uint8 [256 + 20 A], the packed bits, then for each atom 8 codes of
its properties, 6 neighbours (their places from 1, 0 is none) and 6 codes of the bonds to them.
`tokens`: uint8 [256 + L], the packed bits, then codes of the canonical SMILES. `descriptors`:
float32 [D], and one column more for null where training had nulls. A null is all zeros.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Rule = Mapping[str, Any]
BITS, PACKED = 2048, 256
NEIGHBOURS = 6
# fixed, because a model needs them in this order; RDKit computes each for every molecule
DESCRIPTORS = (
    *("exactmw", "lipinskiHBA", "lipinskiHBD", "NumRotatableBonds", "NumHBD", "NumHBA"),
    *("NumHeavyAtoms", "NumHeteroatoms", "NumAmideBonds", "FractionCSP3", "NumRings"),
    *("NumAromaticRings", "NumAliphaticRings", "NumSaturatedRings", "NumHeterocycles"),
    *("NumAromaticHeterocycles", "NumSpiroAtoms", "NumBridgeheadAtoms", "NumAtomStereoCenters"),
    *("labuteASA", "tpsa", "CrippenClogP", "CrippenMR", "chi0v", "chi1v", "chi4v"),
    *("hallKierAlpha", "kappa1", "kappa2", "kappa3", "Phi"),
)
LIMIT = 5.0  # of a scaled descriptor
ELEMENTS = (1, 5, 6, 7, 8, 9, 11, 14, 15, 16, 17, 19, 34, 35, 53)  # others share one code
RING_SIZES = (3, 4, 5, 6, 7, 8)
HYBRIDS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
# codes of each property of an atom, 0 being none, and of a bond
ATOM_CODES = (len(ELEMENTS) + 2, 9, 6, 6, len(HYBRIDS) + 2, 5, 4, len(RING_SIZES) + 2)
BOND_CODES = 1 + 5 * 2 * 2 * 3
WIDTH = len(ATOM_CODES) + 2 * NEIGHBOURS
UNKNOWN, FIRST = 1, 2  # codes of tokens; 0 is filling
# an atom in brackets, elements of two letters, ring numbers, or any other character. Source: the
# grammar of the OpenSMILES specification, version 1.0, http://opensmiles.org/opensmiles.html
TOKEN = re.compile(r"\[[^\[\]]*\]|Br|Cl|%\(\d+\)|%\d\d|.", re.DOTALL)


def molecule(text: str) -> Any:
    """Return RDKit's molecule of a SMILES, or None if it can read none, or one without atoms."""
    from rdkit import Chem, rdBase

    with rdBase.BlockLogs():  # it explains each failure on standard error
        found = Chem.MolFromSmiles(text)
    return found if found is not None and found.GetNumAtoms() else None


def canonical(found: Any) -> str:
    """Return the SMILES that all spellings of a molecule have in common."""
    from rdkit import Chem

    return str(Chem.MolToSmiles(found))


@functools.cache
def _generator(radius: int) -> Any:
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=BITS)


def fingerprint(found: Any, radius: int, counts: bool = False) -> np.ndarray:
    """Return the Morgan fingerprint of a molecule, uint8 [2048]; counts are at most 255.

    Source: Rogers and Hahn 2010, J. Chem. Inf. Model. 50, 742, 10.1021/ci100050t.
    """
    if counts:
        number = _generator(radius).GetCountFingerprintAsNumPy(found)
        return np.asarray(np.minimum(number, 255), dtype=np.uint8)
    return np.asarray(_generator(radius).GetFingerprintAsNumPy(found), dtype=np.uint8)


@functools.cache
def _properties() -> Any:
    from rdkit.Chem.rdMolDescriptors import Properties

    return Properties(list(DESCRIPTORS))


def descriptors(found: Any) -> np.ndarray:
    """Return `DESCRIPTORS` of a molecule in their units, float64 [D]; 0 for one without a value."""
    values = np.array(list(_properties().ComputeProperties(found)), dtype=np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def graph(found: Any, atoms: int) -> tuple[np.ndarray, bool]:
    """Return atoms and their bonds, uint8 [A, 20], and whether some atom or bond was left out.

    Atoms are in the order of the canonical SMILES, so all spellings give the same array.
    """
    own = molecule(canonical(found)) or found
    codes = np.zeros((atoms, WIDTH), dtype=np.uint8)
    first = len(ATOM_CODES)
    lost = own.GetNumAtoms() > atoms
    for place, atom in zip(range(atoms), own.GetAtoms(), strict=False):
        codes[place, :first] = _atom(atom)
        taken = 0
        for bond in atom.GetBonds():
            other = bond.GetOtherAtomIdx(place)
            if other >= atoms or taken == NEIGHBOURS:
                lost = True
                continue
            codes[place, first + taken] = other + 1
            codes[place, first + NEIGHBOURS + taken] = _bond(bond)
            taken += 1
    return codes, lost


def _place(value: Any, known: Sequence[Any]) -> int:
    """Return the place of a value from 1; one more than the last for others."""
    return known.index(value) + 1 if value in known else len(known) + 1


def _atom(atom: Any) -> tuple[int, ...]:
    ring = next((size for size in RING_SIZES if atom.IsInRingSize(size)), None)
    own = {"R": 2, "S": 3}
    return (
        _place(atom.GetAtomicNum(), ELEMENTS),
        1 + min(atom.GetDegree(), 7),
        1 + min(max(atom.GetFormalCharge(), -2), 2) + 2,
        1 + min(atom.GetTotalNumHs(), 4),
        _place(str(atom.GetHybridization()), HYBRIDS),
        1 + 2 * atom.IsInRing() + atom.GetIsAromatic(),
        own.get(atom.GetProp("_CIPCode"), 1) if atom.HasProp("_CIPCode") else 1,
        (1 + _place(ring, RING_SIZES) if ring else 1) if atom.IsInRing() else 0,
    )


def _bond(bond: Any) -> int:
    kind = _place(str(bond.GetBondType()), BONDS) - 1
    stereo = {"STEREOE": 1, "STEREOTRANS": 1, "STEREOZ": 2, "STEREOCIS": 2}
    turn = stereo.get(str(bond.GetStereo()), 0)
    return 1 + ((kind * 2 + int(bond.IsInRing())) * 2 + int(bond.GetIsConjugated())) * 3 + turn


def tokens(found: Any) -> list[str]:
    """Return the tokens of the canonical SMILES."""
    return TOKEN.findall(canonical(found))


def encode(texts: Iterable[str | None], rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Return the array [N, *shape] of a rule, and which texts are no molecules, bool [N]."""
    make = _makers(rule)
    known: dict[str, np.ndarray | None] = {}
    null = np.zeros(rule["shape"], dtype=rule["dtype"])
    if rule["of"] == "descriptors" and rule["shape"][0] > len(DESCRIPTORS):
        null[-1] = 1.0
    rows, invalid = [], []
    for text in texts:
        if text is not None and text not in known:
            found = molecule(text)
            known[text] = None if found is None else make(found)
        row = None if text is None else known[text]
        rows.append(null if row is None else row)
        invalid.append(text is not None and row is None)
    block = np.stack(rows) if rows else np.zeros((0, *rule["shape"]), dtype=rule["dtype"])
    return block, np.array(invalid, dtype=bool)


def _makers(rule: Rule) -> Callable[[Any], np.ndarray]:
    radius, size = rule["radius"], rule["shape"][0]
    if rule["of"] == "bits":
        return lambda found: fingerprint(found, radius, rule["counts"])
    if rule["of"] == "descriptors":
        center, scale = np.array(rule["center"]), np.array(rule["scale"])
        filling = np.zeros(size - len(center))

        def scaled(found: Any) -> np.ndarray:
            values = np.clip((descriptors(found) - center) / scale, -LIMIT, LIMIT)
            return np.concatenate([values, filling]).astype(np.float32)

        return scaled
    codes = {value: place for place, value in enumerate(rule["values"], FIRST)}

    def packed(found: Any) -> np.ndarray:
        row = np.zeros(size, dtype=np.uint8)
        row[:PACKED] = np.packbits(fingerprint(found, radius), bitorder="little")
        if rule["of"] == "graph":
            row[PACKED:] = graph(found, (size - PACKED) // WIDTH)[0].reshape(-1)
        else:
            own = [codes.get(token, UNKNOWN) for token in tokens(found)][: size - PACKED]
            row[PACKED : PACKED + len(own)] = own
        return row

    return packed


def refuse_invalid(texts: Sequence[str | None], rule: Rule, invalid: np.ndarray) -> None:
    """Refuse texts that are no molecules, if the rule says so.

    Raises:
        ValueError: naming the column, the rows and the first texts.
    """
    rows = np.flatnonzero(invalid)
    if rule["invalid"] == "refuse" and len(rows):
        shown = ", ".join(f"row {row}: {str(texts[row])[:60]!r}" for row in rows[:5])
        raise ValueError(
            f"column {rule['name']!r}: RDKit reads no molecule in {len(rows)} of {len(texts)} rows"
            f" ({shown}); pass valid SMILES or null"
        )
