"""`search.jsonl`: the plan of a search and a line for each trial that has ended; sealed, no times.

The file is written again, whole, after each trial. `search_seconds.json` counts the time that the
trials took, over all starts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.errors import IntegrityError
from schemas.seal import read_sealed, seal_path, write_sealed
from schemas.search_records import SearchPlan, TrialRecord

LOG, SECONDS = "search.jsonl", "search_seconds.json"
REMEDY = "restore it from a backup, or start again with `bulkhead search FILE`"


def write_log(run_dir: Path, plan: SearchPlan, trials: Sequence[TrialRecord]) -> None:
    """Write plan and trials, in the order of their numbers, completely or not at all."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    lines = [record.model_dump_json() for record in (plan, *ordered)]
    write_sealed(run_dir / LOG, "".join(f"{line}\n" for line in lines))


def read_log(run_dir: Path) -> tuple[SearchPlan, list[TrialRecord]] | None:
    """Return plan and trials of a search; None if it has not begun.

    Raises:
        IntegrityError: the file was changed after it was written, or is something else.
    """
    path = run_dir / LOG
    if not (path.exists() or seal_path(path).exists()):
        return None
    first, *others = read_sealed(path, REMEDY).splitlines() or [b""]
    try:
        plan = SearchPlan.model_validate_json(first)
        trials = [TrialRecord.model_validate_json(line) for line in others]
    except ValidationError as error:
        raise IntegrityError(
            f"{path}: expected a plan and trials, but a line cannot be read as one"
            f" ({str(error).splitlines()[0]}); {REMEDY}"
        ) from error
    return plan, trials


def add_seconds(run_dir: Path, seconds: float) -> float:
    """Add to the time that the trials of a search took; return all of it."""
    total = seconds_so_far(run_dir) + seconds
    write_sealed(run_dir / SECONDS, json.dumps({"seconds": round(total, 3)}))
    return total


def seconds_so_far(run_dir: Path) -> float:
    """Return the seconds that the trials of a search took until now."""
    path = run_dir / SECONDS
    return float(json.loads(read_sealed(path, REMEDY))["seconds"]) if path.exists() else 0.0


def evaluations(metrics: Path, metric: str) -> tuple[float | None, ...]:
    """Return the validation metric of each evaluation in `metrics.jsonl`, in order.

    The last line of a step counts, and a line that a kill cut off does not.
    """
    if not metrics.exists():
        return ()
    found: dict[int, float | None] = {}
    for line in metrics.read_bytes().splitlines():
        record = _parsed(line)
        if record.get("kind") == "evaluation":
            found[record["step"]] = record["values"].get(f"val/{metric}")
    return tuple(value for _, value in sorted(found.items()))


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
