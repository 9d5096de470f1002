"""Rows of several splits as one: what a refit trains on (`train.refit`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schemas import digest
from schemas.records import ArraysRef, SplitArrays, digest_of
from schemas.split_config import SplitName
from training.data.arrays.shards import load_arrays
from training.data.arrays.window_arrays import Windows, joined, steps_of, write_steps

ROWS = 65_536


def join_splits(arrays: ArraysRef, splits: Sequence[SplitName], folder: Path) -> ArraysRef:
    """Return arrays whose train split holds the rows of several splits, one after the other.

    Values are copied as they are: statistics and vocabularies stay those fitted on train. The same
    splits give the same bytes. Validation and test are not changed.

    Args:
        arrays: all splits.
        splits: splits to join, in this order.
        folder: gets the files; those of an earlier call are replaced.

    Raises:
        IntegrityError: a file of a split is gone or was changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sides = [arrays.side(name) for name in splits]
    loaded = [load_arrays(side) for side in sides]
    files = {}
    for name in loaded[0]:
        path, parts = folder / f"{quote(name, safe='')}.npy", [s[name] for s in loaded]
        if isinstance(parts[0], Windows):
            steps, ends = joined(parts)
            write_steps(folder, path.stem, steps)
            parts = [ends]
        files[name] = digest.file_ref(_write(path, parts))
    ids = folder / "ids.parquet"
    tables = [pq.read_table(digest.verify(side.ids)) for side in sides]
    pq.write_table(pa.concat_tables(tables), ids)
    train = SplitArrays(
        rows=sum(side.rows for side in sides),
        arrays=files,
        ids=digest.file_ref(ids),
        windows=steps_of(folder, files),
    )
    own = {**files, **{f"windows/{name}": ref for name, ref in train.windows.items()}}
    made = {name: ref.sha256 for name, ref in {**own, "ids": train.ids}.items()}
    return arrays.model_copy(
        update={
            "directory": str(folder),
            "train": train,
            "sha256": digest_of([arrays.sha256, made]),
        }
    )


def _write(path: Path, parts: list[np.ndarray]) -> Path:
    rows = sum(len(part) for part in parts)
    scratch = path.with_name(f".{path.name}")
    found = np.lib.format.open_memmap(
        scratch, mode="w+", dtype=parts[0].dtype, shape=(rows, *parts[0].shape[1:])
    )
    position = 0
    for part in parts:
        for begin in range(0, len(part), ROWS):
            block = part[begin : begin + ROWS]
            found[position : position + len(block)] = block
            position += len(block)
    found.flush()
    os.replace(scratch, path)
    return path
