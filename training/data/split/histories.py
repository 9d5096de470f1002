"""The steps of series that the windows of a split hold, each of them once.

A window of a row holds steps of its own series, the row itself or earlier ones, on any side that
the split puts before it. The check `windows` proves that none of train's is a row of validation or
test. N rows of a split, M steps that their windows hold, H rows of all series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schemas.config import SPLITS, SplitName
from schemas.digest import file_ref, replacing, verify
from schemas.errors import DataError, IntegrityError, counted, first_few
from schemas.references import (
    FileRef,
    HistoryRef,
    SplitTables,
    TableRef,
    ValidatedTable,
    WindowSpec,
)

Change = Callable[[pa.Table], pa.Table]
FAR = 1e-3  # of a step, by which a moment may lie beside the grid


class Series(NamedTuple):
    """All rows of all series in order: their places on the grid, and their series' numbers, [H]."""

    table: pa.Table
    number: np.ndarray
    place: np.ndarray


class Part(NamedTuple):
    """Windows over steps [M]: the row of the series (-1: none), and ends and counts, [N]."""

    rows: np.ndarray
    ends: np.ndarray
    counts: np.ndarray


def with_histories(made: SplitTables, validated: ValidatedTable, out_dir: Path) -> SplitTables:
    """Write the windows of each side next to its table; without windows, return what was given.

    Raises:
        DataError: a moment of a series lies beside the grid of its window.
        IntegrityError: a row is in no series, or a file was changed.
    """
    for number, (name, window) in enumerate(validated.spec.windows.items()):
        series = read_series(validated.histories[name], window, name)
        sides: dict[str, TableRef] = {}
        for side in SPLITS:
            folder, table = Path(out_dir) / f"{side}_window_{number}", made.side(side)
            histories = table.histories | {name: _write(series, window, table, side, folder)}
            sides[side] = table.model_copy(update={"histories": histories})
        made = made.model_copy(update=sides)
    return made


def first_windows(table: TableRef, rows: int, path: Path, change: Change) -> dict[str, HistoryRef]:
    """Return the windows of the first rows of a table, with their steps changed.

    Args:
        table: has the windows.
        rows: how many rows.
        path: begins the names of the files.
        change: function of the steps; keeps columns and types.
    """
    found = {}
    for number, (name, history) in enumerate(table.histories.items()):
        ends = path.with_name(f"{path.name}_window_{number}.parquet")
        steps = ends.with_suffix(".steps.parquet")
        with replacing(ends) as file:
            pq.write_table(pq.read_table(verify(history.ends)).slice(0, rows), file)
        with replacing(steps) as file:
            pq.write_table(change(pq.read_table(verify(history.steps))), file)
        found[name] = HistoryRef(steps=file_ref(steps), ends=file_ref(ends))
    return found


def chosen_windows(
    tables: Sequence[TableRef], rows: Sequence[np.ndarray], path: Path
) -> dict[str, HistoryRef]:
    """Return the windows of some rows of several tables, one table after the other.

    Args:
        tables: with the same windows.
        rows: positions of the rows in each of them.
        path: of the table that gets the rows; its name begins those of the files.
    """
    found = {}
    for number, name in enumerate(tables[0].histories):
        steps, ends, before = [], [], 0
        for table, own in zip(tables, rows, strict=True):
            history = table.histories[name]
            steps.append(pq.read_table(verify(history.steps)).replace_schema_metadata(None))
            part = pq.read_table(verify(history.ends)).take(pa.array(own))
            ends.append(part.set_column(0, "end", pc.add(part["end"], before)))
            before += len(steps[-1])
        refs = {}
        for what, parts in (("steps", steps), ("ends", ends)):
            with replacing(path.with_name(f"{path.stem}_{what}_{number}.parquet")) as file:
                pq.write_table(pa.concat_tables(parts), file)
            refs[what] = file_ref(path.with_name(f"{path.stem}_{what}_{number}.parquet"))
        found[name] = HistoryRef(**refs)
    return found


def read_series(file: FileRef, window: WindowSpec, name: str) -> Series:
    """Return the rows of all series, with their places in units of the window's step.

    Without a step each row is one: its place is its number.

    Raises:
        DataError: a moment lies beside the grid that the first moment of its series begins.
    """
    table = pq.read_table(verify(file))
    number = np.asarray(table["__series"].combine_chunks().dictionary_encode().indices)
    if window.step is None:
        return Series(table, number, np.arange(len(table)))
    time = table["__time"].to_numpy()
    begins = np.flatnonzero(np.diff(number, prepend=-1))
    first = np.repeat(time[begins], np.diff(begins, append=len(time)))
    steps = (time - first) / window.step
    place = np.rint(steps).astype(np.int64)
    beside = np.flatnonzero(np.abs(steps - place) > FAR)
    if len(beside):
        shown = (f"{table['__series'][i].as_py()} {time[i]:.17g}" for i in beside[:5].tolist())
        raise DataError(
            f"data.windows.{name}: {counted(len(beside), 'row')} beside a grid of step"
            f" {window.step:g} that their series' first row begins (first:"
            f" {first_few(shown, len(beside))}); round the time in data.derive, choose a step that"
            " all moments are multiples of, or remove step and count rows"
        )
    return Series(table, number, place)


def windows_of(series: Series, window: WindowSpec, rows: np.ndarray) -> Part:
    """Return the windows of rows of the series, and the steps that any of them holds.

    Args:
        series: of all rows.
        window: what a window holds.
        rows: row numbers within `series` [N], without repeats.
    """
    begins = np.flatnonzero(np.diff(series.number, prepend=-1))
    last = series.place[np.append(begins[1:], len(series.place)) - 1] - series.place[begins]
    # places of all series on one line, on which no window reaches two of them
    gap = window.length + window.lag
    offset = np.cumsum(last + 1 + gap) - (last + 1 + gap)
    place = series.place - series.place[begins][series.number] + offset[series.number]
    end = place[rows] + 1 - window.lag
    begin = np.maximum(end - window.length, offset[series.number[rows]])
    count = np.maximum(end - begin, 0)
    held = _union(begin[count > 0], end[count > 0])
    at = np.searchsorted(place, held)
    at = np.where(place[np.minimum(at, len(place) - 1)] == held, at, -1)
    return Part(at, np.where(count > 0, np.searchsorted(held, end), 0), count)


def _union(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the numbers of intervals [begin, end), each once and in order.

    >>> _union(np.array([4, 0, 5]), np.array([6, 2, 7])).tolist()
    [0, 1, 4, 5, 6]
    """
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    # of each interval what lies behind all earlier ones
    begin = np.maximum(begin, np.append(begin[:1], reach[:-1]))
    sizes = np.maximum(reach - begin, 0)
    return np.repeat(begin - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def _write(
    series: Series, window: WindowSpec, table: TableRef, side: SplitName, folder: Path
) -> HistoryRef:
    """Write the steps and the ends of one side."""
    ids = pq.read_table(verify(table.file), columns=["__id"])["__id"]
    known = series.table["__id"]
    found = pc.index_in(ids.cast(known.type), value_set=known.combine_chunks())
    if found.null_count:
        raise IntegrityError(
            f"{table.file.path}: {counted(found.null_count, 'row')} in no series; prepare the data"
            " again"
        )
    part = windows_of(series, window, np.asarray(found.to_numpy()))
    places = pa.array(part.rows, mask=part.rows < 0)
    steps = series.table.take(places).replace_schema_metadata({"bulkhead.side": side})
    ends = pa.table({"end": part.ends, "count": part.counts})
    paths = {"steps": folder.with_suffix(".steps.parquet"), "ends": folder.with_suffix(".parquet")}
    for path, made in zip(paths.values(), (steps, ends), strict=True):
        with replacing(path) as file:
            pq.write_table(made, file)
    return HistoryRef(**{name: file_ref(path) for name, path in paths.items()})
