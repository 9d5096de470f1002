"""The report and checklist of boosted trees: own words, and items that a contrary fact turns."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.load import declare
from schemas.model_config import BoostingModel
from schemas.observed import ChecklistItem
from tests.training.report_inputs import build
from tests.training.toys import declare as toy
from tests.training.toys import write_run
from training.boosting.tree_run import fit_trees
from training.evaluation.evaluate import evaluate
from training.preflight.run import preflight
from training.report import checklist_files, checklist_trees
from training.report.blocks import Words
from training.report.checklist import judge
from training.report.checklist_facts import RunFacts
from training.report.curve_section import curve_blocks
from training.report.curves import read_curves, read_history
from training.report.reasons import settings
from training.report.tree_words import TREE_REASONS, UNUSED, in_terms_of_trees


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    """A sound run of a few iterations."""
    folder = tmp_path_factory.mktemp("trees")
    model = {"kind": "boosting", "max_iter": 12, "patience": 3}
    spec = write_run(folder, toy("binary", model, evaluate={"bootstrap": 20}))
    run_dir = folder / "run"
    report = fit_trees(spec, run_dir)
    (run_dir / "train.log").write_text("")  # the launcher's
    prepared = build(folder / "report", "binary").prepared.model_copy(
        update={"arrays": spec.arrays, "statistics": spec.statistics}
    )
    declaration = declare(spec.declaration)
    return RunFacts(
        declaration,
        prepared,
        preflight(spec),
        report,
        evaluate(spec, report.best_checkpoint, "test", folder / "evaluation"),
        read_history(run_dir / "metrics.jsonl"),
        checklist_files.read_files(run_dir, declaration),
    )


def items(facts: RunFacts) -> dict[str, ChecklistItem]:
    return {item.id: item for item in judge(facts)}


def test_a_sound_fit_shows_each_item_or_says_why_it_does_not_apply(made: RunFacts) -> None:
    found = items(made)
    assert len(found) == 28
    assert {i.standing for i in found.values()} == {"shown", "not applicable"}
    assert {n for n, i in found.items() if i.standing == "not applicable"} == {
        *checklist_trees.WITHOUT,
        "T16",
    }


def test_a_contrary_fact_turns_its_item(made: RunFacts) -> None:
    other = max(made.train.best_step - 1, 1)
    earlier = made.train.model_copy(update={"best_step": 1 if other > 1 else made.train.steps})
    assert items(replace(made, train=earlier))["T10"].standing == "contradicted"
    gone = replace(made.files, checkpoints=())
    assert items(replace(made, files=gone))["C4"].standing == "contradicted"
    counted = made.train.model_copy(update={"num_parameters": 7})
    assert items(replace(made, train=counted))["M1"].standing == "contradicted"


def test_the_section_of_the_curves_speaks_of_trees(made: RunFacts) -> None:
    blocks = curve_blocks(made.declaration, made.history, made.train, made.preflight)
    shown = " ".join(str(block) for block in blocks if not isinstance(block, Words))
    shown = re.sub(r"svg='.*?'", "", shown)
    assert "iterations" in shown and "kept iteration" in shown
    assert not re.search(r"network|epoch|optimizer step", re.sub(r"<svg.*?</svg>", "", shown))


@pytest.mark.parametrize(
    "curves",
    [
        ([0.6, 0.4, 0.2, 0.1], [0.6, 0.5, 0.45, 0.4], 3),
        ([0.6, 0.5, 0.4, 0.3, 0.2], [0.6, 0.5, 0.55, 0.6, 0.7], 1),
        ([0.69, 0.69, 0.69, 0.69], [0.69, 0.69, 0.69, 0.69], 3),
        ([0.6, 0.5, 0.45, 0.4], [0.6, 0.5, 0.45, 0.4], 3),
    ],
)
def test_no_reading_speaks_of_a_network(curves: tuple[list[float], list[float], int]) -> None:
    train, val, kept = curves
    words = in_terms_of_trees(read_curves(train, val, kept, 0.69, False).words)
    assert not re.search(r"network|epoch|weights|kept step", words)


def test_every_default_of_the_model_has_a_reason(made: RunFacts) -> None:
    fields = {f"model.{name}" for name in BoostingModel.model_fields} - {"model.kind"}
    assert fields == {name for name in TREE_REASONS if name.startswith("model.")}
    found = {s.path: s.reason for s in settings(made.declaration, (), made.prepared)}
    assert found["optimizer.lr"] == found["train.epochs"] == UNUSED
    assert found["train.seed"] != UNUSED and "network" not in found["evaluate.baselines"]


def test_the_reading_of_a_network_stays_as_it_is(tmp_path: Path) -> None:
    inputs = build(tmp_path, "binary")
    found = {s.path: s.reason for s in settings(inputs.declaration, (), inputs.prepared)}
    assert UNUSED not in found.values()
