"""Rows behind a finding, next to each other, for a person to check before believing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas.audit import ShownRows
from schemas.config import SPLITS, SplitName
from schemas.records import CheckResult, TableSpec
from training.data.engine.engine import ident, literal, rows
from training.data.leakage.sides import Sides
from training.data.table.typed import whole_number_text

GROUPS = 3  # findings of a check that are shown row by row
COLUMNS = 24  # columns of a row that are shown, those that differ first
TEXT = 160  # characters of a value
SAMPLE_ROWS = 4  # of each split, if a whole column is suspected
KEYS = {"id": "__id", "group": "__group"}


def rows_beside(sides: Sides, result: CheckResult) -> tuple[ShownRows, ...]:
    """Return the rows that each of the first findings names; for a suspected column, some rows.

    The rows of a column come with the label.
    """
    if result.verdict == "pass":
        return ()
    pairs = [
        shown
        for record in result.evidence[:GROUPS]
        if (shown := _of_record(sides, result.name, record))
    ]
    features = [
        c for c in result.columns if c in sides.spec.features and c not in sides.spec.tensor
    ]
    return tuple(pairs) or ((_of_columns(sides, features),) if features else ())


def _of_record(sides: Sides, check: str, record: dict[str, Any]) -> ShownRows | None:
    """Return the rows that a record of evidence names.

    It names them by `<side>_id`, by a key in several splits, or by two spellings of a key.
    """
    found: list[tuple[SplitName, str, str]] = [
        (side, "__id", str(record[f"{side}_id"]))
        for side in sides.relations
        if record.get(f"{side}_id") is not None
    ]
    if not found and "other key" in record:
        column = KEYS[check.split("_", maxsplit=1)[0]]
        spellings = {record["side"]: record["key"], record["other side"]: record["other key"]}
        found = [
            (side, column, str(spellings[side])) for side in sides.relations if side in spellings
        ]
    for name, column in KEYS.items():
        if not found and "sides" in record and record.get(name) is not None:
            found = [(side, column, str(record[name])) for side in sides.relations]
    if len(found) < 2:
        return None
    columns = _columns(sides.spec)
    fetched = [
        (side, row)
        for side, key, value in found
        for row in _fetch(sides, side, key, value, columns)
    ]
    if len(fetched) < 2:
        return None
    headers = [row[0] if row[0].startswith(side) else f"{side} {row[0]}" for side, row in fetched]
    return _beside(headers, columns[1:], [row[1:] for _, row in fetched])


def _columns(spec: TableSpec) -> list[str]:
    keys = ["__id", *(["__group"] if spec.group else []), *(["__time"] if spec.time else [])]
    return [
        *keys,
        *spec.label_columns,
        *(n for n in spec.features if n not in spec.tensor and n not in spec.label_columns),
    ]


def _fetch(
    sides: Sides, side: SplitName, key: str, value: str, columns: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return one row of the split that has the key."""
    listed = ", ".join(_shown_sql(c, sides.spec) for c in columns)
    return rows(
        sides.connection,
        f"select {listed} from {sides.relations[side]} where {ident(key)} = {literal(value)} order"
        " by __id limit 1",
    )


def _shown_sql(column: str, spec: TableSpec) -> str:
    """Return SQL for a value as text: whole numbers without a fraction, a time as a date."""
    if column == "__time" and spec.time_is_timestamp:
        return "cast(make_timestamp(cast(__time * 1e6 as bigint)) as varchar)"
    return (
        whole_number_text(ident(column))
        if column in (*spec.numeric, "__time")
        else f"cast({ident(column)} as varchar)"
    )


def _beside(
    headers: list[str], columns: Sequence[str], found: Sequence[tuple[Any, ...]]
) -> ShownRows:
    """Select the columns to show, in their own order.

    Keys and labels come first, then the columns that differ, as far as there is room.
    """
    lines = [
        (_name(c), tuple(_text(row[i]) for row in found), len({row[i] for row in found}) > 1)
        for i, c in enumerate(columns)
    ]
    order = sorted(
        range(len(lines)), key=lambda i: (not lines[i][0].startswith("("), not lines[i][2], i)
    )
    left = order[COLUMNS:]
    title = (
        f"{len(left)} more columns are not shown, {sum(lines[i][2] for i in left)} of them"
        " different"
        if left
        else ""
    )
    return ShownRows(
        title=title, headers=tuple(headers), lines=tuple(lines[i] for i in sorted(order[:COLUMNS]))
    )


def _of_columns(sides: Sides, features: Sequence[str]) -> ShownRows:
    """Return the suspected columns next to the label, in some rows of every split."""
    label = next(iter(sides.spec.label_columns))
    columns = [label, *(c for c in features[:6] if c != label)]
    parts: list[tuple[str, tuple[Any, ...]]] = []
    for side in (s for s in SPLITS if s in sides.relations):
        sample = sides.sample(side, ["__id", *columns], SAMPLE_ROWS).to_pylist()
        parts += [
            (
                r["__id"] if r["__id"].startswith(side) else f"{side} {r['__id']}",
                tuple(None if r[c] is None else _plain(r[c]) for c in columns),
            )
            for r in sample
        ]
    lines = tuple(
        (_name(c), tuple(_text(row[i]) for _, row in parts), i == 0) for i, c in enumerate(columns)
    )
    return ShownRows(
        title=f"{', '.join(columns[1:])} next to the label {label}",
        headers=tuple(name for name, _ in parts),
        lines=lines,
    )


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _name(column: str) -> str:
    return {"__id": "(id)", "__group": "(group)", "__time": "(time)"}.get(column, column)


def _text(value: Any) -> str:
    if value is None:
        return "null"
    text = str(value)
    return text if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text)} characters)"
