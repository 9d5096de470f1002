"""Each model that is scored on test rows is a look; who reads the score reads the count."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from flows.summary import _caution_lines, print_summary
from schemas.digest import file_ref
from schemas.look_records import Claim, Look, Window
from schemas.records import EvaluationReport, RunSpec
from tasks.evaluate import evaluate_model
from tasks.looks import count_looks, deciding_metrics, looks_path, scored_rows
from tests.training.mlflow_home import declaration
from tests.training.report_inputs import build
from tests.training.test_evaluate import trained_run
from tests.training.test_next_step import trained
from training.report.gate_section import gate_blocks, look_blocks
from training.report.headline import headline


def scored(run: RunSpec, weights: Path, model: str, side: Any = "test") -> EvaluationReport:
    """The evaluation of a training that gave these weights."""
    report = trained(best_checkpoint=file_ref(weights), model_sha256=model * 64)
    few = {"evaluate": {"bootstrap": 60, "baselines": ["constant"]}}
    run = run.model_copy(update={"declaration": run.declaration | few})
    with disable_run_logger():
        return evaluate_model.fn(run, report, weights.parent, side)


@pytest.mark.req("R2")
def test_an_evaluation_of_test_rows_is_counted_and_one_of_val_rows_is_not(
    tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, weights = trained_run(tmp_path, "binary")
    assert scored(run, weights, "a", "val").looks == () and not looks_path().exists()
    first = scored(run, weights, "a")
    assert [(look.metric, look.number, look.optimism) for look in first.looks] == [("auroc", 1, 0)]
    assert "look" not in capsys.readouterr().err
    again, second = scored(run, weights, "a"), scored(run, weights, "b")
    assert again == first and second.looks[0].number == 2
    error = capsys.readouterr().err
    assert "look 2 at these rows: the best of 2 equal models may score up to 0." in error
    written = json.loads((tmp_path / "evaluation" / "test" / "evaluation.json").read_text())
    assert written["looks"][0]["number"] == 2 and written["looks"][0]["optimism"] > 0
    val = (tmp_path / "evaluation" / "val" / "evaluation.json").read_text()
    assert "looks" not in json.loads(val)
    assert looks_path().parent == own_home / "ledgers"


@pytest.mark.req("R2")
def test_another_metric_of_the_gate_is_counted_too(tmp_path: Path, own_home: Path) -> None:
    run, _ = trained_run(tmp_path, "binary")
    declared: Any = declaration(register={"metric": "log_loss"})
    assert deciding_metrics(declared) == ("auroc", "log_loss")
    found = count_looks(declared, scored_rows(run.arrays.test), "a" * 64, "evaluate")
    assert [(look.metric, look.number) for look in found] == [("auroc", 1), ("log_loss", 1)]
    assert len({look.rows_sha256 for look in found}) == 1


def look(number: int, optimism: float | None = 0.0331) -> Look:
    return Look(rows_sha256="0" * 64, metric="auroc", number=number, optimism=optimism)


@pytest.mark.req("P8")
def test_the_report_says_how_often_the_rows_were_seen_and_who_stays_champion(
    tmp_path: Path,
) -> None:
    inputs = build(tmp_path, "binary")
    assert "Look" not in headline(inputs).sentence and look_blocks(inputs.test) == []
    first = inputs.test.model_copy(update={"looks": (look(1, 0.0),)})
    assert look_blocks(first) == []
    test = inputs.test.model_copy(update={"looks": (look(14),)})
    assert inputs.gate is not None
    gate = inputs.gate.model_copy(
        update={"replaces": False, "champion_version": "3", "passed": True}
    )
    seen = inputs.model_copy(update={"test": test, "gate": gate})
    sentence = headline(seen).sentence
    assert "Look 14 at these rows: the best of 14 equal models may score up to 0.0331" in sentence
    assert "Version 3 stays champion: equal within the noise." in sentence
    assert "√(2 ln 14)" in look_blocks(test)[0].text  # type: ignore[union-attr]
    assert gate_blocks(gate)[0].title == "Registered; the champion stays"  # type: ignore[union-attr]
    waits = gate.model_copy(update={"verdict": "waits: 3 rows came", "claim": None})
    shown = headline(inputs.model_copy(update={"gate": waits})).sentence
    assert "stays champion: too few rows came to compare the two." in shown
    assert not any("Compared with" in str(block) for block in gate_blocks(waits))
    window = Window(after=1.0, until=2.0, between="after 1 to 2", rows=40, rows_sha256="0" * 64)
    claim = Claim(metric="auroc", value=0.7, window=window)
    rested = gate_blocks(gate.model_copy(update={"claim": claim}))
    assert any("The claim rests on 40 rows after 1 to 2" in str(block) for block in rested)


@pytest.mark.parametrize(
    ("number", "outcome", "shown"),
    [(1, "promoted", False), (2, "kept", True)],
)
def test_the_last_lines_of_a_run_say_it_from_the_second_look_on(
    number: int, outcome: str, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"auroc": SimpleNamespace(value=0.8, low=0.7, high=0.9)}
    registered = SimpleNamespace(registered=True, uri="models:/m/4", version="4", verdict="kept")
    print_summary(
        SimpleNamespace(  # type: ignore[arg-type]
            metric="auroc", metrics=metrics, confidence=0.95, verdict="good", looks=(look(number),),
            registered=registered, outcome=outcome, new_rows=None, report="r", promise="p",
            tracking_uri="sqlite:///x.db", cautions=(), slices=None, reasons=None,
        )
    )  # fmt: skip
    text = capsys.readouterr().out
    assert (f"looks         look {number} at these rows" in text) == shown
    assert ("so the champion stays" in text) == (outcome == "kept")
    assert ("use it" in text) == (outcome != "kept")


def test_the_first_check_that_warns_is_shown_and_the_others_are_named() -> None:
    assert _caution_lines(()) == {}
    both = _caution_lines(("dependence: rows belong together", "shift: columns moved"))
    assert both == {"caution": "dependence: rows belong together; also: shift"}
