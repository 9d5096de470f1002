"""Write the digits of mnist10k_writers.parquet as PNG files, and a CSV file that names them.

Run `python examples/mnist_files.py [TABLE] [FOLDER]`, then `bulkhead run` with mnist_files.yaml.
TABLE is the Parquet file (default: ../shared/data/mnist10k_writers.parquet), FOLDER gets
`digits.csv` with image_id, writer, digit and image, the path of a file below `digits/` (default:
.bulkhead/mnist_files).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

PROJECT = Path(__file__).resolve().parent.parent
TABLE = PROJECT.parent / "shared" / "data" / "mnist10k_writers.parquet"
FOLDER = PROJECT / ".bulkhead" / "mnist_files"
SIDE = 28  # pixels


def write(table: Path, folder: Path) -> int:
    """Write the files and the table of their paths; return their number."""
    rows = pd.read_parquet(table)
    (folder / "digits").mkdir(parents=True, exist_ok=True)
    rows["path"] = [f"digits/{image_id}.png" for image_id in rows["image_id"]]
    for path, pixels in zip(rows["path"], rows["image"], strict=True):
        picture = np.asarray(pixels, dtype=np.uint8).reshape(SIDE, SIDE)
        Image.fromarray(picture).save(folder / path)
    named = rows[["image_id", "writer", "digit", "path"]].rename(columns={"path": "image"})
    named.to_csv(folder / "digits.csv", index=False)
    return len(named)


if __name__ == "__main__":
    given = [Path(text) for text in sys.argv[1:3]]
    table, folder = (*given, *(TABLE, FOLDER)[len(given) :])
    print(f"{write(table, folder)} pictures in {folder}")
