"""Tables of small pictures as files and as bytes, from raw rows to a run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from schemas.records import RunSpec
from tests.training.kind_cases import Prepared, prepared

SIDES = (10, 9)
IMAGE: dict[str, Any] = {"size": list(SIDES), "mode": "L"}
SMALL = {"kind": "resnet", "channels": [8], "size": 5}
COLUMNS: dict[str, Any] = {
    "row": "id",
    "y": "label",
    "scan": {"kind": "image", "image": IMAGE, "encoder": SMALL},
    "ward": "categorical",
    "x": "numeric",
    "z": "numeric",
}


def png(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """Bytes of a file of pixels [H, W] or [H, W, channels]."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def pixels_of(count: int = 160, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures [N, 10, 9], bright where the label is 1, and the labels [N]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    found = rng.integers(0, 200, (count, *SIDES)) + 55 * y[:, None, None]
    return found.astype(np.uint8), y


def picture_rows(folder: Path, count: int = 160, seed: int = 0, nulls: int = 0) -> pd.DataFrame:
    """Rows with paths of PNG files, which are written below the folder, and plain columns."""
    pixels, y = pixels_of(count, seed)
    (folder / "scans").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed + 1)
    paths: list[str | None] = []
    for i, picture in enumerate(pixels):
        paths.append(f"scans/{i:03d}.png")
        (folder / f"scans/{i:03d}.png").write_bytes(png(picture))
    for i in rng.choice(count, nulls, replace=False):
        paths[i] = None
    return pd.DataFrame(
        {
            "row": [f"r{i:03d}" for i in range(count)],
            "y": y,
            "scan": paths,
            "ward": rng.choice(["a", "b", "c"], count),
            "x": rng.normal(size=count).round(3),
            "z": rng.normal(size=count).round(3),
        }
    )


def as_bytes(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The same rows with the bytes of the files."""
    cells = [None if p is None or p != p else (folder / p).read_bytes() for p in frame["scan"]]
    return frame.assign(scan=pd.Series(cells, frame.index, dtype=object))


def picture_case(folder: Path, frame: pd.DataFrame, columns: Any = None, **sections: Any) -> Any:
    """Prepare rows whose files are below the folder."""
    return prepared(folder, frame, columns or COLUMNS, **sections)


def picture_run(folder: Path, frame: pd.DataFrame | None = None, **sections: Any) -> RunSpec:
    """Prepare rows, and write `resolved.json` of a run over them."""
    rows = picture_rows(folder) if frame is None else frame
    case: Prepared = picture_case(folder, rows, **sections)
    (folder / "resolved.json").write_text(case.run.model_dump_json())
    return case.run
