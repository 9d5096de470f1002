"""Fresh rows: test rows that neither champion nor challenger was trained, tuned or gated on.

Where the windows of a split move on (`split.roll`), each comparison uses rows that came since the
last one. It is written into the ledger of the split before the rows are scored: a line of the way
of splitting with `gated`, the window of times, the digest of its rows, and who was compared. What
decided once decides nothing again, so no claim rests on rows that chose the model, and the count of
looks begins again with each window.

A row is fresh if

- its time is after the last window, and after the newest row of the champion's own run;
- the champion did not learn from it or, where groups stay whole, from its group, and it was not
  among its test rows;
- it is a test row of the challenger, which therefore has not learned from it.

A row that comes late, with a time before the last window's end, is not fresh. The same question
(table, challenger, champion), as after a crash, gets the same window again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from schemas.config import Declaration
from schemas.digest import verify
from schemas.look_records import Window
from schemas.records import SplitTables, TableRef, ValidatedTable, digest_of
from training.data.split.ledger import Entry, opened
from training.data.split.split import way_of
from training.data.split.time_cuts import time_text
from training.data.split.unseen import row_keys
from training.registry.gate import MIN_ROWS
from training.registry.registry import LoadedModel
from training.run.look_ledger import row_set

GATED = "gated"  # of an entry's frozen decisions
ENOUGH = 100  # fresh rows, unless register.fresh_rows says otherwise


class Fresh(NamedTuple):
    """Rows of a comparison: a mask [N] of the test rows, and the window that they fill.

    `waits`: why the gate has to wait; the window is then None. `looks`: models that were scored on
    these rows.
    """

    mask: np.ndarray
    window: Window | None
    waits: str = ""
    looks: int = 1


class Question(NamedTuple):
    """What is compared: the table and its splits, the challenger's program, and its run."""

    validated: ValidatedTable
    split: SplitTables
    challenger: str
    run_id: str


def needed_rows(declaration: Declaration, test_rows: int) -> int:
    """Return how many fresh rows a comparison needs: never more than come within a test window.

    A table of few rows would wait for ever otherwise.
    """
    declared = declaration.register_.fresh_rows or ENOUGH
    return min(test_rows, max(MIN_ROWS, min(declared, math.ceil(test_rows / 2))))


def open_window(
    ledger: Path,
    declaration: Declaration,
    question: Question,
    champion: LoadedModel | None,
    unseen: np.ndarray,
    count: Callable[[np.ndarray], int],
) -> Fresh:
    """Choose the fresh rows and write them down, or say why the gate waits and write nothing.

    Args:
        ledger: of the splits of this model.
        declaration: its split has `roll`.
        question: the table and the challenger.
        champion: None for a first version: its claim rests on all test rows.
        unseen: mask [N] of test rows that the champion has not learned from.
        count: writes down that hashes of ids, uint64, are looked at; returns the looks so far.

    Raises:
        IntegrityError: the ledger or a table was changed.
    """
    way, test = way_of(declaration, question.validated.spec), question.split.test
    version, sha256 = champion.version if champion else None, question.validated.table.file.sha256
    until = float(question.split.plan["newest"])
    with opened(ledger, digest_of(way)) as book:
        asked = {"challenger": question.challenger, "champion": version}
        same = _same(book.entries, sha256, asked)
        after = same["after"] if same else used_until(book.entries, champion)
        every = row_keys(test)
        mask = unseen & fresh_rows(test, every, after, champion)
        needed = needed_rows(declaration, test.rows)
        if champion is not None and int(mask.sum()) < needed:
            return Fresh(mask, None, _too_few(int(mask.sum()), needed, version))
        keys = np.sort(every[mask])
        window = Window(
            after=after,
            until=until,
            between=_between(after, until, question.validated),
            rows=len(keys),
            rows_sha256=row_set(keys).sha256,
        )
        if same is None:
            line = window.model_dump(exclude={"between"}) | asked | {"run": question.run_id}
            book.note(way, sha256, {GATED: line})
    return Fresh(mask, window, looks=count(keys))


def used_until(entries: list[Entry], champion: LoadedModel | None) -> float | None:
    """Return the time up to which rows are used up; None for a first version."""
    if champion is None:
        return None
    plan = ((champion.evidence or {}).get("split") or {}).get("plan") or {}
    ends = [entry.frozen[GATED]["until"] for entry in entries if GATED in entry.frozen]
    ends += [plan["newest"]] if "newest" in plan else []
    return max(ends) if ends else None


def fresh_rows(
    test: TableRef, keys: np.ndarray, after: float | None, champion: LoadedModel | None
) -> np.ndarray:
    """Return a mask [N] of the rows after a time that were not among the champion's test rows.

    Args:
        test: the test rows.
        keys: hashes of their ids, uint64 [N].
        after: in units of `__time`; None: all.
        champion: None: there is none.
    """
    mask = np.ones(test.rows, dtype=bool)
    if after is not None:
        times = pq.read_table(verify(test.file), columns=["__time"]).column(0)
        mask &= times.to_numpy(zero_copy_only=False) > after
    if champion is not None and champion.tested_on is not None:
        mask &= ~np.isin(keys, champion.tested_on)
    return mask


def _same(entries: list[Entry], sha256: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """Return the window of the same question, if it was asked before."""
    for entry in reversed(entries):
        found = entry.frozen.get(GATED)
        if found and entry.table == sha256 and {k: found[k] for k in asked} == asked:
            return dict(found)
    return None


def _between(after: float | None, until: float, validated: ValidatedTable) -> str:
    end = time_text(until, validated.spec)
    return f"up to {end}" if after is None else f"after {time_text(after, validated.spec)} to {end}"


def _too_few(rows: int, needed: int, version: str | None) -> str:
    return (
        f"{rows} test rows came that neither was trained, tuned or gated on, {needed} are needed to"
        f" compare with version {version}, which stays champion until they are there"
    )
