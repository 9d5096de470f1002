"""Champion against challenger on rows that neither learned from, or a reason why not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from schemas.digest import file_ref
from schemas.errors import IntegrityError
from schemas.look_records import Look, Window
from schemas.records import ExportedModel
from tests.training.cases import Case, champion_of, evaluation_of, expected, make_case
from training.data.split.unseen import evaluated_keys, trained_keys
from training.objectives.metrics import compute_predictions
from training.registry.compare_champion import challenge
from training.registry.fresh_rows import Fresh
from training.registry.gate import judge
from training.serving.export import export_model
from training.serving.reference_network import reference_network

MODEL = {"kind": "linear"}
OPTIONS = {"model": MODEL, "ignored": ("scan",), "evaluate": {"bootstrap": 50}}


class Two:
    """A champion with random weights on rows of its own, and a challenger that was trained a little
    on others.
    """

    def __init__(self, folder: Path) -> None:
        self.old = make_case(folder / "old", seed=100, **OPTIONS)
        self.new = make_case(folder / "new", seed=0, steps=150, **OPTIONS)
        self.old_model, self.new_model = (
            self._export(case, folder / name)
            for case, name in ((self.old, "m-old"), (self.new, "m-new"))
        )
        self.keys = trained_keys([self.old.split.train, self.old.split.val])
        self.network = reference_network(self.new.run, self.new.weights)
        self.evaluation = evaluation_of(self.new, folder, self.network)
        self.champion = champion_of(self.old, self.old_model, self.keys)

    @staticmethod
    def _export(case: Case, folder: Path) -> ExportedModel:
        return export_model(case.run, case.weights, folder, case.split.val)

    def challenge(self, **changes):
        given = {
            "declaration": self.new.declaration,
            "run": self.new.run,
            "test": self.new.split.test,
            "evaluation": self.evaluation,
        }
        return challenge(
            **{
                **given,
                "program_sha256": self.new_model.program.sha256,
                "champion": self.champion,
                **changes,
            }
        )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    return Two(tmp_path_factory.mktemp("two"))


@pytest.mark.req("R2")
def test_both_are_scored_on_the_same_raw_rows(two: Two) -> None:
    found = two.challenge()
    target = (two.new.raw["test"]["y"] == "yes").to_numpy().astype(int)
    ours = compute_predictions("binary", expected(two.new, two.network), target)["auroc"]
    champion = two.champion.predict(two.new.raw["test"])[
        ["probability_no", "probability_yes"]
    ].to_numpy()
    theirs = compute_predictions("binary", champion, target)["auroc"]
    assert (found.rows, found.excluded_rows, found.version) == (50, 0, "1")
    assert found.challenger == pytest.approx(ours, abs=1e-12)
    assert found.champion == pytest.approx(theirs, abs=1e-12)
    assert found.difference.value == pytest.approx(ours - theirs, abs=1e-12)
    assert found.challenger > found.champion + 0.1
    assert judge(two.new.declaration, two.evaluation, (), found).passed


@pytest.mark.req("R2")
def test_the_champions_claim_and_age_and_the_looks_come_with_the_comparison(two: Two) -> None:
    """Its claim counts as long as it rests on today's rows; else its score today does."""
    test, champion = two.new.split.test, two.champion
    created = datetime.now(UTC) - timedelta(days=40)
    claim = {"metric": "auroc", "value": 0.61}
    known = {
        "created": created.isoformat(timespec="seconds"),
        "metrics": {"auroc": {"value": 0.66}},
        "gate": {"claim": claim},
    }
    tested = evaluated_keys(test)
    same = replace(champion, evidence=known, tested_on=tested)
    look = Look(rows_sha256="0" * 64, metric="auroc", number=7)
    seen = two.evaluation.model_copy(update={"looks": (look,)})
    found = two.challenge(champion=same, evaluation=seen)
    assert (found.claim, found.looks, found.stale) == (0.61, 7, "")
    earlier = replace(same, evidence=known | {"gate": None})
    assert two.challenge(champion=earlier).claim == 0.66
    assert two.challenge(champion=replace(same, tested_on=tested[:4])).claim is None
    assert two.challenge(champion=replace(same, tested_on=tested[:10])).claim == 0.61
    declared = two.new.declaration
    for age, stale in (("30d", True), ("60d", False)):
        section = declared.register_.model_copy(update={"stale_after": age})
        aged = declared.model_copy(update={"register_": section})
        why = two.challenge(declaration=aged, champion=same).stale
        assert (f"older than register.stale_after ({age})" in why) == stale


@pytest.mark.req("D10")
def test_rows_and_groups_that_the_champion_learned_from_are_left_out(two: Two) -> None:
    """It learned from three of the test patients (two rows each), by their group or by one row's
    id.
    """
    test = pq.read_table(two.new.split.test.file.path).to_pandas()
    groups, ids = test["__group"].unique()[:3], test["__id"][:1]
    known = _hashes([f"group:{g}" for g in groups] + [f"id:{i}" for i in ids])
    found = two.challenge(champion=champion_of(two.old, two.old_model, np.sort(known)))
    assert (found.rows, found.excluded_rows) == (44, 6)
    time_split = two.new.declaration.model_copy(
        update={"split": two.new.declaration.split.model_copy(update={"kind": "time"})}
    )
    assert (
        two.challenge(
            declaration=time_split, champion=champion_of(two.old, two.old_model, np.sort(known))
        ).excluded_rows
        == 1
    )


@pytest.mark.req("D10")
def test_a_champion_that_learned_from_the_test_rows_cannot_be_compared(two: Two) -> None:
    found = two.challenge(
        champion=champion_of(two.old, two.old_model, trained_keys([two.new.split.test]))
    )
    assert found.problem.startswith("only 0 of 50 test rows are unseen by the champion")
    assert not judge(two.new.declaration, two.evaluation, (), found).passed


@pytest.mark.req("R2")
def test_the_same_program_is_recognised(two: Two) -> None:
    found = two.challenge(program_sha256=two.old_model.program.sha256)
    assert found.identical
    assert judge(two.new.declaration, two.evaluation, (), found).verdict.startswith("unchanged")


@pytest.mark.req("R2")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"task": "regression"}, "it predicts regression, not binary"),
        ({"label": "z"}, "it predicts 'z', not 'y'"),
        (
            {"classes": ["no", "maybe"]},
            r"its classes are ['no', 'maybe'], those of this run ['no', 'yes']",
        ),
    ],
)
def test_a_champion_of_another_question_is_named(
    two: Two, change: dict[str, object], problem: str
) -> None:
    other = champion_of(two.old, two.old_model, two.keys)
    other.spec.update(change)
    assert two.challenge(champion=other).problem == problem


@pytest.mark.req("R2")
def test_a_champion_without_its_keys_or_with_other_columns_is_named(two: Two) -> None:
    assert (
        two.challenge(champion=champion_of(two.old, two.old_model, None)).problem
        == "it does not say which rows it learned from"
    )
    other = champion_of(two.old, two.old_model, two.keys)
    other.spec["numeric"][0]["name"] = "weight_kg"
    assert (
        two.challenge(champion=other).problem
        == "it cannot score these rows: missing columns: 'weight_kg'"
    )


@pytest.mark.req("R2")
def test_predictions_of_other_rows_are_refused(two: Two, tmp_path: Path) -> None:
    table = pq.read_table(two.evaluation.predictions.path).slice(1)
    pq.write_table(table, tmp_path / "predictions.parquet")
    with pytest.raises(
        IntegrityError,
        match=r"expected predictions of the 50 test rows, got 49 of others; evaluate again",
    ):
        two.challenge(
            evaluation=two.evaluation.model_copy(
                update={"predictions": file_ref(tmp_path / "predictions.parquet")}
            )
        )


def _hashes(texts: list[str]) -> np.ndarray:
    import hashlib

    return np.array(
        [int(hashlib.md5(t.encode()).hexdigest()[:16], 16) for t in texts], dtype=np.uint64
    )


@pytest.mark.req("R2")
def test_fresh_rows_alone_are_compared_and_too_few_wait(two: Two) -> None:
    """The claim starts from the champion's score on them, and the looks are theirs."""
    known = {"metrics": {"auroc": {"value": 0.66}}}
    champion = replace(two.champion, evidence=known, tested_on=evaluated_keys(two.new.split.test))
    mask = np.arange(50) < 40
    window = Window(after=1.0, until=2.0, between="after 1 to 2", rows=40, rows_sha256="0" * 64)
    asked: list[int] = []

    def fresh(unseen: np.ndarray) -> Fresh:
        asked.append(int(unseen.sum()))
        return Fresh(mask, window, looks=5)

    found = two.challenge(champion=champion, fresh=fresh)
    assert (found.rows, found.excluded_rows, found.window) == (40, 10, window)
    assert (found.claim, found.looks, asked) == (None, 5, [50])
    report = judge(two.new.declaration, two.evaluation, (), found)
    assert "on 40 rows that neither was trained, tuned or gated on (10 left out), after 1" in (
        report.verdict
    )
    assert report.claim is not None and report.claim.window == window
    waiting = two.challenge(champion=champion, fresh=lambda _: Fresh(mask, None, "3 rows came"))
    report = judge(two.new.declaration, two.evaluation, (), waiting)
    assert (report.passed, report.replaces, report.claim) == (True, False, None)
    assert report.verdict == "waits: 3 rows came"
    same = two.challenge(program_sha256=two.old_model.program.sha256, fresh=fresh)
    assert same.identical and len(asked) == 1  # nothing is used up for the champion itself
