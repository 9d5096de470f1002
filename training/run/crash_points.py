"""Named crash points, to test that a run survives any kill: `reach("checkpoint.renamed")`.

A point does nothing unless `BULKHEAD_CRASH` names it: `point[:hit[:rank[:signal]]]`.
`checkpoint.renamed:3:0` kills this process with SIGKILL when rank 0 reaches that point for the
third time (without a rank: any). The kill is the real one: nothing is flushed, no handler runs.
`evaluation.begun:1::STOP` halts every rank there instead, until SIGCONT.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BULKHEAD_CRASH"

POINTS = (
    "start.data_open",
    "start.resumed",
    "start.rehearsed",
    "step.begun",
    "step.backward",
    "step.gated",
    "step.updated",
    "evaluation.begun",
    "evaluation.scored",
    "evaluation.measuring",
    "evaluation.measured",
    "evaluation.best_saved",
    "checkpoint.begun",
    "checkpoint.file_written",
    "checkpoint.shards_agreed",
    "checkpoint.manifest_written",
    "checkpoint.old_moved",
    "checkpoint.renamed",
    "checkpoint.committed",
    "checkpoint.pruned",
    "finish.begun",
    "finish.result_written",
)

_hits: dict[str, int] = {}


def reach(point: str) -> None:
    """Kill this process if the environment names the point.

    Raises:
        KeyError: the point is not in POINTS, so it could never be chosen.
    """
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    if point not in POINTS:
        raise KeyError(f"{point!r} is no crash point; add it to POINTS")
    name, hit, rank, number = (*wanted.split(":"), "", "", "")[:4]
    if name != point or (rank and rank != os.environ.get("RANK", "0")):
        return
    _hits[point] = _hits.get(point, 0) + 1
    if _hits[point] == int(hit or 1):
        os.write(2, f"reached {wanted} in process {os.getpid()}\n".encode())
        os.kill(os.getpid(), signal.Signals[f"SIG{number or 'KILL'}"])
