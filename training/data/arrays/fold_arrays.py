"""Arrays of an ensemble's member: rows of train and validation, divided again and copied by index.

Nothing is fitted again: the values are those that were made with the statistics of the run's train
rows, which therefore serve every member and the registered model. N rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas import digest
from schemas.errors import IntegrityError, SplitError, first_few
from schemas.records import ArraysRef, SplitArrays, digest_of
from schemas.scratch import scratch_folder
from training.data.arrays.shards import load_arrays
from training.data.arrays.window_arrays import Windows, joined, steps_of, write_steps

COPIED_ROWS = 16_384


def write_fold(arrays: ArraysRef, train: pa.Array, val: pa.Array, out_dir: Path) -> ArraysRef:
    """Write the arrays of one member, as a whole or not at all; those of test are not opened.

    Rows of the run's train come before those of its validation, each in their order.

    Args:
        arrays: those of the run.
        train: ids of the rows that the member trains on.
        val: ids of the rows that it stops early on.
        out_dir: folder of the new arrays; one that exists is replaced.

    Raises:
        IntegrityError: an array was changed, or an id has no row.
        SplitError: a row would be on both sides, or a side would be empty, or lack a class.
    """
    shared = train.filter(pc.is_in(train, value_set=val)).to_pylist()
    if shared:
        raise SplitError(
            "ensemble.over: folds: expected no row of a member's own fold among those that it"
            f" trains on, got {len(shared)} (first: {first_few(shared)}); this is a defect of"
            " Bulkhead, report it"
        )
    target = Path(out_dir).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent, target.name) as scratch:
        for side, ids in (("train", train), ("val", val)):
            _write_side(arrays, ids, scratch / "new" / side, side)
        digest.fsync_folder(scratch / "new")
        if target.exists():
            target.replace(scratch / "old")
        (scratch / "new").replace(target)
    sides = {side: _reference(target / side, arrays.train) for side in ("train", "val")}
    _require_classes(sides["train"], sides["val"])
    parts = {
        f"{side}/{name}": ref.sha256
        for side, found in sides.items()
        for name, ref in {
            **found.arrays,
            **{f"windows/{n}": ref for n, ref in found.windows.items()},
            "ids": found.ids,
        }.items()
    }
    return arrays.model_copy(
        update={
            "directory": str(target),
            **sides,
            "sha256": digest_of({**parts, "statistics": arrays.statistics.sha256}),
        }
    )


def _write_side(arrays: ArraysRef, ids: pa.Array, folder: Path, side: str) -> None:
    """Copy the rows with these ids from train and validation."""
    folder.mkdir(parents=True)
    sources = [(load_arrays(part), _ids(part)) for part in (arrays.train, arrays.val)]
    places = [
        np.flatnonzero(pc.is_in(table["__id"], value_set=ids).to_numpy()) for _, table in sources
    ]
    rows = sum(map(len, places))
    if rows != len(ids):
        raise IntegrityError(
            f"{arrays.directory}: expected {len(ids)} rows of a fold's {side}, found {rows};"
            " prepare the data again"
        )
    if not rows:
        raise SplitError(
            f"ensemble.over: folds: a fold's {side} has no rows; lower ensemble.members"
        )
    for name, first in sources[0][0].items():
        path = folder / Path(arrays.train.arrays[name].path).name
        if isinstance(first, Windows):
            parts = [
                Windows(b[name].steps, b[name].ends[at], first.length)
                for (b, _), at in zip(sources, places, strict=True)
            ]
            steps, ends = joined(parts)
            write_steps(folder, path.stem, steps)
            np.save(path, ends)
            digest.settle(path)
            continue
        shape = (rows, *first.shape[1:])
        made = np.lib.format.open_memmap(path, mode="w+", dtype=first.dtype, shape=shape)
        start = 0
        for (blocks, _), at in zip(sources, places, strict=True):
            for chunk in np.split(at, range(COPIED_ROWS, len(at), COPIED_ROWS)):
                made[start : start + len(chunk)] = blocks[name][chunk]
                start += len(chunk)
        made.flush()
        digest.settle(path)
    kept = [table.take(pa.array(at)) for (_, table), at in zip(sources, places, strict=True)]
    pq.write_table(pa.concat_tables(kept), folder / "ids.parquet")
    digest.settle(folder / "ids.parquet")


def _ids(side: SplitArrays) -> pa.Table:
    return pq.read_table(digest.verify(side.ids))


def _reference(folder: Path, before: SplitArrays) -> SplitArrays:
    ids = digest.file_ref(folder / "ids.parquet")
    arrays = {
        name: digest.file_ref(folder / Path(ref.path).name) for name, ref in before.arrays.items()
    }
    return SplitArrays(
        rows=pq.read_metadata(ids.path).num_rows,
        arrays=arrays,
        ids=ids,
        windows=steps_of(folder, arrays),
    )


def _require_classes(train: SplitArrays, val: SplitArrays) -> None:
    """Refuse folds on which a class cannot be learned or ranked.

    Raises:
        SplitError: a side has a single class, or validation one that train lacks.
    """
    labels = [np.load(side.arrays["label"].path, mmap_mode="r") for side in (train, val)]
    if labels[0].ndim > 1 or labels[0].dtype.kind == "f":
        return
    learned, stopped = (set(np.unique(label).tolist()) for label in labels)
    if len(learned) < 2 or len(stopped) < 2 or stopped - learned:
        raise SplitError(
            "ensemble.over: folds: expected at least two classes in each fold, and each of them"
            f" among the member's train rows, got class numbers {sorted(stopped)} in the fold and"
            f" {sorted(learned)} around it; lower ensemble.members, or use split.kind: stratified"
        )
