"""Observation of the training program: its progress while the file is rewritten, and whether a
result is its own.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import LaunchError, LeaseError, TrainingError
from schemas.records import FileRef, TrainReport
from tasks.programs import outcome, written
from training.run.metrics_file import Journal
from training.run.metrics_tail import Tail


def line(step: int, age: float = 0.0) -> str:
    return (
        json.dumps(
            {
                "kind": "evaluation",
                "step": step,
                "epoch": 1,
                "time": time.time() - age,
                "values": {},
            }
        )
        + "\n"
    )


def steps(tail: Tail) -> list[int]:
    return [record["step"] for record in tail.records()]


@pytest.mark.req("P7")
def test_the_tail_follows_whole_lines_and_a_file_that_a_resumed_run_rewrites(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, age=60) + line(2, age=60) + line(3, age=60) + '{"kind": "eval')
    tail = Tail(path)
    journal = Journal(path)
    assert steps(tail) == [], "the line that was cut off is nothing"
    journal.rewind(1, 1)
    assert steps(tail) == [], "what was there before is not shown again"
    with path.open("a") as file:
        file.write(line(2))
    assert steps(tail) == [2]
    with path.open("a") as file:
        file.write(line(3) + line(4)[:20])
    assert steps(tail) == [3] and steps(tail) == []
    with path.open("a") as file:
        file.write(line(4)[20:])
    assert steps(tail) == [4]


def test_the_tail_waits_for_a_file(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "metrics.jsonl")
    assert steps(tail) == []
    (tmp_path / "metrics.jsonl").write_text(line(1))
    assert steps(tail) == [1]


def report(status: str) -> dict[str, Any]:
    return TrainReport.model_validate(
        {
            "run_id": "r",
            "status": status,
            "epochs": 1,
            "steps": 7,
            "best_step": 7,
            "best_metric": 0.5,
            "metric": "auroc",
            "seconds": 1.0,
            "world_size": 1,
            "num_parameters": 1,
            "best_checkpoint": FileRef(path="model.pt", sha256="0", num_bytes=1),
            "model_sha256": "0",
            "rows_per_second": 1.0,
            "promise": "exact",
        }
    ).model_dump(mode="json")


@pytest.mark.req("P7")
def test_a_launch_that_fails_is_not_taken_for_the_interrupted_one_before_it(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    before = written(tmp_path)
    result.write_text(json.dumps(report("interrupted")))
    with pytest.raises(TrainingError, match="interrupted from outside after step 7"):
        outcome(tmp_path, 1, before)
    before = written(tmp_path)
    (tmp_path / "error.json").write_text(
        json.dumps({"message": {"message": "LeaseError: process 3 on node7 is still writing"}})
    )
    with pytest.raises(LeaseError, match="process 3 on node7"):
        outcome(tmp_path, 1, before)
    (tmp_path / "error.json").unlink()
    with pytest.raises(LaunchError, match="exit code -9 and left no cause"):
        outcome(tmp_path, -9, before)
    result.write_text(json.dumps(report("finished")))
    os.utime(result, ns=(before + 1, before + 1))
    assert outcome(tmp_path, 1, before).status == "finished", "stopped after it had ended"
