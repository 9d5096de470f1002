"""A language model from text to report: trained for real on one rank, written up, and asked to go
on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.digest import write_atomic
from schemas.errors import ConfigError
from schemas.load import given_paths
from schemas.records import CheckReport, Prepared, SampleReport
from tests.training.corpora import SMALL, make_corpus
from tests.training.runs import keep_torch_settings, make_run
from tests.training.test_report import Page
from training.data.sources.source import fingerprint
from training.distributed.parallel import Parallel
from training.engine.trainer import train
from training.evaluation.evaluate import evaluate
from training.evaluation.text_samples import sample_run
from training.launch.stop_signal import StopSignal
from training.preflight.run import preflight
from training.report import language_model as report_text
from training.report.headline import ReportInputs
from training.report.page import write_report

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert('x')</script>\n\x07\u202eend"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    folder = tmp_path_factory.mktemp("texts")
    who, when = [f"g{number % 9}" for number in range(60)], list(range(60))
    corpus = make_corpus(
        folder,
        tokens={"samples": 3, "sample_tokens": 20},
        columns={"who": "group", "when": "time"},
        more={"who": who, "when": when},
        model={**SMALL, "width": 32},
        optimizer={"kind": "adamw", "lr": 0.01},
        train={"epochs": 5, "batch_size": 8},
    )
    write_atomic(folder / "run" / "resolved.json", corpus.run.model_dump_json())
    with keep_torch_settings():
        trained = train(corpus.run, folder / "run", Parallel(), StopSignal())
        tested = evaluate(
            corpus.run, trained.best_checkpoint, "test", folder / "run" / "evaluation"
        )
        checked = preflight(corpus.run)
    prepared = Prepared(
        key="0",
        directory=str(folder),
        source=fingerprint(corpus.declaration.data),
        validated=corpus.validated,
        split=corpus.split,
        checks=CheckReport(results=()),
        statistics=corpus.run.statistics,
        arrays=corpus.run.arrays,
    )
    return ReportInputs(
        run_id="texts",
        declaration=corpus.declaration,
        given=given_paths(corpus.declaration),
        prepared=prepared,
        preflight=checked,
        train=trained,
        metrics_path=folder / "run" / "metrics.jsonl",
        test=tested,
    )


def page_of(inputs: ReportInputs, folder: Path, **changes: Any) -> tuple[str, Page]:
    text = write_report(inputs.model_copy(update=changes), folder / "report.html").file.read_text(
        encoding="utf-8"
    )
    return text, Page(text)


@pytest.mark.req("P8")
def test_the_report_of_a_language_model_answers_all_its_questions(
    inputs: ReportInputs, tmp_path: Path
) -> None:
    _, page = page_of(inputs, tmp_path)
    for section, words in {
        "metrics": ("perplexity", "bits per character", "5-gram", "The test documents", "unigram"),
        "split": ("Mean characters", "Groups", "First"),
        "curves": ("Train", "Validation", "accuracy"),
        "checks": ("quote or repeat one another",),
        "predictions": ("Hardest and easiest documents", "Texts that the model made up", "seed 0"),
        "preflight": ("causality", "segments", "independence", "ln V"),
        "statistics": ("Vocabulary", "longest document", "space"),
        "configuration": ("tokens.context", "model.positions"),
    }.items():
        assert all(word in page.text[section] for word in words), section
    assert (
        page.open == []
        and "normalize.scale" not in page.text["configuration"]
        and "beats" in page.words.lower()
    )
    assert (
        write_report(inputs, tmp_path / "again.html").sha256
        == write_report(inputs, tmp_path / "more.html").sha256
    )


@pytest.mark.req("S1")
def test_a_made_up_text_is_shown_and_never_run(inputs: ReportInputs, tmp_path: Path) -> None:
    samples = SampleReport(
        texts=(HOSTILE, "", "x" * 5000),
        seed=3,
        molecules={"valid": 0.25},
        note="Of 4 SMILES RDKit reads 1.",
    )
    text, page = page_of(inputs, tmp_path, test=inputs.test.model_copy(update={"samples": samples}))
    assert (
        "<script" not in text
        and "alert('x')" in page.text["predictions"]
        and "\u202e" not in text
        and "\x07" not in text
    )
    assert (
        "ended at once" in page.text["predictions"]
        and "x" * 2001 not in text
        and "25.0 %" in page.text["predictions"]
    )
    noted = samples.model_copy(update={"molecules": {}, "note": "RDKit is not installed."})
    assert (
        "RDKit is not installed."
        in page_of(inputs, tmp_path, test=inputs.test.model_copy(update={"samples": noted}))[
            1
        ].text["predictions"]
    )


def test_tokens_are_named_so_that_a_reader_sees_them() -> None:
    assert [
        report_text.token_name(*pair)
        for pair in (("\n", "character"), ("\xe9", "bytes"), ("[O-]", "smiles"))
    ] == ["line break", "0xe9", "[O-]"]


@pytest.mark.req("T9")
def test_training_kept_what_is_best_for_whole_documents(inputs: ReportInputs) -> None:
    """The logged validation loss of the best weights is the evaluated one, and five epochs beat
    counting tokens.
    """
    loss = inputs.test.metrics["loss"].value
    assert (
        loss is not None
        and loss < inputs.test.baselines["unigram"]["loss"]
        and inputs.test.has_skill
    )
    run = RunDir(inputs)
    val = evaluate(run.spec, inputs.train.best_checkpoint, "val", run.folder / "val")
    assert val.metrics["loss"].value == pytest.approx(inputs.train.best_metric, rel=1e-6)


class RunDir:
    """The run's folder and what its `resolved.json` says."""

    def __init__(self, inputs: ReportInputs) -> None:
        from schemas.records import RunSpec

        self.folder = inputs.metrics_path.parent  # type: ignore[union-attr]
        self.spec = RunSpec.model_validate_json((self.folder / "resolved.json").read_bytes())


@pytest.mark.long
@pytest.mark.req("R4")
def test_the_command_line_goes_on_with_a_prompt(inputs: ReportInputs, tmp_path: Path) -> None:
    """By the best weights of a run directory; seeds decide; a run of another task is refused."""
    from training.data.serving_text import Sampling

    folder = RunDir(inputs).folder
    expected = sample_run(folder, "the cat", 3, Sampling(15, 0.8, 6, 5))
    assert len(set(expected.texts)) == 3 and expected == sample_run(
        folder, "the cat", 3, Sampling(15, 0.8, 6, 5)
    )
    options = [
        "--prompt",
        "the cat",
        "--count",
        "3",
        "--max-new-tokens",
        "15",
        "--temperature",
        "0.8",
        "--top-k",
        "6",
        "--seed",
        "5",
        "--json",
    ]
    environment = os.environ | {"BULKHEAD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flows.cli", "sample", str(folder), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(expected.model_dump_json())
    make_run(tmp_path / "other")
    write_atomic(tmp_path / "other" / "result.json", inputs.train.model_dump_json())
    with pytest.raises(ConfigError, match="expected a run of a language model"):
        sample_run(tmp_path / "other", "", 1, Sampling(1))
