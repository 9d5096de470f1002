"""Windows as they were written: no step of a held-out row in train's, none after its own row.

N rows of a side, M steps that their windows hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.config import SplitName
from schemas.digest import verify
from schemas.errors import counted, first_few
from schemas.records import CheckResult
from schemas.references import SplitTables, ValidatedTable, WindowSpec
from training.data.leakage.explanation import EXACT, Explanation

LATER: dict[SplitName, tuple[SplitName, ...]] = {"train": ("val", "test"), "val": ("test",)}
EVIDENCE_ROWS = 5
EXPLANATION = Explanation(
    "Windows that hold what they may not",
    "windows of train that hold a validation or test row, of validation that hold a test row, and"
    " windows of any side with a step of another series, or one that comes after their row",
    "number of such rows, read from the files of the windows",
    (),
    EXACT + " Windows of test may hold rows of train and validation: these are known by then.",
    "one pass over the ids and times of rows and steps",
    "A network that has read test rows in windows of train knows the stretch of time that it is"
    " scored on.",
    "Split by time, or keep whole series on one side.",
)


class WindowFaults(NamedTuple):
    """What is wrong with the windows of one side: ids of rows, by fault.

    `held_out`: rows of a later side that its windows hold. `strange`: rows whose window holds a
    step of another series. `future`: rows whose window holds a later step, or itself despite a lag.
    `steps`: how many steps there are.
    """

    name: str
    side: SplitName
    steps: int
    held_out: list[str]
    strange: list[str]
    future: list[str]


def find_window_faults(split: SplitTables, validated: ValidatedTable) -> list[WindowFaults]:
    """Read the windows of all sides again, and compare them with the rows of the sides.

    Raises:
        IntegrityError: a file was changed after it was written.
    """
    sides: tuple[SplitName, ...] = ("train", "val", "test")
    ids = {s: _column(split, s, "__id") for s in sides} if validated.spec.windows else {}
    return [
        _faults(split, validated, name, window, side, ids)
        for name, window in validated.spec.windows.items()
        for side in sides
    ]


def _faults(
    split: SplitTables,
    validated: ValidatedTable,
    name: str,
    window: WindowSpec,
    side: SplitName,
    ids: dict[SplitName, pa.ChunkedArray],
) -> WindowFaults:
    history = split.side(side).histories[name]
    steps = pq.read_table(verify(history.steps), columns=["__id", "__series", "__time"])
    ends = pq.read_table(verify(history.ends))
    later = pa.chunked_array(
        [c for other in LATER.get(side, ()) for c in ids[other].chunks], ids[side].type
    )
    held = steps["__id"].filter(pc.is_in(steps["__id"], value_set=later)).to_pylist()
    rows = pq.read_table(verify(validated.histories[name]), columns=["__id", "__series", "__time"])
    own = rows.take(pc.index_in(ids[side], value_set=rows["__id"].combine_chunks()))
    first, last = _ends_of(steps, ends)
    has_steps = last >= first
    known = np.flatnonzero(has_steps)
    oldest, newest = steps.take(first[known]), steps.take(last[known])
    series = own["__series"].take(known)
    strange = _differ(oldest["__series"], series) | _differ(newest["__series"], series)
    time = own["__time"].take(known).to_numpy()
    late = newest["__time"].to_numpy() > time
    late |= (window.lag > 0) & (newest["__time"].to_numpy() >= time)
    of_known = ids[side].take(known)
    return WindowFaults(
        name,
        side,
        len(steps),
        held,
        of_known.filter(pa.array(strange)).to_pylist(),
        of_known.filter(pa.array(late)).to_pylist(),
    )


def _ends_of(steps: pa.Table, ends: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last step of each window that is a row, [N]; first > last: none."""
    is_row = np.asarray(pc.is_valid(steps["__id"]).to_numpy())
    places = np.arange(len(is_row))
    before = np.maximum.accumulate(np.where(is_row, places, -1))
    after = np.minimum.accumulate(np.where(is_row, places, len(is_row))[::-1])[::-1]
    end, count = ends["end"].to_numpy(), ends["count"].to_numpy()
    begin = end - count
    is_empty = count == 0
    first = np.where(is_empty, 1, after[np.where(is_empty, 0, begin)])
    last = np.where(is_empty, 0, before[np.where(is_empty, 0, end - 1)])
    return first, last


def _differ(found: pa.ChunkedArray, wanted: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(pc.not_equal(found, wanted).to_numpy())


def _column(split: SplitTables, side: SplitName, name: str) -> pa.ChunkedArray:
    return pq.read_table(verify(split.side(side).file), columns=[name])[name]


def judge_windows(found: list[WindowFaults]) -> list[CheckResult]:
    """Fail if a window holds what its row cannot know, or a row of a later side; one result."""
    if not found:
        return []
    faults = [
        (f"windows of {f.side} ({f.name}) hold", what, ids, f.side)
        for f in found
        for what, ids in (
            (f"rows of {' or '.join(LATER.get(f.side, ()))}", f.held_out),
            ("steps of another series", f.strange),
            ("steps that come after their row", f.future),
        )
        if ids
    ]
    steps = sum(f.steps for f in found)
    told = [
        f"{where} {what}: {counted(len(ids), 'row')} (first: {first_few(ids[:5], len(ids))})"
        for where, what, ids, _ in faults
    ]
    return [
        CheckResult(
            name="windows",
            verdict="fail" if faults else "pass",
            summary="; ".join(told)
            or "windows hold earlier steps of their own series alone, and"
            " those of train no held-out row",
            figures={"steps": steps, "faults": sum(len(ids) for _, _, ids, _ in faults)},
            evidence=tuple(
                {"id": i, "side": side, "fault": what}
                for _, what, ids, side in faults
                for i in ids[:EVIDENCE_ROWS]
            ),
            columns=tuple(dict.fromkeys(f.name for f in found)),
            remedy="split by time, or keep whole series on one side (split.kind: group with the"
            " columns of data.series, cv.kind: walk_forward or group)"
            if faults
            else "",
        )
    ]
