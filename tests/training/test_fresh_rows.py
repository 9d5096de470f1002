"""Fresh rows: what decided once decides nothing again, and the same question has one answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.data.nights import ROLL, Nights, joined, table
from tests.training.test_rolling_year import keys_of
from training.data.split.split import split
from training.registry.fresh_rows import Fresh, Question, needed_rows, open_window
from training.registry.registry import LoadedModel

WAY = ROLL | {"test": 60}


class Asked:
    """The gate of one night after the other over a table of one row a day."""

    def __init__(self, folder: Path) -> None:
        self.nights = Nights(folder, WAY, register={"fresh_rows": 30})
        self.counted: list[int] = []

    def champion(self, made: Any, **changes: Any) -> LoadedModel:
        facts = {"evidence": {"split": {"plan": made.plan}}, "tested_on": None}
        return LoadedModel(
            "m", "1", "models:/m/1", {}, trained_on=None, model=None, **facts | changes
        )

    def open(self, rows: dict[str, list[Any]], champion: Any, challenger: str = "c") -> Any:
        validated = self.nights.validated(rows)
        folder = self.nights.folder / str(self.nights.number)
        made = split(validated, self.nights.declaration, folder, self.nights.ledger)
        loaded = champion(made) if callable(champion) else champion
        fresh = open_window(
            *(self.nights.ledger, self.nights.declaration),
            *(Question(validated, made, challenger, "run"), loaded),
            *(np.ones(made.test.rows, dtype=bool), self.count),
        )
        ids = pq.read_table(made.test.file.path)["__id"].to_pylist()
        return made, fresh, {name for name, kept in zip(ids, fresh.mask, strict=True) if kept}

    def count(self, keys: np.ndarray) -> int:
        assert (np.sort(keys) == keys).all()
        self.counted.append(len(keys))
        return 3

    @property
    def written(self) -> list[dict[str, Any]]:
        lines = map(json.loads, self.nights.ledger.read_text().splitlines())
        return [line["frozen"]["gated"] for line in lines if "gated" in line["frozen"]]


@pytest.mark.req("R2")
def test_a_window_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    made, first, _ = asked.open(table(range(120)), None)
    assert first.window is not None and first.window.rows == made.test.rows
    champion = asked.champion(made)
    _, waiting, ids = asked.open(table(range(149)), champion)
    assert waiting.window is None and ids == {f"r{day}" for day in range(120, 149)}
    assert waiting.waits.startswith("29 test rows came") and "30 are needed" in waiting.waits
    _, second, ids = asked.open(joined(table(range(150)), table([118.5], "late")), champion)
    assert ids == {f"r{day}" for day in range(120, 150)}  # the late row is not fresh
    assert second.window is not None and (second.window.after, second.looks) == (119.0, 3)
    assert second.window.between == "after 119.0 to 149.0"
    _, third, ids = asked.open(table(range(170)), champion)
    assert third.waits and len(ids) == 20  # a refused or equal challenger used the rows up, too
    assert [line["rows"] for line in asked.written] == [made.test.rows, 30]
    assert asked.counted == [made.test.rows, 30]


@pytest.mark.req("R2")
def test_the_same_question_gets_the_same_rows_and_another_one_none(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    champion = asked.champion(asked.open(table(range(120)), None)[0])
    _, once, _ = asked.open(table(range(150)), champion)
    ledger = asked.nights.ledger.read_bytes()
    _, again, _ = asked.open(table(range(150)), champion)
    assert again.window == once.window and asked.nights.ledger.read_bytes() == ledger
    assert asked.open(table(range(150)), champion, "another")[1].waits.startswith("0 test rows")


@pytest.mark.req("R2")
def test_rows_that_tested_a_champion_without_a_window_are_not_fresh(tmp_path: Path) -> None:
    """It was made with frozen cuts, so that only its keys tell which rows it was tested on."""
    asked = Asked(tmp_path)
    tested = keys_of(f"r{day}" for day in range(80, 100))
    _, fresh, ids = asked.open(
        table(range(120)), lambda made: asked.champion(made, evidence={}, tested_on=tested)
    )
    assert fresh.window is not None and fresh.window.after is None
    assert min(int(name[1:]) for name in ids) < 80 and not ids & {f"r{d}" for d in range(80, 100)}


@given(st.integers(1, 100_000), st.integers(30, 5_000))
def test_the_rows_that_are_needed_come_within_a_test_window(test_rows: int, declared: int) -> None:
    register: Any = SimpleNamespace(register_=SimpleNamespace(fresh_rows=declared))
    needed = needed_rows(register, test_rows)
    assert needed <= test_rows and needed <= max(30, declared)
    assert needed <= max(30, test_rows / 2 + 1)


def test_a_first_version_waits_for_nothing(tmp_path: Path) -> None:
    _, fresh, _ = Asked(tmp_path).open(table(range(95)), None)
    assert isinstance(fresh, Fresh) and not fresh.waits and fresh.window is not None
