"""Generated tables with one column of a kind that a declared encoder reads: text, set, molecule,
picture, series. Nothing can be learned from them; what is measured is time.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.made_up import prepare_table
from schemas.records import RunSpec

# a chain of these is a molecule, whatever their order
UNITS = ("C", "CC", "O", "N", "C(=O)", "C(F)", "c1ccc(cc1)", "c1ccc(s1)", "S(=O)(=O)", "N(C)")
SIDE, UNITS_OF_SERIES = 32, 40
SERIES: dict[str, Any] = {"columns": ["x", "z", "u", "v"], "look_back": 48}


def words(rng: np.random.Generator, rows: int) -> list[str]:
    """Return texts of 10 to 60 of 5,000 words, frequent ones more often."""
    drawn = (5000 * rng.random((rows, 60)) ** 3).astype(int)
    counts = rng.integers(10, 61, rows)
    return [
        " ".join(f"w{code}" for code in line[:count])
        for line, count in zip(drawn, counts, strict=True)
    ]


def tags(rng: np.random.Generator, rows: int) -> list[list[str]]:
    """Return sets of at most 8 of 400 tags."""
    drawn = rng.integers(0, 400, (rows, 8))
    counts = rng.integers(0, 9, rows)
    return [
        [f"t{code}" for code in line[:count]] for line, count in zip(drawn, counts, strict=True)
    ]


def molecules(rng: np.random.Generator, rows: int) -> list[str]:
    """Return SMILES of 6 to 11 units, some 25 atoms."""
    drawn = rng.integers(0, len(UNITS), (rows, 11))
    counts = rng.integers(6, 12, rows)
    return [
        "".join(UNITS[code] for code in line[:count])
        for line, count in zip(drawn, counts, strict=True)
    ]


def pictures(rng: np.random.Generator, rows: int) -> list[bytes]:
    """Return PNG files of 32 x 32 in colour."""
    found = []
    for pixels in rng.integers(0, 256, (rows, SIDE, SIDE, 3), dtype=np.uint8):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG", compress_level=1)
        found.append(out.getvalue())
    return found


def prepare_kind(folder: Path, rows: int, kind: str, encoder: dict[str, Any] | None) -> RunSpec:
    """Prepare a run over a table with one number and one column of a kind.

    Args:
        folder: of the table and the arrays.
        rows: of the table.
        kind: text, set, smiles, image or windows.
        encoder: as declared; None: the bag of texts and sets.
    """
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"row": np.arange(rows), "y": rng.integers(0, 2, rows)})
    columns: dict[str, Any] = {"row": "id", "y": "label", "x": "numeric"}
    data: dict[str, Any] = {"columns": columns}
    sections: dict[str, Any] = {}
    makers = {"text": words, "set": tags, "smiles": molecules, "image": pictures}
    for name in SERIES["columns"]:
        frame[name] = rng.normal(size=rows)
    if kind == "windows":
        frame["unit"] = [f"u{row % UNITS_OF_SERIES}" for row in range(rows)]
        frame["at"] = np.arange(rows) // UNITS_OF_SERIES
        columns |= {"unit": "group", "at": "time"}
        data["windows"] = {"past": SERIES | {"encoder": encoder}}
        sections["split"] = {"kind": "group"}
    else:
        frame["read"] = makers[kind](rng, rows)
        columns["read"] = {"kind": kind} | ({"encoder": encoder} if encoder else {})
        if kind == "image":
            columns["read"]["image"] = {"size": [SIDE, SIDE]}
    columns["*"] = "ignore"
    frame.to_parquet(folder / "table.parquet", index=False)
    return prepare_table(folder, folder / "table.parquet", data, {"kind": "binary"}, **sections)
