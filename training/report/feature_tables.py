"""Tables of what was fitted on train for tensors, texts and sets."""

from __future__ import annotations

from schemas.records import Statistics
from schemas.statistics import MoleculeStats
from training.formatting import count, number, plain
from training.report.blocks import Table, table

MAX_ROWS = 30


def tensor_table(fitted: Statistics) -> Table:
    """Return type, shape, mean and deviation of each tensor; of molecules what is missing."""
    rows = [
        [
            plain(s.name, 40),
            " × ".join(map(str, s.shape)),
            s.dtype if s.molecule is None else f"{s.dtype}, {s.molecule.of} of molecules",
            ", ".join(map(number, s.mean[:8])) if s.molecule is None else _counts(s.molecule),
            ", ".join(map(number, s.std[:8])) if s.molecule is None else "",
        ]
        for s in fitted.tensor
    ]
    return table(
        ["Column", "Shape", "Stored as", "Mean by channel", "Deviation by channel"],
        rows,
        words=(0, 1, 2),
        limit=MAX_ROWS,
        what="tensor features",
    )


def _counts(molecule: MoleculeStats) -> str:
    """Return how many train rows have no molecule, or one that is not read to its end."""
    found = f"{count(molecule.nulls)} missing, of which {count(molecule.unread)} unreadable"
    return f"{found}; {count(molecule.cut)} cut short" if molecule.cut else found


def bag_table(fitted: Statistics) -> Table:
    """Return the vocabulary of each text and set, and what it does not know."""
    rows = []
    for s in fitted.bags:
        top = ", ".join(
            f"{plain(v, 24)} ({count(n)})" for v, n in zip(s.values[:4], s.counts, strict=False)
        )
        pieces = "values" if s.separator is not None else f"{s.unit}, {s.ngrams[0]}-{s.ngrams[1]}"
        rows.append(
            [
                plain(s.name, 40),
                pieces,
                count(len(s.values)),
                count(s.length),
                count(s.unknown_rows),
                count(s.nulls),
                top,
            ]
        )
    return table(
        [
            *("Column", "Pieces", "Vocabulary", "Most of a row", "Rows with an unknown piece"),
            *("Missing", "Most frequent"),
        ],
        rows,
        words=(0, 1, 6),
        limit=MAX_ROWS,
        what="texts and sets",
    )
