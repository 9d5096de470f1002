"""A simulated year of a growing table: split, fresh rows, gate and ladder as a run uses them.

Models are straight lines fitted to the last quarter of train. The level of the label drifts, some
rows come late, one week brings none, and one night a time stamp is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.errors import SplitError
from schemas.records import GateReport, Interval
from tests.training.data.nights import Nights
from tests.training.test_gate import evaluation
from training.data.split.split import split
from training.registry.fresh_rows import Fresh, Question, open_window
from training.registry.gate import compare, judge
from training.registry.ladder import Comparison
from training.registry.registry import LoadedModel
from training.run.look_ledger import Scope, record_look, row_set

BEFORE, A_DAY, QUARTER = 130, 12, 90  # days before the first night, rows of a day, days
SILENT, WRONG_NIGHT = range(300, 307), 354
WAY = {"kind": "time", "roll": 7, "test": 30, "val": 14, "embargo": 1}


def rows_of(day: int, drift: float) -> dict[str, list[Any]]:
    """Rows of a day; one of them is seen ten days later only."""
    if day in SILENT:
        return {"__id": [], "__time": [], "x": [], "y": [], "seen": []}
    draw = np.random.default_rng(day)
    x, noise = draw.normal(size=(2, A_DAY))
    return {
        "__id": [f"{day}-{i}" for i in range(A_DAY)],
        "__time": list(day + np.arange(A_DAY) / A_DAY),
        "x": list(x),
        "y": list(x + drift * day / 100 + noise),
        "seen": [day + 10] + [day] * (A_DAY - 1),
    }


@dataclass
class Version:
    """A registered model: its line, the rows that it saw, and what it claims."""

    number: str
    line: tuple[float, float]
    saw: set[str]
    loaded: LoadedModel
    gate: GateReport


@dataclass
class Year:
    """Nights of a year, with everything that a version ever saw or was decided on."""

    nights: Nights
    drift: float
    champion: Version | None = None
    versions: list[Version] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    decided_on: set[str] = field(default_factory=set)
    refused: int = 0

    def table(self, today: int) -> dict[str, list[Any]]:
        """Return the rows that are there on a day."""
        days = [rows_of(day, self.drift) for day in range(today)]
        merged = {name: [v for one in days for v in one[name]] for name in days[0]}
        kept = [i for i, seen in enumerate(merged.pop("seen")) if seen < today]
        table = {name: [values[i] for i in kept] for name, values in merged.items()}
        if today == WRONG_NIGHT:
            table["__time"][7] = 99_999.0
        return table

    def night(self, today: int) -> None:
        """Retrain, judge, and check every promise on the ids themselves."""
        rows, number = self.table(today), str(len(self.versions) + 1)
        validated = self.nights.validated(rows)
        try:
            folder = self.nights.folder / str(self.nights.number)
            made = split(validated, self.nights.declaration, folder, self.nights.ledger)
        except SplitError:
            self.refused += 1
            return
        sides = {s: pq.read_table(made.side(s).file.path).to_pydict() for s in ("train", "val")}
        test = pq.read_table(made.test.file.path).to_pydict()
        line, saw = fitted(sides["train"]), {*sides["train"]["__id"], *sides["val"]["__id"]}
        self.trained.append(made.train.rows)
        champion = self.champion.loaded if self.champion else None
        unseen = np.ones(made.test.rows, dtype=bool)
        if champion is not None and champion.trained_on is not None:
            unseen = ~np.isin(keys_of(test["__id"]), champion.trained_on)
        asked = Question(validated, made, f"program {number}", f"run {number}")
        fresh = open_window(
            *(self.nights.ledger, self.nights.declaration, asked, champion, unseen),
            lambda keys: self.look(keys, number),
        )
        self.check_rows(fresh, test, saw)
        gate = self.judge(line, test, fresh)
        self.verdicts.append(gate.verdict)
        loaded = LoadedModel(
            name="m",
            version=number,
            uri=f"models:/m/{number}",
            spec={},
            evidence={"split": {"plan": made.plan}},
            trained_on=keys_of(saw),
            model=None,
            tested_on=keys_of(test["__id"]),
        )
        if gate.passed:
            self.versions.append(Version(number, line, saw, loaded, gate))
            if gate.replaces:
                self.champion = self.versions[-1]

    def look(self, keys: np.ndarray, number: str) -> int:
        """Count champion and challenger in a real ledger of looks."""
        known = self.champion.number if self.champion else number
        path, scope = self.nights.folder / "looks.jsonl", Scope("m", "s")
        for model in (known, number):
            found = record_look(path, scope, row_set(keys), ["rmse"], model, "gate")
        return found["rmse"]

    def check_rows(self, fresh: Fresh, test: dict[str, list[Any]], saw: set[str]) -> None:
        """No row of a comparison was trained, tuned or decided on before, by either model."""
        if fresh.window is None:
            return
        ids = {name for name, chosen in zip(test["__id"], fresh.mask, strict=True) if chosen}
        assert len(ids) == fresh.window.rows and not ids & saw
        if self.champion is not None:
            assert not ids & self.champion.saw and not ids & self.decided_on
        self.decided_on |= ids

    def judge(self, line: tuple[float, float], test: dict[str, list[Any]], fresh: Fresh) -> Any:
        """Compare as training/registry/compare_champion.py does."""
        declared, target = self.nights.declaration, np.array(test["y"])
        comparison = None
        if self.champion is not None and fresh.waits:
            comparison = Comparison(version=self.champion.number, waits=fresh.waits)
        elif self.champion is not None:
            ours, theirs = (predicted(one, test) for one in (line, self.champion.line))
            comparison = compare(
                *(declared, self.champion.number, ours, theirs, target, fresh.mask)
            ).model_copy(update={"window": fresh.window, "looks": fresh.looks})
        error = float(np.sqrt(np.mean((predicted(line, test) - target) ** 2)))
        scored = evaluation().model_copy(update={"metrics": {"rmse": Interval(value=error)}})
        return judge(declared, scored, (), comparison, window=fresh.window)


def keys_of(ids: Iterable[str]) -> np.ndarray:
    """Return the hashes that the registry keeps of ids."""
    digits = (hashlib.md5(f"id:{name}".encode()).hexdigest()[:16] for name in ids)
    return np.array([int(found, 16) for found in digits], dtype=np.uint64)


def fitted(train: dict[str, list[Any]]) -> tuple[float, float]:
    """Return the line of the last quarter of train."""
    times = np.array(train["__time"])
    recent = times > times.max() - QUARTER
    slope, level = np.polyfit(np.array(train["x"])[recent], np.array(train["y"])[recent], 1)
    return float(slope), float(level)


def predicted(line: tuple[float, float], rows: dict[str, list[Any]]) -> np.ndarray:
    """Return the line's values."""
    return line[0] * np.array(rows["x"]) + line[1]


def year(folder: Path, days: range, drift: float) -> Year:
    """Run the nights."""
    nights = Nights(
        folder,
        WAY,
        task={"kind": "regression"},
        evaluate={"bootstrap": 60},
        register={"metric": "rmse", "fresh_rows": 80},
    )
    made = Year(nights, drift)
    for today in days:
        made.night(today)
    return made


def check(made: Year) -> None:
    """What holds of every year."""
    assert made.trained == sorted(made.trained) and made.trained[-1] > 2 * made.trained[0]
    claims = [v.gate.claim for v in made.versions if v.gate.claim is not None]
    ends = [claim.window.until for claim in claims if claim.window]
    assert len(ends) == len(claims) and ends == sorted(set(ends))
    assert all("neither was trained, tuned or gated on" in v for v in made.verdicts[1:])


@pytest.mark.req("R2")
def test_a_year_in_which_the_champion_follows_the_drift(tmp_path: Path) -> None:
    made = year(tmp_path, range(BEFORE, BEFORE + 365, 28), drift=1.0)
    check(made)
    assert made.champion is not None and int(made.champion.number) > 8
    level = made.champion.line[1]
    assert 3.5 < level < 5.0 and abs(made.versions[0].line[1]) < 1.0  # of 4.9 at the end
    assert made.refused == 1  # the night with the wrong time stamp


@pytest.mark.req("R2")
def test_a_year_of_equal_models_waits_and_keeps(tmp_path: Path) -> None:
    made = year(tmp_path, range(BEFORE, BEFORE + 18, 4), drift=0.0)
    starts = [verdict.partition(":")[0] for verdict in made.verdicts]
    assert starts[0] == "passed" and {"waits", "kept"} == {*starts[1:]}
    assert made.champion is made.versions[0]
    waiting = next(v for v in made.verdicts if v.startswith("waits"))
    assert waiting.startswith("waits: 44 test rows came that neither was trained, tuned or gated")
    assert "80 are needed to compare with version 1, which stays champion" in waiting


@pytest.mark.long
@pytest.mark.req("R2")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_each_night_of_a_year(tmp_path: Path, drift: float) -> None:
    made = year(tmp_path, range(BEFORE, BEFORE + 365), drift)
    assert made.refused == 1
    check(made)
    assert made.champion is not None
    promoted = sum(v.gate.replaces for v in made.versions)
    assert promoted > 5 if drift else promoted <= 3
