"""A first look at a table: `bulkhead look FILE`."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from schemas.database_config import ONLY_TABLE, Choice
from schemas.errors import ConfigError, first_few
from schemas.table_look import RoleCandidate, SplitPreview, TableLook
from training.data.engine.engine import connect
from training.data.look.along_rows import look_along
from training.data.look.coded_columns import CodedColumn, code_columns
from training.data.look.role_candidates import KnownTable, find_candidates, positive_code
from training.data.look.row_sample import RowSample, exact_distinct, read_rows
from training.data.look.same_values import find_missing, find_repeats
from training.data.look.small_pictures import look_at
from training.data.look.split_previews import preview_groups, preview_rows, preview_time
from training.data.look.tied_sample import find_tied

CLASSES = 100  # of a label, of which the rarest is counted
EXACT = 16  # columns whose values are counted exactly in a table that is sampled
SEEN = 5  # rows of the sample for each value, from which hardly a value is not in it


def look(
    uri: str, label: str | None = None, most: int | None = None, choice: Choice = ONLY_TABLE
) -> TableLook:
    """Return the facts of a table that a declaration rests on.

    Nothing is decided here: candidates are given with their reasons. All facts but those of the
    order, and figures of the learner in `tied`, are the same in any order of the rows.

    Args:
        uri: file, folder, glob or database.
        label: the column to predict; the likeliest candidate when absent.
        most: rows above which a sample is read closely. Default: 200,000, fewer of many columns.
        choice: table, query or sheet.

    Raises:
        SourceError: the source cannot be found or read, or has no rows.
        ConfigError: there is no such label column.
    """
    started = time.monotonic()
    where = uri if "://" in uri else str(Path(uri).absolute())
    with closing(connect()) as connection:
        sample = read_rows(connection, where, most, choice)
        _require_column(label, tuple(sample.types))
        columns = code_columns(connection, sample)
        distinct = _distinct(connection, sample, columns)
    repeats = find_repeats(columns)
    table = KnownTable(columns, sample.rows, distinct, (*repeats.equal, *repeats.one_to_one))
    candidates = find_candidates(table, label)
    target = label or next((c.column for c in candidates if c.role == "label"), None)
    chosen = table.named(target) if target else None
    code = _target_code(chosen)
    positive = None if chosen is None or code is None else chosen.codes == code
    return TableLook(
        name=_shown_name(where, sample),
        format=sample.source.format,
        num_files=len(sample.source.files),
        rows=sample.rows,
        sampled=sample.sampled,
        columns=tuple(map(look_at, columns)),
        repeats=repeats,
        missing=find_missing(columns),
        order=look_along(columns, _as_numbers(chosen, positive)),
        candidates=candidates,
        label=target,
        target=None if chosen is None or code is None else chosen.texts[code],
        positive=None if positive is None else _scaled(int(positive.sum()), sample),
        splits=tuple(_splits(table, candidates, target, positive)),
        tied=find_tied(columns, chosen, code),
        seconds=round(time.monotonic() - started, 3),
    )


def _shown_name(uri: str, sample: RowSample) -> str:
    """Return the name of the file or database, with the table or sheet that was read."""
    file = Path(uri.partition("?")[0].rstrip("/")).name if "://" in uri else Path(uri).name
    return ", ".join(filter(None, (file, sample.data.table, sample.data.sheet)))


def _require_column(label: str | None, names: Sequence[str]) -> None:
    if label is not None and label not in names:
        close = difflib.get_close_matches(label, names) or list(names)
        raise ConfigError(
            f"label {label!r}: no such column; did you mean one of {first_few(close)}?"
        )


def _distinct(
    connection: duckdb.DuckDBPyConnection, sample: RowSample, columns: Sequence[CodedColumn]
) -> dict[str, int]:
    """Return different values of each column in all rows.

    They are counted exactly for a possible id or group. The sample has the values of others.
    """
    found = {c.name: c.distinct for c in columns}
    if sample.sampled == sample.rows:
        return found
    unsure = [
        c.name
        for c in columns
        if c.family in ("int", "text")
        and c.kind not in ("text", "time")
        and SEEN * c.distinct >= c.present
    ]
    return found | exact_distinct(connection, sample, unsure[:EXACT])


def _target_code(label: CodedColumn | None) -> int | None:
    """Return the code of the counted rows: the positive class, else the rarest; none of numbers."""
    if label is None or label.distinct < 2 or label.family in ("list", "other"):
        return None
    if label.kind == "numeric" and label.distinct > 2:
        return None
    return positive_code(label) if label.distinct <= CLASSES else None


def _as_numbers(
    label: CodedColumn | None, positive: NDArray[np.bool_] | None
) -> NDArray[np.float64] | None:
    if label is None:
        return None
    if positive is None:
        return label.numbers
    return np.where(label.codes >= 0, positive.astype(np.float64), np.nan)


def _scaled(count: int, sample: RowSample) -> int:
    return round(count * sample.rows / sample.sampled)


def _splits(
    table: KnownTable,
    candidates: Sequence[RoleCandidate],
    label: str | None,
    positive: NDArray[np.bool_] | None,
) -> list[SplitPreview]:
    found = [preview_rows(table.rows, len(table.columns[0].codes), positive)]
    for candidate in candidates:
        if candidate.column == label or candidate.role not in ("group", "time"):
            continue
        column = table.named(candidate.column)
        if candidate.role == "group":
            groups = table.distinct[column.name]
            found.append(preview_groups(column, table.rows, groups, positive))
        elif preview := preview_time(column, table.rows, positive):
            found.append(preview)
    return found
