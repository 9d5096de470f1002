"""Verdicts that lead on: what happened names the line to change, and silence where nothing did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.records import FileRef, Interval, TrainReport
from tests.training.data.chain import declared, split_of, write_table
from tests.training.test_gate import evaluation, judged
from tests.training.toys import declare
from training.data.leakage import check_leakage
from training.data.leakage.duplicates import Duplicates, Within, judge_duplicates
from training.evaluation.baselines import Skill, verdict
from training.evaluation.next_step import add_unfinished, unfinished
from training.evaluation.permutation import too_few_units

NO_FILE = FileRef(path="none", sha256="0" * 64, num_bytes=0)


def said(value: float, baselines: dict[str, float], kind: str = "mlp", task: str = "binary") -> str:
    declaration = declare(task, {"kind": kind})
    found = {declaration.metric: Interval(value=value, low=value - 0.03, high=value + 0.03)}
    return verdict(declaration, found, {b: {declaration.metric: v} for b, v in baselines.items()})[
        1
    ]


@pytest.mark.req("P8")
def test_a_baseline_far_ahead_says_that_the_features_carry_it() -> None:
    far = said(0.52, {"constant": 0.5, "linear": 0.5, "boosting": 0.94})
    assert far.endswith(
        ": no skill, but the features carry it (gradient boosting 0.9400) and the network did not"
        " learn it; set model: {kind: boosting}, or train longer (train.epochs)."
    )
    own_trees = said(0.54, {"constant": 0.5, "linear": 0.9}, kind="boosting")
    assert "the trees did not learn it; set model: {kind: linear}" in own_trees


@pytest.mark.req("P8")
def test_without_a_better_baseline_the_features_are_to_blame() -> None:
    assert "no skill; look at the features, the label" in said(
        0.51, {"constant": 0.5, "linear": 0.51, "boosting": 0.52}
    )
    near = said(0.85, {"constant": 0.5, "boosting": 0.9})
    assert "carry it" not in near and "set model: {kind: boosting}, or improve" in near


@pytest.mark.req("P8")
def test_a_baseline_ahead_of_a_model_without_skill_is_the_line_to_set() -> None:
    declaration = declare("regression", {"kind": "mlp"})
    found = {declaration.metric: Interval(value=14.3, low=13.4, high=15.2)}
    baselines = {b: {declaration.metric: v} for b, v in (("constant", 32.2), ("linear", 7.4))}
    skill, sentence = verdict(declaration, found, baselines, skill=Skill(chance=0.4))
    assert not skill and sentence.endswith(
        ": set model: {kind: linear}, which is ahead on the same rows."
    )


@pytest.mark.req("P8")
@pytest.mark.parametrize(
    ("value", "wide", "words"),
    [
        (0.8, 0.31, "so few rows cannot distinguish it from luck; take more test rows"),
        (0.52, 0.1, "no skill; look at the features"),
        (0.4, 0.2, "no skill; look at the features"),
    ],
)
def test_a_good_score_of_few_rows_is_not_blamed_on_the_features(
    value: float, wide: float, words: str
) -> None:
    for task, own, constant in (("binary", value, 0.5), ("regression", 1.0 - value, 0.5)):
        declaration = declare(task, {"kind": "mlp"})
        found = Interval(value=own, low=own - wide, high=own + wide)
        baselines = {"constant": {declaration.metric: constant}}
        skill, sentence = verdict(declaration, {declaration.metric: found}, baselines)
        assert not skill and words in sentence, sentence


@pytest.mark.req("P8")
def test_a_perfect_baseline_is_a_finding_and_an_almost_perfect_one_is_not() -> None:
    perfect = {"constant": 0.5, "linear": 0.6, "boosting": 1.0}
    assert "Gradient boosting makes no error" in said(0.9, perfect)
    assert "makes no error" not in said(0.9, perfect | {"boosting": 0.999})
    error = {"constant": 9.0, "linear": 1e-9, "boosting": 2.0}
    assert "The linear model makes no error" in said(1.0, error, task="regression")
    assert "no error" not in said(1.0, error | {"linear": 0.2}, task="regression")


@pytest.mark.req("R2")
@pytest.mark.parametrize(("boosting", "passes"), [(1.0, False), (0.99, True)])
def test_nothing_is_promoted_behind_a_perfect_baseline(boosting: float, passes: bool) -> None:
    behind = evaluation().model_copy(
        update={
            "standing": {"constant": "ahead", "boosting": "behind"},
            "baselines": {"constant": {"auroc": 0.5}, "boosting": {"auroc": boosting}},
        }
    )
    report = judged(found=behind)
    assert report.passed == passes
    assert ("without an error: see what tells the label" in report.verdict) != passes


# ------------------------------------------------------------------------------- the training


def trained(**changes: Any) -> TrainReport:
    facts = {
        "run_id": "r", "status": "finished", "epochs": 30, "steps": 60, "best_step": 60,
        "best_metric": 0.6, "metric": "auroc", "seconds": 1.0, "world_size": 1,
        "num_parameters": 9, "best_checkpoint": NO_FILE, "model_sha256": "0" * 64,
        "rows_per_second": 1.0,
    }  # fmt: skip
    return TrainReport.model_validate(facts | changes)


@pytest.mark.req("P8")
def test_a_training_that_was_best_at_its_end_is_said_to_be_unfinished() -> None:
    declaration = declare("binary", {"kind": "mlp"})
    note = unfinished(declaration, trained())
    assert "not finished: the last of 60 updates was the best; set train.epochs: 270." in note
    many = unfinished(declaration, trained(steps=9000, best_step=9000))
    assert "set train.epochs: 60." in many
    trees = declare("binary", {"kind": "boosting", "max_iter": 40})
    assert "set model.max_iter: 80." in unfinished(trees, trained(steps=40, best_step=40))


@pytest.mark.req("P8")
@pytest.mark.parametrize(
    "changes",
    [
        {"best_step": 40},
        {"status": "stopped_early"},
        {"best_metric": None},
        {"status": "interrupted"},
    ],
)
def test_a_training_that_had_its_best_before_is_finished(changes: dict[str, Any]) -> None:
    assert unfinished(declare("binary", {"kind": "mlp"}), trained(**changes)) == ""


@pytest.mark.req("P8")
def test_the_note_goes_to_a_verdict_that_it_explains_and_to_no_other() -> None:
    behind = {"verdict": "It is behind.", "has_skill": True, "standing": {"linear": "behind"}}
    assert add_unfinished(behind, " More.")["verdict"] == "It is behind. More."
    for silent in (
        behind | {"standing": {"linear": "ahead"}},
        behind | {"too_few": "3 rows"},
        {},
    ):
        assert add_unfinished(silent, " More.") == silent
    assert add_unfinished(behind, "") == behind


# -------------------------------------------------------------------------------- rare classes


@pytest.mark.req("D9")
@pytest.mark.parametrize(("positives", "units", "few"), [(3, 300, True), (9, 300, False),
                                                        (3, 60, False)])  # fmt: skip
def test_few_positives_in_test_allow_no_claim(positives: int, units: int, few: bool) -> None:
    target = np.zeros(units, dtype=np.int64)
    target[:positives] = 1
    found = too_few_units(declare("binary"), target, None)
    assert (found == "3 positives in test: no claim can be made, 5 are needed") == few
    assert few or not found
    grouped = too_few_units(declare("binary"), np.repeat(target, 2), np.repeat(np.arange(units), 2))
    assert grouped == found, "two rows of one group are one positive"


@pytest.mark.req("D9")
@pytest.mark.parametrize(("every", "verdict_of_sizes"), [(60, "warn"), (20, "pass")])
def test_few_positives_are_named_before_training(
    tmp_path: Path, every: int, verdict_of_sizes: str
) -> None:
    num_rows = 1200
    table = {
        "id": [f"r{i}" for i in range(num_rows)],
        "x": [float(i * 7919 % 1201) for i in range(num_rows)],
        "y": ["yes" if i % every == 0 else "no" for i in range(num_rows)],
    }
    declaration = declared(
        write_table(tmp_path / "t.parquet", table),
        {"id": "id", "y": "label", "x": "numeric"},
        {"kind": "binary", "positive": "yes"},
        "stratified",
    )
    validated, sides = split_of(declaration, tmp_path / "out")
    results = check_leakage(sides, validated, declaration).results
    found = next(r for r in results if r.name == "min_rows")
    assert found.verdict == verdict_of_sizes
    assert ("with label 'yes' in test: no claim can be made" in found.summary) == (
        verdict_of_sizes == "warn"
    )


@pytest.mark.req("D9")
@pytest.mark.parametrize(("with_id", "values", "named"), [(False, 2, True), (True, 2, False),
                                                          (False, 900, False)])  # fmt: skip
def test_rows_of_few_kinds_without_an_id_are_named_before_training(
    tmp_path: Path, with_id: bool, values: int, named: bool
) -> None:
    rng = np.random.default_rng(1)
    columns = {name: rng.integers(0, values, 600).tolist() for name in "abc"}
    label = rng.integers(0, 2, 600).tolist()
    roles = {"y": "label", "a": "numeric", "b": "numeric", "c": "numeric"}
    identity = {"row": [f"r{i}" for i in range(600)]} if with_id else {}
    declaration = declared(
        write_table(tmp_path / "t.parquet", identity | columns | {"y": label}),
        ({"row": "id"} if with_id else {}) | roles,
        "binary",
        "stratified",
        checks={"max_duplicate_share": 1.0},
    )
    validated, sides = split_of(declaration, tmp_path / "out")
    results = check_leakage(sides, validated, declaration).results
    found = next(r for r in results if r.name == "min_rows")
    assert ("give the table a column with role id" in found.summary) == named
    assert found.verdict == ("warn" if named else "pass")


# ----------------------------------------------------------------------------- repeats of train


@pytest.mark.req("D4")
def test_contradictions_are_held_against_what_train_repeats() -> None:
    """Two of 85 rows equal in coarse features, where train repeats 28 of 402 itself."""
    declaration = declare("binary")
    held = [Duplicates("test", 2, 85, 2, [])]
    assert judge_duplicates(held, Within(28, 402, 12), declaration).verdict == "warn"
    copies = [Duplicates("test", 2, 85, 0, [])]
    assert judge_duplicates(copies, Within(28, 402, 0), declaration).verdict == "fail"
    many = [Duplicates("test", 40, 85, 0, [])]  # more than train's own rate explains
    assert judge_duplicates(many, Within(28, 402, 12), declaration).verdict == "fail"


@pytest.mark.req("D4")
def test_train_s_own_contradictions_are_counted(tmp_path: Path) -> None:
    num_rows, rng = 480, np.random.default_rng(4)
    x, z = rng.integers(0, 60, num_rows), rng.integers(0, 40, num_rows)
    table = {
        "id": [f"r{i}" for i in range(num_rows)],
        "x": x.astype(float).tolist(),
        "z": z.astype(float).tolist(),
        "y": rng.integers(0, 2, num_rows).tolist(),
    }
    declaration = declared(
        write_table(tmp_path / "t.parquet", table),
        {"id": "id", "y": "label", "x": "numeric", "z": "numeric"},
    )
    validated, sides = split_of(declaration, tmp_path / "out")
    results = check_leakage(sides, validated, declaration).results
    found = next(r for r in results if r.name == "duplicates")
    assert found.verdict == "warn" and found.figures["within_train"] > 0
