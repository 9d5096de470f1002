"""metrics.jsonl: lines of steps that will be made again are dropped, events stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.run.metrics_file import Journal


def lines(path: Path) -> list[tuple[str, int]]:
    return [
        (record["kind"], record["step"])
        for record in map(json.loads, path.read_text().splitlines())
    ]


@pytest.mark.req("C1")
def test_rewind_drops_what_comes_again_and_a_line_that_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    for step in (10, 20, 30):
        journal.at(step, 1)
        journal.values("step", {"lr": 0.1})
        journal.values("evaluation", {"val/loss": None})
    journal.event("something happened")
    with open(journal.path, "a") as file:  # type: ignore[arg-type]
        file.write('{"kind": "step", "st')
    journal.rewind(20, 10)
    assert lines(tmp_path / "metrics.jsonl") == [
        ("step", 10),
        ("evaluation", 10),
        ("step", 20),
        ("event", 30),
    ]


@pytest.mark.req("C1")
def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    journal = Journal(None)
    journal.values("step", {"lr": 0.1})
    journal.event("quiet")
    journal.rewind(0, 0)
    journal.sync()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("T5")
def test_a_line_has_position_time_and_values(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.at(40, 2)
    journal.values("step", {"train/loss": 0.5, "lr": 1e-3})
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert record.pop("time") > 1.6e9
    assert record == {
        "kind": "step",
        "step": 40,
        "epoch": 2,
        "values": {"train/loss": 0.5, "lr": 1e-3},
    }
