"""Ledger of looks: a line for each model that was scored on held-out rows, beside the splits'.

One file of JSON lines for a home, with its seal (schemas/seal.py). It is replaced whole under a
lock, so two runs at once both count, and a kill leaves the file before or after. A line is written
before the rows are scored: a score that someone saw is never missing.

A look counts for rows today if

- it was a look of the same model name or at the same source and label: another name for the same
  table is no fresh start;
- it had the same metric;
- it saw at least `LEAST_SHARE` of today's rows. Test splits grow night by night, so that their
  digests differ while most rows are the same. Of rows that share less, at most a third of the
  optimism (the root of the share) is left.

The number of looks is the number of different models in these lines. A model that is scored again
is no new look, on the same rows or on rows that were added: nothing was chosen in between.

Of each set of rows the ledger keeps the digest and the `SKETCH` smallest hashes of ids, which tell
the share of common rows to a few percent where both sets are of like size (exactly up to that many
rows); of a small set next to a large one fewer hashes can be compared.

Source of the sketch: Bar-Yossef et al. 2002, counting distinct elements by the smallest hashes.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from schemas.errors import IntegrityError
from schemas.seal import read_sealed, seal_path, write_sealed

FILE = "looks.jsonl"  # no name of a model has a dot
SKETCH = 256
LEAST_SHARE = 0.1
ADVICE = (
    "restore the file and its .sha256 from a backup; deleting both begins to count again, and"
    " scores on rows that were seen before then look better than they are"
)


class RowSet(NamedTuple):
    """Held-out rows: digest of their ids, their number, and the smallest hashes, uint64."""

    sha256: str
    rows: int
    sketch: np.ndarray


class Scope(NamedTuple):
    """Name of the model, and a digest of source and label: what a look belongs to."""

    name: str
    source: str


def row_set(keys: np.ndarray) -> RowSet:
    """Return the set of rows of sorted distinct hashes, uint64 [N].

    >>> row_set(np.arange(3, dtype=np.uint64)).rows
    3
    """
    sorted_keys = np.ascontiguousarray(keys, dtype="<u8")
    digest = hashlib.sha256(sorted_keys.tobytes()).hexdigest()
    return RowSet(digest, len(sorted_keys), sorted_keys[:SKETCH])


def share_seen(today: RowSet, before: RowSet) -> float:
    """Return the estimated share of today's rows that are among the rows before.

    >>> now, then = (row_set(np.arange(n, dtype=np.uint64)) for n in (100, 25))
    >>> share_seen(now, then), share_seen(then, now)
    (0.25, 1.0)
    """
    if today.sha256 == before.sha256:
        return 1.0
    # above its largest hash, a sketch that is full says nothing
    limits = [found.sketch[-1] for found in (today, before) if found.rows > len(found.sketch)]
    known = today.sketch if not limits else today.sketch[today.sketch <= min(limits)]
    return float(np.isin(known, before.sketch).mean()) if len(known) else 0.0


def record_look(
    path: Path, scope: Scope, rows: RowSet, metrics: Sequence[str], model: str, by: str
) -> dict[str, int]:
    """Write down that a model is scored on rows; return the number of looks of each metric.

    Args:
        path: the ledger of the home; an absent one is empty.
        scope: what the rows and the model belong to.
        rows: the held-out rows.
        metrics: names of the metrics that are read.
        model: digest of the model; one that was scored on these rows before is not written again.
        by: command or step, for a reader of the file.

    Raises:
        IntegrityError: the ledger or its seal was changed.
    """
    with _locked(path):
        lines = _lines(path)
        known = {(line["rows"], line["metric"], line["model"], *_scope(line)) for line in lines}
        sets = {line["rows"]: found for line in lines if (found := _row_set(line)) is not None}
        new = [m for m in metrics if (rows.sha256, m, model, *scope) not in known]
        for metric in new:
            line = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "by": by}
            line |= {"model": model, "metric": metric, **scope._asdict(), "rows": rows.sha256}
            lines.append(line | ({} if rows.sha256 in sets else _sketch(rows)))
            sets[rows.sha256] = rows
        if new:
            write_sealed(path, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    return {metric: _count(lines, sets, scope, rows, metric) for metric in metrics}


def _count(
    lines: list[dict[str, Any]], sets: dict[str, RowSet], scope: Scope, rows: RowSet, metric: str
) -> int:
    """Count the different models that were scored on these rows."""
    seen = {digest for digest, found in sets.items() if share_seen(rows, found) >= LEAST_SHARE}
    return len(
        {
            line["model"]
            for line in lines
            if line["metric"] == metric
            and line["rows"] in seen
            and (line["name"] == scope.name or line["source"] == scope.source)
        }
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the ledger's lock against other runs until the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists() and not seal_path(path).exists():
        return []
    try:
        return [json.loads(line) for line in read_sealed(path, ADVICE).splitlines()]
    except IntegrityError as error:
        raise IntegrityError(f"the ledger of looks is damaged: {error}") from error


def _scope(line: dict[str, Any]) -> Scope:
    return Scope(line["name"], line["source"])


def _sketch(rows: RowSet) -> dict[str, Any]:
    text = base64.b64encode(rows.sketch.astype("<u8").tobytes()).decode()
    return {"count": rows.rows, "sketch": text}


def _row_set(line: dict[str, Any]) -> RowSet | None:
    """Return the rows that a line describes; None if an earlier one does."""
    if "sketch" not in line:
        return None
    sketch = np.frombuffer(base64.b64decode(line["sketch"]), dtype="<u8")
    return RowSet(line["rows"], line["count"], sketch)
