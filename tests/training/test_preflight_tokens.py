"""Preflight of a language model lets sound networks through and names every planted mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import PreflightError
from schemas.load import declare
from schemas.records import CheckResult, PreflightReport
from tests.training.corpora import SMALL, Corpus, made_up, make_corpus
from training.data.arrays.sequences import NO_TARGET
from training.data.arrays.shards import load_arrays
from training.models.build import build_model
from training.preflight.gradient_checks import check_gradients
from training.preflight.label_checks import check_tokens
from training.preflight.language import (
    check_causality,
    check_independence,
    check_initial_loss,
    check_segments,
    floor_losses,
)
from training.preflight.run import preflight, require_passed
from training.preflight.subject import Subject, first_rows


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BULKHEAD_ALLOW_IMPORTS", "tests")
    return


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"), made_up(60), {"context": 48})


def report_on(corpus: Corpus, module: str) -> PreflightReport:
    tree = corpus.run.declaration | {
        "model": {"kind": "custom", "path": f"tests.training.token_modules:{module}"}
    }
    return preflight(corpus.run.model_copy(update={"declaration": tree}))


def subject_of(corpus: Corpus, module: str) -> Subject:
    """What a check looks at: a user's network on the first train sequences."""
    declaration = declare(
        corpus.run.declaration
        | {"model": {"kind": "custom", "path": f"tests.training.token_modules:{module}"}}
    )
    network = build_model(declaration, corpus.run.statistics)
    probe = first_rows(load_arrays(corpus.run.arrays.train), 8)
    return Subject(declaration, corpus.run.statistics, network, probe, probe)


def found(report: PreflightReport, name: str) -> CheckResult:
    return next(r for r in report.checks.results if r.name == name)


@pytest.mark.req("M4")
@pytest.mark.parametrize("packing", [pytest.param("documents", marks=pytest.mark.long), "windows"])
def test_the_built_in_model_passes(tmp_path: Path, packing: str) -> None:
    corpus = make_corpus(
        tmp_path,
        made_up(60),
        {"context": 48, "packing": packing},
        model={**SMALL, "width": 32, "dropout": 0.1},
    )
    report = preflight(corpus.run)
    require_passed(report)
    verdicts = {r.name: r.verdict for r in report.checks.results}
    assert set(verdicts.values()) == {"pass"}, [
        r.summary for r in report.checks.results if r.verdict != "pass"
    ]
    assert {"tokens", "causality", "independence", "overfit"} <= set(verdicts) and (
        "segments" in verdicts
    ) == (packing == "documents")
    assert (
        report.expected_loss == pytest.approx(np.log(corpus.run.statistics.tokens.size))
        and abs(report.initial_loss - report.expected_loss) < 0.2
    )


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("module", "check", "words"),
    [
        ("Peeking", check_causality, "the network sees what it is asked for"),
        ("Leaking", check_segments, "the mask leaks"),
        ("Mixing", check_independence, "sequences of a batch mix"),
        ("Loud", lambda subject: check_initial_loss(subject)[0], "logits start too large"),
        ("Frozen", lambda subject: check_gradients(subject)[0], "not reached by the gradient"),
    ],
)
def test_a_planted_mistake_is_named(
    corpus: Corpus, module: str, check: Callable[[Subject], CheckResult], words: str
) -> None:
    result = check(subject_of(corpus, module))
    assert result.verdict == "fail" and words in result.summary and result.remedy
    assert check(subject_of(corpus, "Sound")).verdict == "pass"


@pytest.mark.req("M4")
def test_a_failed_check_stops_the_run_with_its_remedy(corpus: Corpus) -> None:
    report = report_on(corpus, "Blind")
    assert "could not be overfit" in found(report, "overfit").summary
    with pytest.raises(PreflightError, match="overfit: One batch could not"):
        require_passed(report)


@pytest.mark.req("M4")
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("LastOnly", "raw logits"),
        ("Unmasked", "not finite with the initial weights"),
        ("Counter", "forward"),
    ],
)
def test_a_network_that_cannot_be_run_ends_the_preflight(
    corpus: Corpus, module: str, words: str
) -> None:
    with pytest.raises(PreflightError, match=words):
        report_on(corpus, module)


@pytest.mark.req("M4")
def test_tokens_that_train_does_not_know_are_said(tmp_path: Path) -> None:
    sides = {"split": ["train"] * 40 + ["val"] * 10 + ["test"] * 10}
    texts = made_up(60)
    strange = [*texts[:40], *[f"日本語 {text}" for text in texts[40:]]]
    corpus = make_corpus(
        tmp_path / "a", strange, {}, {"split": "split"}, sides, split={"kind": "predefined"}
    )
    result = check_tokens(corpus.run.statistics.tokens, corpus.run.arrays)
    assert (
        result.verdict == "warn"
        and "unknown to train" in result.summary
        and "bytes" in result.remedy
    )
    alike = make_corpus(
        tmp_path / "b",
        ["a" * 9] * 60,
        {},
        {"doc": "ignore", "split": "split"},
        sides,
        split={"kind": "predefined"},
    )
    stats = alike.run.statistics.tokens.model_copy(update={"counts": (360,)})
    assert check_tokens(stats, alike.run.arrays).verdict == "fail"


def test_the_floor_is_what_the_beginnings_leave_open() -> None:
    """Three windows begin alike; after the second token one differs, and one that stands twice is
    no surprise at all.
    """
    tokens = np.array([[1, 5, 6, 1, 5, 7], [1, 5, 7, 0, 0, 0]])
    segments = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 0, 0, 0]])
    label = np.array([[5, 6, 2, 5, 7, 2], [5, 7, 2, NO_TARGET, NO_TARGET, NO_TARGET]])
    expected = np.zeros((2, 6))
    expected[0, 1], expected[0, 4], expected[1, 1] = np.log(3), np.log(1.5), np.log(1.5)
    np.testing.assert_allclose(floor_losses(tokens, segments, label), expected, atol=1e-12)
