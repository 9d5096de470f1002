"""Read the lines that a running program appends to `metrics.jsonl`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Tail:
    """Reader of records that are appended to `metrics.jsonl` from now on.

    If a resumed run rewrites the file, reading starts again.

    Args:
        path: the file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.since = path, time.time()
        self.number, self.position = self._stat()

    def records(self) -> list[dict[str, Any]]:
        """Return the records of complete lines since the last call."""
        number, size = self._stat()
        if number != self.number or size < self.position:
            self.number, self.position = number, 0
        if not size:
            return []
        with self.path.open("rb") as file:
            file.seek(self.position)
            block = file.read()
        whole = block[: block.rfind(b"\n") + 1]
        self.position += len(whole)
        return [
            record
            for record in map(_parsed, whole.splitlines())
            if record.get("time", 0) >= self.since
        ]

    def _stat(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size


def _parsed(line: bytes) -> dict[str, Any]:
    """Return the record of a line; none for a line that a kill cut off."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
