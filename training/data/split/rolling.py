"""Cuts that move on with a growing table: windows that end at its newest row (`split.roll`).

The end is the newest time, rounded down to a multiple of `roll`. Test begins `test` before it, and
validation `val` before that; newer rows are test rows. The ledger holds the cuts of each table that
was split. Cuts never move back, so a row goes from test to val to train as time goes on, never the
other way round, whatever happens to the table:

- A row that comes late, with an old time stamp, was on no side before. It goes where its time says,
  and is counted.
- A table whose newest row is older than that of an earlier table keeps the later cuts.
- A newest row that lies further than `test` after the rest would push everything else into train,
  for ever. It is refused before anything is written down.

Grid: multiples of `roll` counted from Monday, 1970-01-05 UTC (of numbers, from 0), so that 7d means
weeks from Monday, whenever the table was first seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from schemas.config import Declaration, TimeSplit
from schemas.errors import SplitError, counted
from schemas.records import TableSpec, ValidatedTable, digest_of
from training.data.engine.engine import engine_for, literal, parquet, row, rows
from training.data.split.ledger import Entry, opened
from training.data.split.time_cuts import time_text
from training.data.table.time_units import in_time_units, length

MONDAY = 345_600.0  # seconds: 1970-01-05, which begins a week, a day and an hour
CUTS, SEEN = "cuts", "seen"  # of an entry's frozen decisions
WINDOWS = ("train", "val", "test")


class Rolled(NamedTuple):
    """Cuts of today's table in units of `__time`, what is new for the ledger, and what to say.

    `newest`: largest time of the table. `notes`: what happened to rows that an earlier table had,
    in sentences; empty in a table that only grows at its end.
    """

    cuts: dict[str, float]
    newest: float
    frozen: dict[str, Any]
    notes: tuple[str, ...] = ()


def rolls(declaration: Declaration) -> bool:
    """Return True if the cuts of the split move on with the table."""
    return isinstance(declaration.split, TimeSplit) and declaration.split.rolls


def window_end(newest: float, roll: float, anchor: float) -> float:
    """Return the end of the windows: the newest time, rounded down to the grid.

    >>> window_end(17.0, 7.0, 0.0), window_end(14.0, 7.0, 0.0)
    (14.0, 14.0)
    """
    return anchor + math.floor((newest - anchor) / roll) * roll


def roll_cuts(
    validated: ValidatedTable, declaration: Declaration, entries: Sequence[Entry]
) -> Rolled:
    """Return the cuts of a table; a function of it and of the ledger alone.

    Args:
        validated: the table; its file is read.
        declaration: its split has `roll`, `test` and `val`.
        entries: lines of the ledger for this way of splitting, the oldest first.

    Raises:
        SplitError: the newest rows lie further than `split.test` after all others.
    """
    spec, sha256 = validated.spec, validated.table.file.sha256
    known = [entry for entry in entries if CUTS in entry.frozen]
    roll, test, val = (
        in_time_units(getattr(declaration.split, name), spec, f"split.{name}")
        for name in ("roll", "test", "val")
    )
    table = parquet(validated.table)
    with engine_for(declaration.data) as connection:
        newest = float(row(connection, f"select max(__time) from {table}")[0])
        begin = window_end(newest, roll, MONDAY if spec.time_is_timestamp else 0.0) - test
        cuts = {"val": begin - val, "test": begin}
        if known:
            cuts = {side: max(cut, known[-1].frozen[CUTS][side]) for side, cut in cuts.items()}
        seen_until = max((e.frozen[SEEN]["newest"] for e in known), default=-math.inf)
        _refuse_gap(connection, table, max(cuts["val"], seen_until), test, spec)
        others = [entry for entry in known if entry.table != sha256]
        notes = _held(newest, seen_until, spec)
        if others:
            before = others[-1].frozen
            now = _counts(connection, table, before[CUTS], before[SEEN]["newest"])
            notes = (*notes, *_changes(before[SEEN], now, spec))
        is_known = bool(known) and known[-1].table == sha256 and known[-1].frozen[CUTS] == cuts
        seen = {} if is_known else _counts(connection, table, cuts, newest)
    return Rolled(cuts, newest, {} if is_known else {CUTS: cuts, SEEN: seen}, notes)


def cuts_today(
    validated: ValidatedTable, declaration: Declaration, ledger: Path, way: dict[str, Any]
) -> dict[str, float]:
    """Return the cuts of a table as the ledger stands, without a decision.

    Args:
        validated: the table.
        declaration: its split has `roll`.
        ledger: the file.
        way: the way of splitting, as `split.way_of` gives it.

    Raises:
        SplitError: as in `roll_cuts`.
    """
    with opened(ledger, digest_of(way)) as book:
        return roll_cuts(validated, declaration, book.entries).cuts


def plan_of(rolled: Rolled, declared: TimeSplit, spec: TableSpec) -> dict[str, Any]:
    """Return the parts of the split's plan that say where the windows are."""
    notes = {"notes": list(rolled.notes)} if rolled.notes else {}
    return {
        "cuts_from": (
            f"windows that end at the newest row, rounded down to {declared.roll} (test"
            f" {declared.test}, val {declared.val}); they move on with the table and never back"
        ),
        "newest": rolled.newest,
        "newest_row": time_text(rolled.newest, spec),
        **notes,
    }


def _refuse_gap(connection: Any, table: str, after: float, longest: float, spec: TableSpec) -> None:
    """Refuse rows, new to the ledger, that a gap longer than the test window parts from the rest.

    One wrong time stamp in the future would move the cuts there, and cuts never move back.
    """
    start = literal(after)
    times = f"select distinct __time as moment from {table} where __time >= coalesce((select"
    times += f" max(__time) from {table} where __time <= {start}), {start})"
    stepped = f"select moment, lag(moment) over (order by moment) as before from ({times})"
    gaps = f"select before, moment from ({stepped}) where moment > {start} and moment - before >"
    found = rows(connection, f"{gaps} {literal(longest)} order by moment limit 1")
    if not found:
        return
    before, moment = found[0]
    count = row(connection, f"select count(*) from {table} where __time >= {literal(moment)}")[0]
    raise SplitError(
        f"split.roll: expected rows up to the newest one, got {count:,} from"
        f" {time_text(moment, spec)} on, {length(moment - before, spec)} after the one before"
        f" ({time_text(before, spec)}), more than split.test: with windows there, all other rows"
        " would train for ever; correct the time stamps, leave the rows out with data.filter, or"
        " declare a longer split.test if there was such a pause"
    )


def _counts(connection: Any, table: str, cuts: dict[str, float], newest: float) -> dict[str, Any]:
    """Count the rows of each window up to a time, with a digest of their ids and times.

    The digest does not depend on the order of the rows.
    """
    val, test, end = (literal(float(moment)) for moment in (cuts["val"], cuts["test"], newest))
    digits = "substr(md5(concat(__id, '|', __time)), 1, 16)"
    found = row(
        connection,
        f"select count(*) filter (__time < {val}), count(*) filter (__time >= {val} and __time <"
        f" {test}), count(*) filter (__time >= {test}), bit_xor(cast('0x' || {digits} as ubigint))"
        f" from {table} where __time <= {end}",
    )
    return {
        "newest": newest,
        **{side: int(number) for side, number in zip(WINDOWS, found[:3], strict=True)},
        "digest": f"{int(found[3] or 0):016x}",
    }


def _held(newest: float, seen_until: float, spec: TableSpec) -> tuple[str, ...]:
    if newest >= seen_until:
        return ()
    return (
        f"the newest row is of {time_text(newest, spec)}, an earlier table's was of"
        f" {time_text(seen_until, spec)}: the cuts do not move back",
    )


def _changes(then: dict[str, Any], now: dict[str, Any], spec: TableSpec) -> tuple[str, ...]:
    """Say what happened to the rows up to the newest time of the table before."""
    until = time_text(then["newest"], spec)
    steps = {side: now[side] - then[side] for side in WINDOWS}
    late = {side: step for side, step in steps.items() if step > 0}
    gone = {side: -step for side, step in steps.items() if step < 0}
    notes = []
    if late:
        where = ", ".join(f"{number:,} where {side} was" for side, number in late.items())
        notes.append(
            f"late rows: {sum(late.values()):,} with times up to {until}, the newest of the table"
            f" before ({where}); they were on no side and go where their times say"
        )
    if gone:
        where = ", ".join(f"{number:,} where {side} was" for side, number in gone.items())
        notes.append(
            f"{counted(sum(gone.values()), 'row')} with times up to {until}"
            f" {'is' if sum(gone.values()) == 1 else 'are'} gone ({where})"
        )
    if not notes and now["digest"] != then["digest"]:
        notes.append(
            f"ids or time stamps of rows up to {until} were changed since the table before; a row"
            " whose time was moved forward may be held out now and was trained on"
        )
    return tuple(notes)
