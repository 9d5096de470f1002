"""Convert `metrics.jsonl` to figures for a tracking server, with names, times and steps."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)


class Figure(NamedTuple):
    """One value of one metric.

    The fields are those of MLflow's `Metric`, `timestamp` in milliseconds.
    """

    key: str
    value: float
    timestamp: int
    step: int


def metric_batches(path: Path, offset: int, size: int) -> Iterator[tuple[list[Figure], int]]:
    """Yield figures of complete lines from a byte offset, at most `size`, with the next offset.

    An incomplete last line is left for a later call.
    """
    batch: list[Figure] = []
    with open(path, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            found = figures(line)
            if len(batch) + len(found) > size:
                yield batch, offset
                batch = []
            batch += found
            offset += len(line)
    yield batch, offset


def figures(line: bytes) -> list[Figure]:
    """Return the figures of one line; none of an event or an unreadable line.

    Values of steps go under `step/`, so that a chart of `train/loss` next to `val/loss` shows
    evaluations only.

    >>> figures(b'{"kind": "step", "step": 4, "epoch": 1, "time": 2.5, "values": {"train/loss": 0.5, "lr": null}}')
    [Figure(key='step/loss', value=0.5, timestamp=2500, step=4)]
    """  # noqa: E501
    try:
        record = json.loads(line)
        is_step = record["kind"] == "step"
        values = {
            f"step/{key.removeprefix('train/')}" if is_step else key: value
            for key, value in record.get("values", {}).items()
        }
        if record["kind"] == "evaluation":
            values["epoch"] = record["epoch"]
        return [
            Figure(key, float(value), int(record["time"] * 1000), int(record["step"]))
            for key, value in values.items()
            if value is not None
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        log.warning("a line of metrics.jsonl cannot be read and is left out: %r", line[:200])
        return []
