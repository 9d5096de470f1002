"""Generated tables, images and texts that favour no loop, prepared by the real data pipeline for
the runs that benchmarks train.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.digest import write_atomic
from schemas.load import declare
from schemas.records import RunSpec
from training.data.arrays.shards import materialise
from training.data.fit.normalize import fit
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate

NUMERIC = 30
COLUMNS = {"row": "id", "y": "label", "c*": "categorical", "*": "feature"}  # of the table
LEVELS = (4, 12, 60, 400)  # of the categorical columns


def write_table(path: Path, rows: int, seed: int = 0, numeric_columns: int = NUMERIC) -> Path:
    """Write a Parquet file with an id, 30 (at least 6) numeric and 4 categorical columns, and a
    label that depends on some of them.
    """
    rng = np.random.default_rng(seed)
    numeric = rng.normal(size=(rows, numeric_columns))
    codes = [rng.integers(0, levels, rows) for levels in LEVELS]
    signal = (
        numeric[:, :5].sum(axis=1)
        + np.sin(3 * numeric[:, 5])
        + 0.5 * (codes[1] % 3)
        + rng.normal(size=rows)
    )
    columns: dict[str, Any] = {
        "row": np.arange(rows),
        "y": (signal > np.median(signal)).astype(np.int64),
    }
    columns |= {f"x{i}": numeric[:, i] for i in range(numeric_columns)}
    columns |= {f"c{i}": np.char.add("v", code.astype(str)) for i, code in enumerate(codes)}
    pq.write_table(pa.table(columns), path)
    return path


def write_images(path: Path, rows: int, seed: int = 0) -> Path:
    """Write a Parquet file with an id, grey images of 28 x 28, and one of ten labels: the position
    of a bright stripe.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, rows)
    pixels = rng.integers(0, 120, (rows, 28, 28), dtype=np.uint8)
    pixels[np.arange(rows)[:, None], (2 * labels + 4)[:, None], np.arange(28)] += 100
    images = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 28 * 28)
    pq.write_table(pa.table({"row": np.arange(rows), "y": labels, "image": images}), path)
    return path


def write_texts(path: Path, rows: int, seed: int = 0, letters: int = 400) -> Path:
    """Write a Parquet file with an id and texts of 400 letters, each drawn from the one before."""
    rng = np.random.default_rng(seed)
    steps = rng.integers(1, 4, (rows, letters)).cumsum(axis=1) % 26
    texts = [line.tobytes().decode() for line in (steps + 97).astype(np.uint8)]
    pq.write_table(pa.table({"row": np.arange(rows), "text": texts}), path)
    return path


def prepare(folder: Path, rows: int, numeric_columns: int = NUMERIC) -> RunSpec:
    """Prepare a run over `rows` rows of a table, with arrays below the folder; `variant` replaces
    sections of its declaration.
    """
    table = write_table(folder / "table.parquet", rows, numeric_columns=numeric_columns)
    return prepare_table(folder, table, {"columns": COLUMNS}, {"kind": "binary"})


def prepare_images(folder: Path, rows: int) -> RunSpec:
    """Prepare a run over `rows` images."""
    columns = {"row": "id", "y": "label", "image": {"kind": "tensor", "shape": [28, 28]}}
    return prepare_table(
        folder,
        write_images(folder / "images.parquet", rows),
        {"columns": columns},
        {"kind": "multiclass"},
    )


def prepare_texts(folder: Path, rows: int, context: int = 128, letters: int = 400) -> RunSpec:
    """Prepare a run over `rows` texts, cut into sequences of 128 letters."""
    tokens = {"tokenizer": "character", "context": context, "packing": "windows"}
    return prepare_table(
        folder,
        write_texts(folder / "texts.parquet", rows, letters=letters),
        {"columns": {"row": "id", "text": "text"}},
        {"kind": "causal_lm"},
        tokens=tokens,
    )


def prepare_table(
    folder: Path, path: Path, data: dict[str, Any], task: dict[str, Any], **sections: Any
) -> RunSpec:
    """Prepare a run over the table of a file; `data` and the other sections are declared."""
    tree = {
        "name": "benchmark",
        "data": {"uri": str(path)} | data,
        "task": task,
        "split": {"kind": "random"},
    } | sections
    declaration = declare(tree)
    validated = validate(fingerprint(declaration.data), declaration, folder / "validated")
    sides = split(validated, declaration, folder / "split", folder / "ledger")
    statistics = fit(sides.train, validated.spec, declaration)
    arrays = materialise(sides, validated, statistics, declaration, folder / "arrays")
    return RunSpec(
        run_id="benchmark",
        name="benchmark",
        declaration=tree,
        spec=validated.spec,
        statistics=statistics,
        arrays=arrays,
    )


def variant(spec: RunSpec, path: Path, **sections: Any) -> Path:
    """Write the run with replaced sections of its declaration, for `training.main` to read."""
    declaration = declare(spec.declaration | sections)
    write_atomic(
        path,
        spec.model_copy(
            update={"declaration": declaration.model_dump(mode="json", by_alias=True)}
        ).model_dump_json(),
    )
    return path
