"""The gate: each condition refuses what it must and passes the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.records import CheckResult, EvaluationReport, FileRef, GateReport, Interval
from tests.training.mlflow_home import declaration
from training.registry.gate import compare, judge
from training.registry.ladder import Comparison

SIMPLER: dict[str, dict[str, float | None]] = {
    "constant": {"auroc": 0.5},
    "linear": {"auroc": 0.9},
    "boosting": {"auroc": 0.95},
}
NO_FILE = FileRef(path="/none", sha256="0", num_bytes=0)


def evaluation(skill: bool = True, **metrics: float | None) -> EvaluationReport:
    return EvaluationReport(
        side="test",
        rows=100,
        metrics={n: Interval(value=v) for n, v in ({"auroc": 0.8} | metrics).items()},
        has_skill=skill,
        verdict="as the coin",
        predictions=NO_FILE,
    )


def judged(
    comparison: Comparison | None = None,
    found: EvaluationReport | None = None,
    checks: tuple[CheckResult, ...] = (),
    **register: Any,
) -> GateReport:
    return judge(declaration(register=register), found or evaluation(), checks, comparison)  # type: ignore[arg-type]


def check(verdict: Any, name: str = "duplicates") -> CheckResult:
    return CheckResult(name=name, verdict=verdict, summary="found")


def against(
    value: float | None, low: float | None = None, high: float | None = None, **fields: Any
) -> Comparison:
    facts = {
        "version": "3",
        "metric": "auroc",
        "rows": 80,
        "champion": 0.8,
        "challenger": 0.8 + (value or 0),
    }
    return Comparison(
        **{**facts, "difference": Interval(value=value, low=low, high=high), **fields}
    )


# ------------------------------------------------------------------------------------- conditions


@pytest.mark.req("R2")
def test_a_first_model_that_keeps_everything_passes() -> None:
    report = judged(
        thresholds={"auroc": {"min": 0.7, "max": 0.99}},
        checks=(check("pass"), check("warn"), check("allowed")),
    )
    assert report.passed
    assert report.verdict == "passed: there is no champion yet"
    assert [(c.name, c.verdict) for c in report.conditions] == [
        ("threshold: auroc", "pass"),
        ("checks", "pass"),
        ("skill", "pass"),
        ("champion", "pass"),
    ]
    assert report.conditions[1].summary == "checks: 1 pass, 1 warn, 1 allowed"


@pytest.mark.req("R2")
@pytest.mark.parametrize(
    ("bounds", "value", "message"),
    [
        ({"min": 0.81}, 0.8, "test auroc is 0.8, expected at least 0.81"),
        ({"max": 0.79}, 0.8, "test auroc is 0.8, expected at most 0.79"),
        ({"min": 0.5, "max": 0.79}, 0.8, "expected at least 0.5 and at most 0.79"),
        ({"min": 0.5}, None, "test auroc is not defined"),
    ],
)
def test_a_broken_threshold_refuses_with_both_figures(
    bounds: dict[str, float], value: float | None, message: str
) -> None:
    report = judged(found=evaluation(auroc=value), thresholds={"auroc": bounds})
    assert not report.passed
    assert message in report.verdict
    assert judged(
        found=evaluation(auroc=0.8), thresholds={"auroc": {"min": 0.8, "max": 0.8}}
    ).passed


@pytest.mark.req("R2")
def test_a_failed_check_refuses_by_name() -> None:
    report = judged(checks=(check("pass"), check("fail", "group overlap")))
    assert not report.passed
    assert report.verdict == "refused: checks failed: group overlap"


@pytest.mark.req("R2")
def test_a_model_without_skill_is_refused_unless_that_is_declared() -> None:
    report = judged(found=evaluation(skill=False))
    assert not report.passed
    assert "no skill over the constant baseline" in report.verdict
    relaxed = judged(found=evaluation(skill=False), require_skill=False)
    assert relaxed.passed
    assert relaxed.conditions[-2].verdict == "allowed"


@pytest.mark.req("R2")
def test_too_few_rows_are_refused_by_that_name_also_for_the_first_champion() -> None:
    few = evaluation(skill=False).model_copy(update={"too_few": "3 rows can be ordered in 3 ways"})
    report = judged(found=few)
    assert not report.passed and report.champion_version is None
    assert (
        report.verdict
        == "refused: too few test rows to say whether it has skill: 3 rows can be ordered in 3 ways"
    )
    assert judged(found=few, require_skill=False).passed


@pytest.mark.req("R2")
def test_a_model_behind_a_simpler_one_is_no_first_champion_unless_the_file_says_so() -> None:
    behind = evaluation().model_copy(
        update={
            "standing": {"constant": "ahead", "linear": "behind", "boosting": "behind"},
            "baselines": SIMPLER,
        }
    )
    report = judged(found=behind)
    assert (
        report.verdict
        == "refused: AUROC 0.8000 is behind the linear model (0.9000) on the same test rows"
    )
    assert "name it in register.allow_behind" in report.conditions[-2].remedy
    allowed = judged(found=behind, allow_behind=["linear", "boosting"])
    assert allowed.passed and allowed.conditions[-2].verdict == "allowed"
    trees = behind.model_copy(
        update={"standing": {"constant": "ahead", "linear": "level", "boosting": "behind"}}
    )
    assert judged(found=trees).passed  # trees are no simpler than a network
    assert not judged(found=trees, allow_behind=[]).passed
    assert [c.name for c in judged(found=evaluation()).conditions] == [
        "checks",
        "skill",
        "champion",
    ]


@pytest.mark.req("R2")
@pytest.mark.parametrize(
    ("difference", "tolerance", "passes"),
    [
        ((0.01, -0.02, 0.04), 0.0, True),  # better
        ((0.0, -0.02, 0.02), 0.0, True),  # equal
        ((-0.01, -0.03, 0.01), 0.0, False),  # worse, though not clearly
        ((-0.01, -0.03, 0.01), 0.02, True),  # within the tolerance
        ((-0.03, -0.05, -0.02), 0.02, False),  # beyond it
        ((0.001, -0.05, -0.021), 0.02, False),  # the interval lies below, whatever the point says
        ((0.01, None, None), 0.0, True),  # no interval
    ],
)
def test_if_declared_the_champion_is_replaced_by_any_that_is_not_worse(
    difference: tuple[float, float | None, float | None], tolerance: float, passes: bool
) -> None:
    report = judged(against(*difference), tolerance=tolerance, replace="not_worse")
    assert report.passed == passes and report.replaces
    if tolerance:  # a loss that is accepted says so as well
        assert judged(against(*difference), tolerance=tolerance).passed == passes
    assert (report.champion_version, report.compared_rows, report.difference) == (
        "3",
        80,
        Interval(value=difference[0], low=difference[1], high=difference[2]),
    )
    assert f"{difference[0]:+.4g}" in report.conditions[-1].summary


@pytest.mark.req("R2")
def test_a_champion_that_cannot_be_compared_refuses_with_the_reason() -> None:
    report = judged(
        Comparison(
            version="3", rows=4, excluded_rows=96, problem="only 4 of 100 test rows are unseen"
        )
    )
    assert not report.passed
    assert (
        report.verdict
        == "refused: cannot be compared with version 3: only 4 of 100 test rows are unseen"
    )
    assert not judged(against(None)).passed


@pytest.mark.req("R2")
def test_the_champions_own_program_is_unchanged_and_not_registered_again() -> None:
    report = judged(Comparison(version="3", identical=True))
    assert not report.passed
    assert report.verdict.startswith("unchanged: the program is version 3")
    assert not [c for c in report.conditions if c.verdict == "fail"]


# ------------------------------------------------------------------------------------- comparison


def binary(rows: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities of a model that sees them through noise."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 2, rows)
    positive = 1 / (1 + np.exp(-(2 * target - 1 + noise * rng.normal(size=rows))))
    return target, np.stack([1 - positive, positive], axis=1)


@pytest.mark.req("R2")
@pytest.mark.parametrize(
    ("task", "metric"), [("binary", "auroc"), ("binary", "log_loss"), ("regression", "rmse")]
)
def test_more_is_better_whatever_the_metric(task: str, metric: str) -> None:
    declared = declaration(
        task={"kind": task}, register={"metric": metric}, evaluate={"bootstrap": 60}
    )
    target, good = binary(400, 0.5)
    bad = binary(400, 4.0)[1]
    if task == "regression":
        target, good, bad = target.astype(float), target + 0.1 * good[:, 1], target + bad[:, 1]
    everything = np.ones(400, dtype=bool)
    better = compare(declared, "1", good, bad, target, everything)  # type: ignore[arg-type]
    worse = compare(declared, "1", bad, good, target, everything)  # type: ignore[arg-type]
    assert better.difference is not None
    assert worse.difference is not None
    assert 0 < better.difference.low < better.difference.value < better.difference.high  # type: ignore[operator]
    assert worse.difference.value == pytest.approx(-better.difference.value)  # type: ignore[operator]
    assert worse.difference.low < worse.difference.high < 0  # type: ignore[operator]
    assert judge(declared, evaluation(), (), better).passed  # type: ignore[arg-type]
    assert not judge(declared, evaluation(), (), worse).passed  # type: ignore[arg-type]


@pytest.mark.req("D10")
def test_rows_that_the_champion_learned_from_do_not_count() -> None:
    """On its own train rows the champion is perfect; on the others it is no better than a coin, and
    the challenger is.
    """
    target, challenger = binary(300, 1.0)
    champion = binary(300, 50.0, seed=1)[1]
    known = np.arange(300) < 150
    champion[known] = np.eye(2)[target[known]]
    declared = declaration(evaluate={"bootstrap": 60})
    fair = compare(declared, "1", challenger, champion, target, ~known)  # type: ignore[arg-type]
    assert (fair.rows, fair.excluded_rows) == (150, 150)
    assert judge(declared, evaluation(), (), fair).passed  # type: ignore[arg-type]
    unfair = compare(declared, "1", challenger, champion, target, np.ones(300, dtype=bool))  # type: ignore[arg-type]
    assert unfair.difference.value < fair.difference.value  # type: ignore[union-attr, operator]


@pytest.mark.req("D10")
@pytest.mark.parametrize(
    ("rows", "unseen", "problem"),
    [
        (
            100,
            29,
            "only 29 of 100 test rows are unseen by the champion, 30 are needed; 71 were left out",
        ),
        (100, 0, "only 0 of 100"),
        (20, 20, ""),
        (20, 19, "only 19 of 20"),
    ],
)
def test_too_few_unseen_rows_are_a_reason_not_a_figure(
    rows: int, unseen: int, problem: str
) -> None:
    target, predictions = binary(rows, 1.0)
    found = compare(
        declaration(evaluate={"bootstrap": 20}),
        "1",
        predictions,
        predictions,
        target,
        np.arange(rows) < unseen,
    )  # type: ignore[arg-type]
    assert problem in found.problem
    assert bool(found.problem) == bool(problem)


@pytest.mark.req("R2")
def test_a_metric_that_is_not_defined_on_the_rows_is_a_reason() -> None:
    target, predictions = binary(60, 1.0)
    found = compare(
        declaration(), "1", predictions, predictions, np.zeros_like(target), np.ones(60, dtype=bool)
    )  # type: ignore[arg-type]
    assert (
        found.problem
        == "auroc is not defined on the 60 rows that the champion has not learned from"
    )
