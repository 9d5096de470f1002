"""D6: rows that belong together are named with both scores; honest splits say nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from schemas.load import declare
from schemas.records import CheckResult
from tests.training.data.leakage.planted import named, results_for, shares, sides_for
from tests.training.data.leakage.tied import (
    at_random,
    dependence,
    honest_cases,
    keyed,
    people,
    plain,
    visits,
    waves,
)
from training.data.leakage import check_leakage
from training.data.leakage.dependence import dependence_results
from training.data.sources.source import fingerprint
from training.data.split.split import split
from training.data.table.validate import validate


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def scores(result: CheckResult) -> tuple[float, float]:
    """Strength as split, and with rows kept together."""
    return float(result.figures["as_split"] or 0), float(result.figures["kept_together"] or 0)


@pytest.mark.req("D6")
def test_people_without_a_column_are_found_by_what_they_keep() -> None:
    frame, label, person = people(rng(), visits=20)
    result = dependence(at_random(keyed(frame, label)), "regression")
    as_split, together = scores(result)
    assert result.verdict == "fail" and set(result.columns) == {"age", "sex"}
    assert as_split > 0.5 and together < 0.3
    assert "R2 of ranks" in result.summary and "if they stay together" in result.summary
    assert "data.group_by: {duplicates: [" in result.remedy
    # the honest counterpart: the same rows, the same values, split by person
    honest = dependence(shares(keyed(frame, label, group=person)), "regression")
    assert (honest.verdict, honest.columns) == ("pass", ())


@pytest.mark.req("D6")
def test_a_combination_of_categories_only_warns() -> None:
    random = rng()
    model = random.integers(0, 40, 800)  # of a car: make, trim, cylinders and price are its own
    own = {f"is_{i}": random.integers(0, 2, 40)[model] for i in range(7)}
    frame = pd.DataFrame({**own, "cylinders": random.integers(2, 5, 40)[model] * 2})
    frame["mileage"] = random.normal(size=800)
    price = 3 * random.normal(size=40)[model] - frame["mileage"] + 0.3 * random.normal(size=800)
    result = dependence(at_random(keyed(frame, price)), "regression")
    assert result.verdict == "warn" and "if they stay together" in result.summary


@pytest.mark.req("D6")
@pytest.mark.parametrize("spelling", ["number", pytest.param("text", marks=pytest.mark.long)])
def test_a_person_s_number_is_a_group_and_not_to_be_ignored(spelling: str) -> None:
    frame, label, person = people(rng(), visits=20)
    number = rng(1).permutation(42)[person]
    frame["who"] = number.astype(float) if spelling == "number" else [f"p{n}" for n in number]
    results = results_for(at_random(keyed(frame, label)), "regression")
    (result,) = named(results, "dependence")
    assert (result.verdict, result.columns) == ("fail", ("who",))
    assert "never change within one" in result.summary
    assert "make it a group (data.columns: {who: group}, split: {kind: group})" in result.remedy
    for proxy in named(results, "label_proxy"):
        if proxy.columns == ("who",):
            assert proxy.remedy == result.remedy


@pytest.mark.req("D6")
@pytest.mark.long
def test_visits_of_hidden_people_are_found_by_values_that_repeat() -> None:
    frame, label, person = visits(rng())
    result = dependence(at_random(keyed(frame, label)), "binary")
    as_split, together = scores(result)
    assert result.verdict == "fail" and as_split > 0.9 and abs(together) < 0.3
    assert "AUROC" in result.summary and "duplicates: [" in result.remedy
    honest = dependence(shares(keyed(frame, label, group=person)), "binary")
    assert honest.verdict == "pass"


@pytest.mark.req("D6")
def test_visits_that_differ_by_noise_are_found_as_clusters() -> None:
    frame, label, _ = visits(rng(), each=6, noise=0.05, other=0)
    result = dependence(at_random(keyed(frame, label)), "binary")
    assert result.verdict == "fail" and result.figures["tie"] == "cluster"
    assert "near_duplicates: [a, b, c, d]" in result.remedy
    lone = frame.iloc[::6].reset_index(drop=True)
    apart = pd.concat([lone + i for i in range(6)], ignore_index=True)
    honest = dependence(at_random(keyed(apart, rng().integers(0, 2, len(apart)))), "binary")
    assert honest.verdict == "pass"


@pytest.mark.req("D6")
def test_neighbours_in_the_source_are_kept_together() -> None:
    frame, state = waves(rng(), rows=2000, width=4)
    result = dependence(at_random(keyed(frame, state, numbered=True)), "binary")
    as_split, together = scores(result)
    assert result.verdict == "fail" and result.figures["tie"] == "place"
    assert as_split > 0.9 and together < 0.4 and "neighbouring rows of the source" in result.summary


@pytest.mark.req("D6")
@pytest.mark.long
def test_the_same_rows_in_another_order_say_nothing() -> None:
    frame, state = waves(rng(), rows=2000, width=4)
    drawn = rng().permutation(len(frame))
    honest = keyed(frame.iloc[drawn], state[drawn], numbered=True)
    assert dependence(at_random(honest), "binary").verdict == "pass"


@pytest.mark.req("D6")
@pytest.mark.long
def test_an_order_column_names_the_neighbours() -> None:
    frame, state = waves(rng())
    frame["ms"] = np.arange(len(frame)) * 8.0
    result = dependence(at_random(keyed(frame, state)), "binary")
    assert result.verdict in ("warn", "fail") and result.columns == ("ms",)
    assert "{ms: time}" in result.remedy


@pytest.mark.req("D6")
@pytest.mark.long
def test_a_declared_time_under_a_random_split_says_the_score_of_later_rows() -> None:
    random = rng()
    rows, hours = 2000, np.arange(2000) * 3600.0
    level = np.cumsum(random.normal(size=rows))
    frame = pd.DataFrame({f"x{i}": random.normal(size=rows) for i in range(3)})
    frame["price"] = np.arange(rows) / 100 + 0.1 * random.normal(size=rows)  # rises with time
    label = level + 3 * frame["x0"] + random.normal(size=rows)
    table = keyed(frame, label, time=hours)
    result = dependence(at_random(table), "regression", "random")
    assert result.verdict in ("warn", "fail") and "at" in result.columns
    assert "if they are predicted from earlier ones" in result.summary
    assert "split: {kind: time}" in result.remedy
    assert dependence(shares(table), "regression").verdict == "pass"
    honest = keyed(*plain(random, rows, 4, regression=True), time=hours)
    assert dependence(at_random(honest), "regression", "random").verdict == "pass"


@pytest.mark.req("D6")
@pytest.mark.long
def test_moments_that_share_their_label_are_named() -> None:
    random = rng()
    moment = np.repeat(np.arange(300), 5)
    frame, _ = plain(random, len(moment), 4, regression=True)
    label = random.normal(size=300)[moment] + 0.05 * random.normal(size=len(moment))
    table = keyed(frame, label, time=moment * 3600.0)
    result = dependence(at_random(table), "regression", "random")
    assert result.verdict == "warn" and "rows of one at have nearly the same y" in result.summary
    other = keyed(frame, random.normal(size=len(moment)), time=moment * 3600.0)
    assert dependence(at_random(other), "regression", "random").verdict == "pass"


@pytest.mark.req("D6")
@pytest.mark.long
def test_a_category_that_rightly_says_something_is_no_tie() -> None:
    random = rng()
    city = random.integers(0, 40, 1200)
    frame = pd.DataFrame({f"x{i}": random.normal(size=1200) for i in range(3)})
    frame["city"] = [f"c{c}" for c in city]
    label = 2 * random.normal(size=40)[city] + frame["x0"] + random.normal(size=1200)
    assert dependence(at_random(keyed(frame, label)), "regression").verdict == "pass"


@pytest.mark.req("D6")
def test_test_rows_are_not_read_and_the_order_of_the_files_does_not_matter() -> None:
    frame, label, _ = visits(rng(), people=40, other=0)
    parts = at_random(keyed(frame, label))
    first = dependence(parts, "binary")
    turned = parts["test"].assign(y=1 - parts["test"]["y"], a=0.0)
    moved = {side: part.iloc[::-1].copy() for side, part in {**parts, "test": turned}.items()}
    assert dependence(moved, "binary") == first
    with sides_for(parts, "binary") as sides:
        kept = {side: r for side, r in sides.relations.items() if side != "test"}
        assert dependence_results(sides._replace(relations=kept)) == [first]


@pytest.mark.req("D6")
@pytest.mark.long
def test_a_finding_is_allowed_with_a_reason_and_few_rows_decide_nothing() -> None:
    frame, label, _ = visits(rng(), people=60)
    allow = [{"check": "dependence", "reason": "the same people will be asked again"}]
    parts = at_random(keyed(frame, label))
    (result,) = named(results_for(parts, allow=allow), "dependence")
    assert result.verdict == "allowed"
    few = dependence(at_random(keyed(frame[:90], label[:90])), "binary")
    assert few.verdict == "pass" and few.summary.startswith("not decided: fewer than 100")


@pytest.mark.req("D6")
@pytest.mark.long
@pytest.mark.parametrize("memory", [None, "300MB"])
def test_a_run_without_ids_knows_the_order_of_its_source(tmp_path: Path, memory: str) -> None:
    frame, state = waves(rng(), rows=25_000, width=4)
    shuffled = rng().permutation(len(frame))
    for name, order in (("ordered", np.arange(len(frame))), ("shuffled", shuffled)):
        uri = str(tmp_path / f"{name}.parquet")
        frame.assign(y=state).iloc[order].to_parquet(uri, index=False)
        limit = {"memory_limit": memory} if memory else {}
        tree = {
            "name": "waves",
            "data": {"uri": uri, "columns": {"y": "label", "*": "feature"}, **limit},
            "task": {"kind": "binary"},
            "split": {"kind": "random"},
        }
        declaration = declare(tree)
        validated = validate(fingerprint(declaration.data), declaration, tmp_path / name)
        made = split(validated, declaration, tmp_path / name / "split", tmp_path / name / "ledger")
        results = list(check_leakage(made, validated, declaration).results)
        (result,) = named(results, "dependence")
        assert result.verdict == ("fail" if name == "ordered" else "pass"), result.summary
        folds = check_leakage(made, validated, declaration, is_fold=True).results
        assert "dependence" not in {r.name for r in folds}


@pytest.mark.req("D6")
@pytest.mark.long
def test_honest_splits_hardly_ever_fail_or_warn() -> None:
    found = Counter(dependence(parts, task).verdict for _, parts, task in honest_cases(200))
    assert found["fail"] <= 2 and found["warn"] <= 10
