"""TensorBoard holds the figures of `metrics.jsonl`, to the bit; its absence is told before anything
runs.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.config import TrackingConfig
from schemas.digest import write_atomic
from schemas.errors import ConfigError
from training.tracking.metric_lines import Figure, metric_batches
from training.tracking.tensorboard import EVENTS, Board, require_installed


def line(step: int, kind: str = "step", **values: Any) -> str:
    return (
        json.dumps(
            {"kind": kind, "step": step, "epoch": 1, "time": 1.7e9 + step / 3, "values": values}
        )
        + "\n"
    )


def events(folder: Path) -> list[Figure]:
    """What TensorBoard's own reader finds, ordered as the lines are."""
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    reader = EventAccumulator(str(folder), size_guidance={TENSORS: 0})
    reader.Reload()
    return [
        Figure(
            tag, float(make_ndarray(event.tensor_proto)), round(event.wall_time * 1000), event.step
        )
        for tag in reader.Tags()["tensors"]
        for event in reader.Tensors(tag)
    ]


@pytest.mark.req("T16")
def test_the_events_hold_exactly_the_numbers_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    metrics = tmp_path / "metrics.jsonl"
    board = Board(metrics, tmp_path / "events")
    board.forward()
    assert not (tmp_path / "events").exists()
    metrics.write_text(
        line(1, **{"train/loss": 0.1, "lr": 1e-300})
        + line(2, "evaluation", **{"val/auroc": 2 / 3, "val/loss": None})
        + '{"kind": "st'
    )
    board.forward()
    # resumed from step 1: the file is another one, and shorter
    write_atomic(metrics, line(1, **{"train/loss": 0.1}))
    board.forward()
    with metrics.open("a") as file:
        file.write(
            line(2, **{"train/loss": 1 / 3}) + line(3, "evaluation", **{"val/auroc": 5e-324})
        )
    board.close()
    ((expected, _),) = metric_batches(metrics, 0, 1000)
    assert sorted(events(tmp_path / "events")) == sorted(expected) and len(expected) == 4
    again = Board(metrics, tmp_path / "events")
    again.close()
    assert (
        sorted(events(tmp_path / "events")) == sorted(expected)
        and len(list((tmp_path / "events").glob(EVENTS))) == 1
    )


@pytest.mark.req("T16")
def test_its_absence_is_told_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require_installed(TrackingConfig())
    with pytest.raises(
        ConfigError,
        match=(
            r"needs the package tensorboard, which is not installed: pip install"
            r" 'bulkhead\[tensorboard\]'"
        ),
    ):
        require_installed(TrackingConfig(tensorboard=True))
