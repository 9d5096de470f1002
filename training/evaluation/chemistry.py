"""Statistics of generated molecules with the optional RDKit (`pip install 'bulkhead[chem]'`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

ABSENT = (
    "RDKit is not installed, so that nobody looked whether these are molecules; install it with:"
    " pip install 'bulkhead[chem]'"
)


def molecule_figures(
    made: Sequence[str], known: Callable[[], Iterable[str]] | None
) -> tuple[dict[str, float], str]:
    """Return the fractions of valid, distinct and new generated SMILES, with a note on the counts.

    Distinct ones are counted among valid, new ones among distinct. Two SMILES are one molecule if
    their canonical forms are equal. Without RDKit there are no figures, and the note says so.

    Args:
        made: SMILES.
        known: returns the train SMILES; None if they are not available, then new ones are not
            counted.

    Source: the benchmarks of Brown et al. 2019, GuacaMol, 10.1021/acs.jcim.8b00839, sec. 3.1.
    """
    canonical = _canonical()
    if canonical is None:
        return {}, ABSENT
    valid = [form for text in made if text and (form := canonical(text)) is not None]
    distinct = set(valid)
    figures = {"valid": len(valid) / max(len(made), 1)}
    note = (
        f"Of {len(made)} made-up SMILES RDKit reads {len(valid)}; of these {len(distinct)} are"
        " different molecules"
    )
    if valid:
        figures["unique"] = len(distinct) / len(valid)
    if known is None or not valid:
        return figures, f"{note}."
    letters = {letters_of(form) for form in distinct}
    new = distinct - {canonical(text) for text in known() if letters_of(text) in letters}
    return (
        figures | {"novel": len(new) / len(distinct)},
        f"{note}, {len(new)} of them not in train.",
    )


def letters_of(smiles: str) -> str:
    """Return the letters of a SMILES without hydrogen, sorted.

    They are equal for all spellings of a molecule, so few others must be compared with it.

    >>> (letters_of("c1ccccc1Cl") == letters_of("ClC1=CC=CC=C1"),
    ...     letters_of("C[nH]") == letters_of("CN"))
    (True, True)
    """
    return "".join(
        sorted(letter for letter in smiles.lower() if letter.isalpha() and letter != "h")
    )


def _canonical() -> Callable[[str], str | None] | None:
    """Map SMILES to canonical SMILES, None for an invalid one; return None without RDKit."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        return None

    def canonical(text: str) -> str | None:
        with rdBase.BlockLogs():  # it explains each failure on standard error
            molecule = Chem.MolFromSmiles(text)
            return None if molecule is None else str(Chem.MolToSmiles(molecule))

    return canonical
