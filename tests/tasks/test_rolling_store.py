"""A stored split of an old table does not bring cuts back that have moved on."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.states import State

from schemas.home import home
from schemas.records import SplitTables
from tasks.looks import ledger_path
from tasks.split import split_rows
from tests.training.data.nights import Nights, table


@pytest.mark.req("P5")
def test_the_stored_split_follows_the_ledger(
    tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = Nights(tmp_path)
    assert ledger_path(nights.declaration).is_relative_to(home())

    def made(days: int) -> tuple[SplitTables, bool]:
        found = split_rows.task.fn(nights.validated(table(range(days))), nights.declaration)
        return (found.data, True) if isinstance(found, State) else (found, False)

    first, reused = made(80)
    assert not reused and made(80) == (first, True)
    later, reused = made(90)
    assert not reused and later.train.rows > first.train.rows
    capsys.readouterr()
    back, reused = made(80)
    assert not reused and back.plan["cuts"] == later.plan["cuts"]
    assert "an earlier table's was of 89.0: the cuts do not move back" in capsys.readouterr().err
    assert made(90) == (later, True)


def test_frozen_cuts_say_so(
    tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = Nights(tmp_path, {"kind": "time"})
    split_rows.task.fn(nights.validated(table(range(80))), nights.declaration)
    assert "later rows never train; split.roll moves them on" in capsys.readouterr().err
