"""`metrics.jsonl`: one JSON object per line for steps, evaluations and events; only rank 0 writes.

{"kind": "step", "step": 40, "epoch": 1, "time": 1700000000.0, "values": {"train/loss": 0.41, "lr":
0.001}} {"kind": "evaluation", "step": 200, "epoch": 1, "time": ..., "values": {"val/loss": 0.39,
"best": 1}} {"kind": "event", "step": 200, "epoch": 1, "time": ..., "message": "..."}
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.digest import write_atomic
from training.run.lease import always

log = logging.getLogger("training")

Values = dict[str, float | None]


class Journal:
    """Writer of lines, each flushed; without a path (other ranks) it does nothing.

    Args:
        path: `metrics.jsonl`, or None.
        allowed: called before each change of the file; raises if this process may no longer write.
    """

    def __init__(self, path: Path | None, allowed: Callable[[], None] = always) -> None:
        self.path, self.allowed = path, allowed
        self.position = (0, 1)
        self._end_cut_line()

    def at(self, step: int, epoch: int) -> None:
        """Set the position of the run for the next lines."""
        self.position = (step, epoch)

    def values(self, kind: str, values: Values) -> None:
        """Write a line of numbers: kind `step` or `evaluation`."""
        self._append({"kind": kind, "values": values})

    def event(self, message: str) -> None:
        """Write a message for people; also in the log."""
        if self.path is not None:
            log.warning("%s", message)
        self._append({"kind": "event", "message": message})

    def rewind(self, step: int, evaluated_step: int) -> None:
        """Drop lines of steps that will be repeated, and an incomplete last line; events stay."""
        if self.path is None or not self.path.exists():
            return
        self.allowed()
        limits = {"step": step, "evaluation": evaluated_step}
        lines = [
            line
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            if _is_kept(line, limits)
        ]
        write_atomic(self.path, "".join(f"{line}\n" for line in lines))

    def sync(self) -> None:
        """Make all lines so far durable."""
        if self.path is not None and self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def _end_cut_line(self) -> None:
        """End an incomplete last line of a killed process, to separate it from the next."""
        if self.path is None or not self.path.exists() or self.path.stat().st_size == 0:
            return
        self.allowed()
        with open(self.path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")

    def _append(self, record: dict[str, Any]) -> None:
        if self.path is None:
            return
        self.allowed()
        step, epoch = self.position
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(
                json.dumps(
                    {
                        "kind": record.pop("kind"),
                        "step": step,
                        "epoch": epoch,
                        "time": time.time(),
                        **record,
                    }
                )
                + "\n"
            )


def _is_kept(line: str, limits: dict[str, int]) -> bool:
    try:
        record = json.loads(line)
        return bool(record["step"] <= limits.get(record["kind"], record["step"]))
    except (ValueError, KeyError, TypeError):
        return False
