"""The champion on rows that came since: each fault that was planted in them is named, and honest
rows pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from schemas.config import Threshold
from schemas.digest import file_ref
from schemas.errors import RegistryError
from schemas.records import SplitTables, TableRef, TestTable, TrainTable, ValTable
from schemas.registry_records import Reevaluation
from tests.training.cases import Case, champion_of, make_case
from training.data.leakage.drift import find_drift
from training.data.split.unseen import evaluated_keys, trained_keys
from training.objectives.bootstrap import intervals
from training.registry.compare_champion import Rows, facts_of, predictions_of
from training.registry.reevaluate import divide, reevaluate
from training.report.reevaluate_report import outcome, write_reevaluation
from training.serving.export import export_model

OPTIONS: dict[str, Any] = {
    "model": {"kind": "linear"},
    "ignored": ("scan",),
    "evaluate": {"bootstrap": 100},
}
SINCE = (7, 8, 9, 10)
Plant = Callable[[pa.Table], pa.Table]


class Known:
    """A model that was trained, tested and registered, and rows that came since."""

    def __init__(self, folder: Path) -> None:
        self.case: Case = make_case(folder / "old", seed=0, steps=300, **OPTIONS)
        split = self.case.split
        exported = export_model(self.case.run, self.case.weights, folder / "model", split.val)
        model = champion_of(self.case, exported, trained_keys([split.train, split.val]))
        self.model = type(model)(**{**model.__dict__, "tested_on": evaluated_keys(split.test)})
        rows = Rows(
            self.case.run.spec, self.case.run.statistics, split.test, self.case.run.arrays.test
        )
        facts = facts_of(self.case.declaration, rows)
        self.registered = intervals(
            self.case.declaration,
            predictions_of(self.model, self.case.declaration, rows),
            facts.target,
            facts.group,
            resamples=100,
        )
        self.since = [make_case(folder / str(seed), seed=seed, **OPTIONS).split for seed in SINCE]
        self.folder = folder
        self.looks: list[int] = []  # rows that were looked at

    def today(self, folder: Path, plant: Plant | None = None, new: bool = True) -> SplitTables:
        """The sides as they were, and with them the rows that came since, changed by `plant`."""
        made = {}
        for side in ("train", "val", "test"):
            parts = [pq.read_table(self.case.split.side(side).file.path)]
            for split in self.since if new else []:
                table = pq.read_table(split.side(side).file.path)
                parts.append((plant(table) if plant else table).cast(parts[0].schema))
            path = folder / f"{side}.parquet"
            pq.write_table(pa.concat_tables(parts), path)
            made[side] = TableRef(file=file_ref(path), rows=sum(map(len, parts)))
        kinds = {"train": TrainTable, "val": ValTable, "test": TestTable}
        return SplitTables(
            strategy="group", **{side: kinds[side](**made[side].model_dump()) for side in kinds}
        )

    def again(
        self, folder: Path, plant: Plant | None = None, new: bool = True, **register: Any
    ) -> Reevaluation:
        declaration = self.case.declaration.model_copy(
            update={"register_": self.case.declaration.register_.model_copy(update=register)}
        )
        spec, statistics = self.case.run.spec, self.case.run.statistics
        return reevaluate(
            declaration,
            self.model,
            self.registered,
            statistics,
            spec,
            self.today(folder, plant, new),
            folder / "scratch",
            lambda table: self.looks.append(table.rows),
        )


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 50 test rows are of 25 patients, of whom each counts once."""
    monkeypatch.setattr("training.data.leakage.drift.MIN_ROWS", 20)
    monkeypatch.setattr("training.registry.reevaluate.MIN_ROWS", 20)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    return Known(tmp_path_factory.mktemp("known"))


def replaced(table: pa.Table, column: str, values: Any) -> pa.Table:
    return table.set_column(
        table.column_names.index(column),
        table.schema.field(column),
        pa.chunked_array([pa.array(values, table.schema.field(column).type)]),
    )


def flipped(table: pa.Table) -> pa.Table:
    return replaced(table, "y", ["no" if y == "yes" else "yes" for y in table["y"].to_pylist()])


def richer(table: pa.Table) -> pa.Table:
    return replaced(table, "income", pc.multiply(table["income"], 4.0).to_pylist())


def older(table: pa.Table) -> pa.Table:
    return replaced(table, "age", [None if a is None else a + 25 for a in table["age"].to_pylist()])


def rarer(table: pa.Table) -> pa.Table:
    """Two of three positive labels were not: the order of the predictions is as good as ever, their
    level is not.
    """
    rng = np.random.default_rng(0)
    return replaced(
        table,
        "y",
        ["no" if y == "yes" and rng.random() < 0.66 else y for y in table["y"].to_pylist()],
    )


@pytest.mark.req("R3")
def test_honest_rows_pass_and_are_counted(known: Known, tmp_path: Path) -> None:
    found = known.again(tmp_path)
    assert known.looks == [found.rows]
    assert (found.rows, found.learned, found.tested) == (210 * len(SINCE), 160, 50)
    assert {r.name: r.verdict for r in found.checks.results} == dict.fromkeys(
        ["new rows", "performance", "drift", "prediction drift", "calibration"], "pass"
    )
    assert (
        outcome(found) == "pass"
        and found.verdict
        == "models:/clinic/1 does as well on 840 new rows as when it was registered"
    )
    assert {d.column for d in found.features} == set(known.case.run.spec.features) and len(
        found.predictions
    ) == 2
    direct = np.concatenate(
        [
            pq.read_table(split.side(s).file.path)["__id"].to_numpy()
            for s in ("train", "val", "test")
            for split in known.since
        ]
    )
    chosen = pq.read_table(tmp_path / "scratch" / "new.parquet")["__id"].to_pylist()
    assert sorted(chosen) == sorted(direct.tolist())


@pytest.mark.req("R3")
@pytest.mark.parametrize(
    ("plant", "register", "name", "verdict", "message"),
    [
        (
            flipped,
            {},
            "performance",
            "fail",
            r"auroc is worse: 0\.\d+ \[.*\] on new rows, 0\.\d+ \[.*\] at registration",
        ),
        (
            richer,
            {},
            "drift",
            "warn",
            r"1 of \d+ feature columns differ from earlier rows: income \(PSI \d\.\d+, large\)",
        ),
        (
            older,
            {},
            "prediction drift",
            "warn",
            r"2 of 2 prediction columns differ from earlier rows: prediction 0 \(PSI",
        ),
        (
            rarer,
            {},
            "calibration",
            "warn",
            r"label minus prediction differs from the test rows: \+0\.",
        ),
        (
            None,
            {"thresholds": {"auroc": {"min": 0.999}}},
            "threshold: auroc",
            "fail",
            r"test auroc is 0\.\d+, expected at least 0\.999",
        ),
    ],
)
def test_what_was_planted_is_named(
    known: Known,
    tmp_path: Path,
    plant: Plant | None,
    register: dict[str, Any],
    name: str,
    verdict: str,
    message: str,
) -> None:
    register = {
        key: {m: Threshold(**b) for m, b in value.items()} for key, value in register.items()
    }
    found = known.again(tmp_path, plant, **register)
    result = {r.name: r for r in found.checks.results}[name]
    assert result.verdict == verdict and re.search(message, result.summary), result.summary
    page = write_reevaluation(
        found, known.case.declaration, "run", "y", tmp_path / "report.html"
    ).file.read_text()
    assert result.name in page and page.lstrip().lower().startswith("<!doctype html>")
    assert outcome(found) == (
        "fail" if any(r.verdict == "fail" for r in found.checks.results) else "warn"
    )


@pytest.mark.req("R3")
def test_few_groups_show_a_large_drift_and_are_unknown_without_one(
    known: Known, tmp_path: Path
) -> None:
    """Hundreds of rows of ten people: their number counts, not that of their rows."""

    def people(table: pa.Table) -> pa.Table:
        return replaced(table, "__group", [f"since-{i % 10}" for i in range(len(table))])

    (tmp_path / "honest").mkdir()
    found = known.again(tmp_path / "honest", people)
    verdicts = {r.name: r.verdict for r in found.checks.results}
    assert found.rows > 500 and outcome(found) == "unknown"
    assert verdicts == {"new rows": "pass"} | dict.fromkeys(
        ["performance", "drift", "prediction drift", "calibration"], "unknown"
    )
    assert (
        "unknown: 10 independent new rows (groups count once), 20 are needed"
        in found.checks.results[1].summary
    )
    moved = known.again(
        tmp_path,
        lambda table: people(
            replaced(
                table,
                "income",
                [None if v is None else v * 50 + 1e6 for v in table["income"].to_pylist()],
            )
        ),
    )
    drift = {r.name: r for r in moved.checks.results}["drift"]
    assert drift.verdict == "warn" and "income" in drift.columns
    page = write_reevaluation(
        found, known.case.declaration, "run", "y", tmp_path / "report.html"
    ).file.read_text()
    assert "unknown" in page


@pytest.mark.req("R3")
def test_few_rows_that_did_not_drift_raise_no_alarm() -> None:
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        before, now = (
            pd.DataFrame({"n": rng.normal(size=n), "t": rng.choice(list("abcdefgh"), n)})
            for n in (200, 12)
        )
        alarms += any(d.adjusted < 0.05 for d in find_drift(before, now, ["n", "t"]))
    assert alarms <= 9
    other = pd.DataFrame({"n": rng.normal(size=12) + 3, "t": ["z"] * 12})
    assert {d.column for d in find_drift(before, other, ["n", "t"]) if d.adjusted < 0.05} == {
        "n",
        "t",
    }


@pytest.mark.req("D10")
def test_no_new_rows_say_nothing_and_rows_it_knows_never_count(
    known: Known, tmp_path: Path
) -> None:
    found = known.again(tmp_path, new=False)
    assert (found.rows, found.metrics, outcome(found)) == (0, {}, "unknown")
    assert found.verdict == "only 0 new rows: nothing can be said of them"

    def known_patients(table: pa.Table) -> pa.Table:
        return replaced(table, "__group", ["train0-p3"] * len(table))

    (tmp_path / "known").mkdir()
    assert known.again(tmp_path / "known", known_patients).rows == 0


@pytest.mark.req("R3")
def test_another_question_or_a_model_without_keys_is_refused(known: Known, tmp_path: Path) -> None:
    split = known.today(tmp_path)
    nameless = type(known.model)(**{**known.model.__dict__, "trained_on": None})
    with pytest.raises(RegistryError, match="does not say which rows it learned from"):
        divide(nameless, known.case.declaration, known.case.run.spec, split, tmp_path / "x")
    other = known.case.run.spec.model_copy(update={"label": "z"})
    with pytest.raises(
        RegistryError, match=r"cannot be held against 'clinic': it predicts 'y', not 'z'"
    ):
        reevaluate(
            known.case.declaration,
            known.model,
            known.registered,
            known.case.run.statistics,
            other,
            split,
            tmp_path / "y",
        )
