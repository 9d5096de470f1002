"""The report: complete, safe to open, and honest in its words."""

from __future__ import annotations

import doctest
import itertools
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.legend import Legend
from sklearn.metrics import confusion_matrix, roc_curve

from schemas.config import Declaration, Model, Optimizer, Schedule
from schemas.digest import file_ref, sha256_file
from schemas.errors import DataError
from schemas.records import CheckReport, CheckResult, GateReport, Interval, Registered
from tests.training.report_inputs import CLASSES, DAY, HOSTILE, START, build
from training import formatting as report_format
from training.evaluation import next_step
from training.report import appendix as report_appendix
from training.report import blocks as report_blocks
from training.report import curves as report_curves
from training.report import plots as report_plots
from training.report import prediction_plots as report_prediction_plots
from training.report import reasons as report_reasons
from training.report import svg as report_svg
from training.report.curve_section import curve_blocks
from training.report.curves import Event, read_curves, read_history
from training.report.data import read_predictions, read_sides
from training.report.headline import ReportInputs, headline
from training.report.page import write_report
from training.report.reasons import REASONS
from training.report.sections import standing, undecided

KINDS = ("binary", "multiclass", "regression")
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The elements of a page: balance, ids, links, text by section, text inside SVG, accessible
    names.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.drawn = ""
        self.section = "head"
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.section = dict(attrs).get("id") or self.section if tag == "section" else self.section
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "svg" in self.open:
            self.drawn += data
        elif "style" not in self.open:
            self.text[self.section] = " ".join(
                (self.text.get(self.section, "") + " " + data).split()
            )

    @property
    def words(self) -> str:
        return " ".join(self.text.values())


def render(inputs: ReportInputs, folder: Path) -> tuple[str, Page]:
    ref = write_report(inputs, folder / "report.html")
    text = ref.file.read_text(encoding="utf-8")
    return text, Page(text)


def no_search(legend: Legend, *given: Any) -> tuple[float, float]:
    raise AssertionError(
        "a legend looks for a free place, which takes seconds where much is drawn: name its place"
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ReportInputs, str, Page]]:
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Legend, "_find_best_position", no_search)
        for kind in KINDS:
            folder = tmp_path_factory.mktemp(kind)
            inputs = build(folder / "run", kind)
            found[kind] = (inputs, *render(inputs, folder))
    return found


@pytest.fixture(scope="module")
def binary(made: dict[str, tuple[ReportInputs, str, Page]]) -> ReportInputs:
    return made["binary"][0]


# --------------------------------------------------------------------------------------------- page


@pytest.mark.req("P8")
@pytest.mark.parametrize("kind", KINDS)
def test_page_is_whole_and_answers_in_order(made: dict[str, Any], kind: str) -> None:
    inputs, _, page = made[kind]
    assert page.open == []
    sections = [a["id"] for t, a in page.tags if t == "section"]
    assert sections == [
        "metrics",
        "split",
        "checks",
        "curves",
        "predictions",
        "preflight",
        "statistics",
        "configuration",
        "provenance",
    ]
    value = inputs.test.metrics[inputs.declaration.metric]
    shown = (
        f"{report_format.number(value.value)} (95 % interval {report_format.number(value.low)} to"
        f" {report_format.number(value.high)})"
    )
    assert shown in page.text["head"]
    assert (
        "better than constant" in page.text["head"]
        and "version 2, alias champion" in page.text["head"]
    )
    for name, result in inputs.test.baselines.items():
        assert (
            f"{name} " in page.text["metrics"]
            and report_format.number(result[inputs.declaration.metric]) in page.text["metrics"]
        )
    assert (
        inputs.test.verdict in page.text["metrics"]
        and "The first 30 of 40 groups" in page.text["metrics"]
    )
    assert (
        "cuts validation from 2016-01-22; test from 2017-02-25" in page.text["split"]
        and "embargo 14 d" in page.text["split"]
    )
    assert (
        "inside the embargo after a cut 310" in page.text["split"]
        and "the side of its time disagree 78" in page.text["split"]
    )
    assert (
        "3 test rows equal a train row" in page.text["checks"]
        and "What these checks cannot decide" in page.text["checks"]
    )
    assert "At the kept step, 1,080" in page.text["curves"] and "Healthy." in page.text["curves"]
    assert "gradient norm 41.2 is 12 times its median" in page.text["curves"]
    assert (
        "initial loss 0.7024" in page.text["preflight"]
        and "expected of an uninformed model 0.6931" in page.text["preflight"]
    )
    assert (
        "The first 30 of 48 numeric features." in page.text["statistics"]
        and "device_firmware constant in train" in page.text["statistics"]
    )
    assert (
        "train.epochs 40 given" in page.text["configuration"]
        and "train.patience 8 default" in page.text["configuration"]
    )
    assert (
        f'load_model("models:/{kind}-visits@champion")' in page.text["provenance"]
        and inputs.train.model_sha256 in page.text["provenance"]
    )


@pytest.mark.req("P8")
@pytest.mark.parametrize("kind", KINDS)
def test_page_needs_nothing_else(made: dict[str, Any], kind: str) -> None:
    _, text, page = made[kind]
    loaded = [
        a[k]
        for t, a in page.tags
        for k in ("src", "href", "xlink:href", "action", "data")
        if a.get(k) and t != "a"
    ]
    assert all(v.startswith(("#", "data:image/png;base64,")) for v in loaded)
    assert {t for t, _ in page.tags} & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "img",
        "form",
    } == set()
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    policy = next(
        a["content"]
        for t, a in page.tags
        if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none'")
    assert not [k for _, a in page.tags for k in a if k.startswith("on")]


@pytest.mark.req("P8")
@pytest.mark.parametrize("kind", KINDS)
def test_page_is_accessible_and_themed(made: dict[str, Any], kind: str) -> None:
    _, text, page = made[kind]
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = [
        v[1:]
        for _, a in page.tags
        for k in ("href", "xlink:href")
        if (v := a.get(k) or "").startswith("#")
    ]
    assert set(links) <= set(ids) and set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    pictures = [a for t, a in page.tags if t == "svg"]
    expected = {"binary": 11, "multiclass": 9, "regression": 10}[kind]
    assert len(pictures) == expected and all(
        a["role"] == "img" and len(a["aria-label"] or "") > 20 for a in pictures
    )
    assert not re.search(r"(?:fill|stroke): #", text), (
        "a colour that does not follow the page's theme"
    )
    assert "$\\mathdefault" not in page.drawn


@pytest.mark.req("S1")
@pytest.mark.parametrize("kind", KINDS)
def test_text_from_data_is_shown_and_never_run(made: dict[str, Any], kind: str) -> None:
    _, text, page = made[kind]
    assert (
        "<script" not in text.lower()
        and HOSTILE in page.text["metrics"]
        and HOSTILE in page.text["checks"]
        and HOSTILE in page.text["provenance"]
    )
    assert "javascript:alert(1)" in page.text["provenance"]
    assert [
        a["href"] for t, a in page.tags if t == "a" and not (a["href"] or "").startswith("#")
    ] == ["http://127.0.0.1:5000/#/experiments/1/runs/ab12"]
    if kind == "multiclass":
        assert (
            HOSTILE in page.text["split"]
            and HOSTILE in page.text["predictions"]
            and HOSTILE[:12] in page.drawn
        )


def test_hostile_text_in_pictures(binary: ReportInputs) -> None:
    name = "$\\frac{$<script>\x00\u202e患者 ]]> --> \" '"
    picture = report_prediction_plots.recall_by_class(
        [name, "患者 -->"], np.array([3.0, 4.0]), np.array([5.0, 5.0])
    )
    page = Page(str(picture.svg))
    assert (
        page.open == []
        and {t for t, _ in page.tags} & {"script"} == set()
        and "$\\frac{$<script>·…" in page.drawn
        and "患者 -->" in page.drawn
        and "\x00" not in picture.svg
    )


@pytest.mark.req("P8")
def test_same_inputs_give_the_same_bytes(made: dict[str, Any], tmp_path: Path) -> None:
    for kind, (inputs, text, _) in made.items():
        ref = write_report(inputs, tmp_path / f"{kind}.html")
        assert ref.file.read_text(encoding="utf-8") == text and ref.sha256 == sha256_file(ref.path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{k}.html" for k in sorted(KINDS)]


@pytest.mark.req("P8")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_run_may_lack(tmp_path: Path, kind: str) -> None:
    inputs = build(tmp_path / "run", kind, rows=600, time=False, groups=False, optional=False)
    _, page = render(inputs, tmp_path)
    assert (
        "no baseline was fitted" in page.text["head"]
        and "Not registered: the run did not come to the registry." in page.text["head"]
    )
    assert (
        "Not compared." in page.text["metrics"]
        and "Groups" not in page.text["split"]
        and "First" not in page.text["split"]
    )
    assert "Rows per side" in page.text[
        "split"
    ] and "Rows per side: train 420, validation 90, test 90." in next(
        a["aria-label"] or "" for t, a in page.tags if t == "svg"
    )
    assert (
        "No learning curves were logged." in page.text["curves"]
        and "Not read." in page.text["curves"]
        and "None was logged." in page.text["curves"]
    )
    assert (
        "No overfit curve was recorded." in page.text["preflight"]
        and "expected of an uninformed model –" in page.text["preflight"]
    )
    assert (
        "This run registered no version" in page.text["provenance"]
        and "load_model" not in page.text["provenance"]
    )


def test_derived_columns_and_tracking_address_are_said(
    binary: ReportInputs, tmp_path: Path
) -> None:
    data = binary.declaration.data.model_copy(update={"derive": {"creatinine": "crea / 88.4"}})
    inputs = change(
        binary,
        declaration=binary.declaration.model_copy(update={"data": data}),
        links={"MLflow tracking": "sqlite:////a/mlflow.db"},
    )
    text = render(inputs, tmp_path)[1].text["provenance"]
    assert "Columns it needs (50;" in text
    assert (
        'mlflow.set_tracking_uri("sqlite:////a/mlflow.db")' in text
        and "creatinine: computed by data.derive" in text
    )


def test_inputs_round_trip_as_json(binary: ReportInputs) -> None:
    again = ReportInputs.model_validate_json(binary.model_dump_json(by_alias=True))
    assert headline(again) == headline(binary) and again.metrics_path == binary.metrics_path


@pytest.mark.long
@pytest.mark.req("P8")
@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_a_hundred_thousand_rows_make_no_large_page(tmp_path: Path, kind: str) -> None:
    text, page = render(build(tmp_path / "run", kind, rows=100_000), tmp_path)
    assert len(text) < 2_000_000
    if kind == "regression":
        assert (
            "4,000 of 100,000 rows are drawn, chosen at random with a fixed seed."
            in page.text["predictions"]
        )


def test_import_is_light_and_keeps_the_layers() -> None:
    code = (
        "import sys, training.report.page;"
        " print(sorted({'matplotlib', 'torch', 'sklearn', 'pandas',"
        " 'prefect', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ----------------------------------------------------------------------------------------- headline


def change(inputs: ReportInputs, **updates: Any) -> ReportInputs:
    return inputs.model_copy(update=updates)


@pytest.mark.req("P8")
def test_headline_says_why_nothing_was_registered(binary: ReportInputs) -> None:
    gate = GateReport(
        passed=False, verdict="AUROC 0.61 is below the threshold 0.65.", conditions=()
    )
    refused = Registered(
        registered=False,
        name="x",
        version=None,
        uri=None,
        alias=None,
        verdict="the gate did not pass: AUROC 0.61 is below 0.65",
    )
    assert headline(change(binary, gate=gate, registered=refused)).sentence.endswith(
        "Not registered: the gate did not pass: AUROC 0.61 is below 0.65."
    )
    assert headline(change(binary, gate=gate, registered=None)).sentence.endswith(
        "Not registered: AUROC 0.61 is below the threshold 0.65."
    )
    assert headline(change(binary, gate=None, registered=None)).tone == "warn"


def test_checks_that_warn_are_named_in_the_verdict(binary: ReportInputs) -> None:
    results = tuple(
        r.model_copy(update={"verdict": "warn" if n < 2 else "pass"})
        for n, r in enumerate(binary.prepared.checks.results)
    )
    checks = binary.prepared.checks.model_copy(update={"results": results})
    prepared = binary.prepared.model_copy(update={"checks": checks})
    names = [r.name.replace("_", " ") for r in results[:2]]
    sentence = headline(change(binary, prepared=prepared)).sentence
    assert f"2 warned; warnings: {names[0]}, {names[1]}. " in sentence
    passed = checks.model_copy(
        update={"results": tuple(r.model_copy(update={"verdict": "pass"}) for r in results)}
    )
    prepared = binary.prepared.model_copy(update={"checks": passed})
    assert "warnings" not in headline(change(binary, prepared=prepared)).sentence


@pytest.mark.req("P8")
def test_headline_says_when_there_is_no_skill(binary: ReportInputs) -> None:
    test = binary.test.model_copy(
        update={
            "has_skill": False,
            "baselines": {"constant": {"auroc": 0.9}, "linear": {"auroc": None}},
        }
    )
    found = headline(change(binary, test=test))
    assert (
        found.tone == "bad"
        and "no skill: worse than constant (0.9000), not comparable with linear (–)"
        in found.sentence
    )


def test_headline_colours_follow_the_findings(binary: ReportInputs) -> None:
    def with_checks(*verdicts: Any) -> ReportInputs:
        results = tuple(
            CheckResult(name=f"c{i}", verdict=v, summary="s") for i, v in enumerate(verdicts)
        )
        return change(
            binary,
            prepared=binary.prepared.model_copy(update={"checks": CheckReport(results=results)}),
        )

    assert headline(with_checks("pass", "allowed")).tone == "good"
    assert headline(with_checks("pass", "warn")).tone == "warn"
    assert headline(with_checks("pass", "fail")).tone == "bad"
    assert "2 checks: 1 passed, 1 failed." in headline(with_checks("pass", "fail")).sentence
    assert "No checks were run." in headline(with_checks()).sentence


def test_undefined_metric_is_said_not_hidden(binary: ReportInputs, tmp_path: Path) -> None:
    test = binary.test.model_copy(
        update={"metrics": {**binary.test.metrics, "auroc": Interval(value=None)}}
    )
    inputs = change(binary, test=test)
    assert headline(inputs).sentence.startswith("AUROC is not defined on the 1,350 test rows")
    _, page = render(inputs, tmp_path)
    assert "AUROC ↑ – –" in page.text["metrics"]


@given(st.floats(-5, 5), st.floats(0, 2), st.floats(0, 2), st.floats(-5, 5), st.booleans())
def test_standing_is_mirrored_by_direction(
    value: float, below: float, above: float, baseline: float, greater: bool
) -> None:
    found = standing(
        Interval(value=value, low=value - below, high=value + above), baseline, greater
    )
    mirrored = standing(
        Interval(value=-value, low=-value - above, high=-value + below), -baseline, not greater
    )
    assert found == mirrored
    assert (found == "about equal") == (value - below <= baseline <= value + above)
    assert found != "better" or (baseline < value) == greater


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_paired_difference_decides_where_it_is_known(
    middle: float, below: float, above: float, greater: bool
) -> None:
    difference = Interval(value=middle, low=middle - below, high=middle + above)
    found = standing(Interval(value=0.7, low=0.1, high=0.9), 0.69, greater, difference)
    expected = (
        "about equal"
        if middle - below <= 0 <= middle + above
        else "better"
        if (middle > 0) == greater
        else "worse"
    )
    assert found == expected


def test_badges_and_headline_follow_the_paired_differences(
    binary: ReportInputs, tmp_path: Path
) -> None:
    test = binary.test.model_copy(
        update={"differences": {"boosting": Interval(value=0.004, low=0.001, high=0.007)}}
    )
    assert (
        "better than constant (0.5000), linear (0.7203) and boosting (0.7781)"
        in headline(change(binary, test=test)).sentence
    )
    _, page = render(change(binary, test=test), tmp_path)
    assert page.text["metrics"].count("model is better") == 3


def test_standing_without_interval_or_value() -> None:
    assert standing(Interval(value=0.7), 0.6, True) == "better"
    assert standing(Interval(value=0.7), 0.6, False) == "worse"
    assert (
        standing(Interval(value=None), 0.6, True)
        == standing(Interval(value=0.7), None, True)
        == "unknown"
    )


# ---------------------------------------------------------------------------------------- checks


def test_open_questions_follow_the_declared_roles(binary: ReportInputs, tmp_path: Path) -> None:
    bare = build(tmp_path, "binary", rows=300, time=False, groups=False)
    with_roles, without = (" ".join(undecided(i.declaration, i.prepared)) for i in (binary, bare))
    assert "no group is declared" in without and "no time is declared" in without
    assert "Declared: patient." in with_roles and "no time is declared" not in with_roles
    assert "never seen" not in with_roles + without
    overlap = CheckResult(
        name="group_overlap", verdict="allowed", summary="s", reason="the same patients come back"
    )
    allowed = binary.prepared.model_copy(update={"checks": CheckReport(results=(overlap,))})
    assert "a patient that it has never seen: some are on two sides" in " ".join(
        undecided(binary.declaration, allowed)
    )


def test_no_report_calls_the_data_clean(made: dict[str, Any]) -> None:
    for _, _, page in made.values():
        assert not re.search(r"\bclean\b|leak-free|no leak", page.words, re.I)


def test_findings_come_first_with_their_evidence(binary: ReportInputs) -> None:
    failed = CheckResult(
        name="z",
        verdict="fail",
        summary="s",
        evidence=tuple({"id": i, "why": None} for i in range(25)),
        remedy="do this",
        columns=tuple("abcdefghijklmnopqrstuvwxyz"),
    )
    cards = report_blocks.checks((*binary.prepared.checks.results, failed)).checks
    assert [c.badge.text for c in cards] == ["failed", "warning", "allowed", "passed", "passed"]
    assert (
        cards[0].open
        and cards[0].remedy == "do this"
        and cards[0].columns.endswith("… (26 columns)")
    )
    assert (
        cards[0].evidence is not None
        and len(cards[0].evidence.rows) == 10
        and cards[0].evidence.note == "The first 10 of 25 rows of evidence."
    )
    assert cards[2].reason.startswith("The fleet") and cards[2].remedy == ""


# ---------------------------------------------------------------------------------------- curves


def falling(n: int, start: float, end: float, rate: float = 4.0) -> list[float]:
    return [end + (start - end) * float(np.exp(-rate * i / n)) for i in range(n)]


CURVES = {
    "healthy": (falling(20, 0.65, 0.40, 8), falling(20, 0.66, 0.43, 8), 19, False, "levelled off"),
    "gap": (
        falling(20, 0.65, 0.05),
        falling(20, 0.66, 0.45),
        19,
        True,
        "knows its train rows better",
    ),
    "rise": (
        falling(20, 0.65, 0.40),
        [*falling(10, 0.66, 0.42), *(0.43 + 0.008 * i for i in range(10))],
        9,
        True,
        "went on falling",
    ),
    "nothing learned": ([0.69] * 12, [0.69] * 12, 5, True, "Either the features say little"),
    "still falling": (
        [0.65 - 0.02 * i for i in range(12)],
        [0.66 - 0.02 * i for i in range(12)],
        11,
        False,
        "More epochs would probably improve it",
    ),
    "few": (
        falling(3, 0.6, 0.3),
        falling(3, 0.6, 0.3),
        2,
        False,
        "3 evaluations are too few to say",
    ),
}
KIND_OF = {
    "healthy": "healthy",
    "gap": "overfitting",
    "rise": "overfitting",
    "nothing learned": "underfitting",
    "still falling": "underfitting",
    "few": "too short",
}


@pytest.mark.req("P8")
@pytest.mark.parametrize("name", CURVES)
def test_planted_curves_are_read(name: str) -> None:
    train, val, kept, ended_early, words = CURVES[name]
    found = read_curves(train, val, kept, 0.6931, ended_early)
    assert found.kind == KIND_OF[name] and words in found.words


def annealed(n: int, start: float, end: float, rate: float) -> list[float]:
    """A loss that falls with the sum of the learning rates of half a cosine."""
    steps = np.cumsum(0.5 * (1 + np.cos(np.pi * np.arange(n) / n)))
    return [float(end + (start - end) * np.exp(-rate * s)) for s in steps]


@pytest.mark.req("P8")
def test_a_schedule_that_ended_before_the_learning_is_underfitting_with_its_slope() -> None:
    """The end of a cosine is flat whatever is left to learn; the half before it is not."""
    cut = annealed(20, 0.68, 0.40, 0.12)
    found = read_curves(cut, cut, 19, 0.6931, False, annealed=True)
    assert (found.kind, found.cut_short) == ("underfitting", True)
    fall, slope = cut[9] - cut[19], (cut[19] - cut[9]) / 10
    assert "The schedule ended, not the learning" in found.words
    assert f"{slope:+.2g} from one evaluation to the next" in found.words
    assert found.figures["end_fall"] == pytest.approx(fall / 0.6931) and fall / cut[19] > 0.02
    done = annealed(20, 0.68, 0.40, 0.9)
    assert read_curves(done, done, 19, 0.6931, False, annealed=True).kind == "healthy"
    assert read_curves(cut, cut, 19, 0.6931, True, annealed=True).kind == "healthy"
    rest = [0.12 - 0.001 * i for i in range(20)]  # 0.7 % of U in the last quarter, 5 % of the loss
    assert read_curves(rest, rest, 19, 1.0, False).kind == "underfitting"


@pytest.mark.req("P8")
def test_the_curves_never_call_healthy_what_the_verdict_calls_unfinished(tmp_path: Path) -> None:
    inputs = build(tmp_path, "binary")
    train = inputs.train.model_copy(update={"best_step": inputs.train.steps, "status": "finished"})
    note = next_step.unfinished(inputs.declaration, train)
    behind = inputs.test.model_copy(update={"verdict": f"It is behind.{note}"})
    losses = falling(20, 0.66, 0.43, 12)
    steps = np.linspace(1, train.steps, 20).astype(int)
    points = tuple(
        report_curves.Point(int(s), None, {"train_eval/loss": v, "val/loss": v})
        for s, v in zip(steps, losses, strict=True)
    )
    history = report_curves.History(evaluations=points)
    for test, kind in ((inputs.test, "Healthy"), (behind, "Underfitting")):
        callout = curve_blocks(inputs.declaration, history, train, inputs.preflight, test)[0]
        assert callout.title == kind
    line = next_step.longer_line(inputs.declaration, train)
    assert note.endswith(f"set {line}.") and callout.text.endswith(f"Set {line}.")


def test_still_falling_is_no_finding_when_patience_ended_the_run() -> None:
    train, val, kept, _, _ = CURVES["still falling"]
    assert read_curves(train, val, kept, 0.6931, ended_early=True).kind == "healthy"


def test_rise_of_both_losses_is_not_called_overfitting() -> None:
    both = [*falling(10, 0.66, 0.42), *(0.43 + 0.008 * i for i in range(10))]
    assert read_curves([v - 0.01 for v in both], both, 9, 0.6931, True).kind == "healthy"


@given(st.sampled_from(sorted(CURVES)), st.floats(1e-3, 1e4))
def test_reading_does_not_depend_on_the_scale_of_the_loss(name: str, scale: float) -> None:
    train, val, kept, ended_early, _ = CURVES[name]
    assert (
        read_curves(
            [scale * v for v in train], [scale * v for v in val], kept, scale * 0.6931, ended_early
        ).kind
        == KIND_OF[name]
    )


def test_history_survives_kills_and_resumes(tmp_path: Path) -> None:
    def step(number: int, loss: float | None) -> str:
        return json.dumps(
            {
                "kind": "step",
                "step": number,
                "epoch": 1,
                "time": 1.0,
                "values": {"train/loss": loss, "lr": 0.1},
            }
        )

    event = json.dumps({"kind": "event", "step": 40, "message": "resumed"})
    path = tmp_path / "metrics.jsonl"
    lines = [
        step(20, 0.5),
        step(40, 9.0),
        event,
        event,
        step(40, 0.4),
        step(60, float("nan")),
        step(80, None),
        '{"kind": "step"}',
        "[1]",
        '{"kind": "ev',
    ]
    path.write_text("\n".join(lines))
    found = read_history(path)
    assert found.series("steps", "train/loss") == ([20, 40], [0.5, 0.4])
    assert found.series("steps", "lr")[0] == [20, 40, 60, 80]
    assert found.events == (Event(40, "resumed"),) and found.unreadable == 3
    assert read_history(tmp_path / "none.jsonl") == read_history(None) == report_curves.History()


def test_long_runs_keep_their_spikes(tmp_path: Path) -> None:
    points = [
        report_curves.Point(i, 1, {"grad_norm": 500.0 if i == 7_777 else 1.0 + i % 3})
        for i in range(20_000)
    ]
    picture = report_plots.step_curve(
        report_curves.History(steps=tuple(points)), "grad_norm", "gradient norm", "g", log=True
    )
    assert (
        picture is not None
        and len(picture.svg) < 40_000
        and "largest value of its stretch" in picture.caption
    )
    steps, norms = (
        np.array(v, dtype=float)
        for v in report_curves.History(steps=tuple(points)).series("steps", "grad_norm")
    )
    x, y = report_plots.peaks(steps, norms, 500)
    assert len(x) == len(y) == 500 and y.max() == 500.0 and abs(x[y.argmax()] - 7_777) <= 40


# ------------------------------------------------------------------------------------ configuration


SEVERAL = [
    {"kind": "multilabel"},
    {
        "kind": "multitask",
        "labels": {
            "y": {"kind": "regression", "loss": "huber"},
            "z": "multiclass",
            "b": {"weight": 2, "pos_weight": "balanced"},
        },
    },
]


def kinds_of(union: Any) -> list[str]:
    return [variant.model_fields["kind"].default for variant in get_args(get_args(union)[0])]


def variants() -> list[dict[str, Any]]:
    columns = {"y": "label", "g": "group", "t": "time", "s": "split", "*": "feature"}
    splits = (
        "random",
        "group",
        "stratified",
        "stratified_group",
        "time",
        "group_time",
        "predefined",
    )
    schedules = [{"kind": kind} for kind in kinds_of(Schedule)]
    models = [
        {"kind": kind} | ({"path": "a.b:C"} if kind == "custom" else {})
        for kind in kinds_of(Model)
        # auto takes no other optimizer and schedule: the tree without a model has it
        if kind not in ("causal_transformer", "auto")
    ]
    longest = itertools.zip_longest(
        splits, models, ("binary", "multiclass", "regression"), kinds_of(Optimizer), schedules
    )
    base = {"name": "v", "data": {"uri": "x.csv", "columns": columns}}
    labels = {
        "name": "v",
        "data": {
            "uri": "x.csv",
            "columns": {"y": "label", "z": "label", "b": "label", "*": "feature"},
        },
        "split": {"kind": "random"},
    }
    spark = {"uri": "x.parquet", "engine": "spark", "columns": columns | {"i": "id"}}
    return (
        [
            TEXTS,
            {"name": "v", "data": spark, "split": {"kind": "random"}, "task": {"kind": "binary"}},
        ]
        + [{**labels, "task": task} for task in SEVERAL]
        + [{**labels, "task": SEVERAL[0], "ensemble": {"members": 5}}]
        + [{**base, "split": {"kind": "random"}, "task": {"kind": "binary"}, **CHOSEN}]
        + [
            {
                **base,
                "split": {"kind": s or "random"},
                "model": m or {"kind": "mlp"},
                "task": {"kind": t or "regression"},
                "optimizer": {"kind": o or "sgd"},
                "schedule": c or {"kind": "constant"},
                "train": {"precision": "fp16", "mode": "elastic", "ema": {}} if o == "adam" else {},
            }
            for s, m, t, o, c in longest
        ]
    )


CHOSEN: dict[str, Any] = {
    "search": {},
    "evaluate": {"threshold": {"for": "f1"}, "costs": {}, "calibrate": "temperature"},
}
TEXTS = {
    "name": "v",
    "data": {"uri": "x.csv", "columns": {"t": "text", "*": "ignore"}},
    "split": {"kind": "random"},
    "task": {"kind": "causal_lm"},
}


GIVEN = {"name", "data.uri", "task.kind", "split.kind", "model.path"}


@pytest.mark.req("P8")
@pytest.mark.parametrize(
    "tree",
    variants(),
    ids=lambda t: f"{t['split']['kind']}-{t.get('model', {}).get('kind')}-{t['task']['kind']}",
)
@pytest.mark.parametrize("source_format", ["csv", "parquet"])
def test_every_default_has_its_reason(
    binary: ReportInputs, tree: dict[str, Any], source_format: str
) -> None:
    prepared = binary.prepared.model_copy(
        update={"source": binary.prepared.source.model_copy(update={"format": source_format})}
    )
    given = GIVEN | {f"task.labels.{name}" for name in tree["task"].get("labels", ())}
    given |= {"evaluate.threshold.for"} if "evaluate" in tree else set()
    found = report_reasons.settings(Declaration.model_validate(tree), given, prepared)
    assert [s.path for s in found if not s.reason and not s.given] == []
    assert {s.path for s in found if s.given} <= given and all(
        s.reason == "" for s in found if s.given
    )
    assert any(s.path.startswith("data.csv.") for s in found) == (source_format == "csv")


def test_no_reason_is_left_without_a_setting(binary: ReportInputs) -> None:
    trees = [
        *variants(),
        {
            **variants()[-1],
            "loss": {"kind": "huber"},
            "split": {"kind": "stratified"},
            "task": {"kind": "regression"},
        },
    ]
    trees += [
        {**trees[-1], "loss": {"kind": loss}, "task": {"kind": task}}
        for loss, task in (
            ("tweedie", "regression"),
            ("focal", "binary"),
            ("ordinal", "multiclass"),
        )
    ]
    trees.append(
        {
            **trees[-1],
            "data": {**trees[-1]["data"], "group_by": {"duplicates": "features"}},
            "split": {"kind": "group"},
        }
    )
    csv = binary.prepared.model_copy(
        update={"source": binary.prepared.source.model_copy(update={"format": "csv"})}
    )
    known = {
        s.path
        for t in trees
        for s in report_reasons.settings(Declaration.model_validate(t), (), csv)
    }
    assert {key.partition("=")[0] for key in REASONS} - known == set()


def test_given_covers_what_is_beneath_it_and_what_holds_it(binary: ReportInputs) -> None:
    found = {
        s.path: s
        for s in report_reasons.settings(
            binary.declaration,
            ("train", "split.fractions", "checks.allow.0.check"),
            binary.prepared,
        )
    }
    assert (
        found["train.patience"].given
        and found["split.fractions.val"].given
        and found["checks.allow"].given
    )
    assert not found["split.seed"].given and not found["split.group_fractions.val"].given
    assert (
        found["train.metric"].value == "auroc"
        and found["loss.kind"].value == "bce (auto)"
        and found["train.micro_batch_size"].value == "128 (batch_size / ranks)"
    )
    assert (
        found["split.embargo"].value == "14 d"
        and "normalize.target" not in found
        and "loss.delta" not in found
    )


@pytest.mark.req("S1")
def test_passwords_in_addresses_are_masked(binary: ReportInputs) -> None:
    tracking = binary.declaration.tracking.model_copy(
        update={"uri": "postgresql://ann:hunter2@db/mlflow"}
    )
    found = report_reasons.settings(
        binary.declaration.model_copy(update={"tracking": tracking}),
        ("tracking.uri",),
        binary.prepared,
    )
    assert {s.path: s.value for s in found}["tracking.uri"] == "postgresql://***@db/mlflow"


def test_reasons_follow_the_task(made: dict[str, Any]) -> None:
    for kind, word in (
        ("binary", "ranking without a threshold"),
        ("multiclass", "counts every class alike"),
        ("regression", "in the label's units"),
    ):
        assert word in made[kind][2].text["configuration"]


# --------------------------------------------------------------------------------------- data files


def test_split_table_is_counted_in_the_files(made: dict[str, Any]) -> None:
    for kind, (inputs, _, page) in made.items():
        sides = read_sides(inputs.prepared)
        for name, side in sides.items():
            arrays = inputs.prepared.arrays.side(name)
            ids, label = pq.read_table(arrays.ids.path), np.load(arrays.arrays["label"].path)
            assert side.rows == len(label) and side.groups == len(set(ids["__group"].to_pylist()))
            assert (side.first, side.last) == (
                min(ids["__time"].to_pylist()),
                max(ids["__time"].to_pylist()),
            )
            if kind == "regression":
                assert side.label_mean == pytest.approx(
                    label.astype(float).mean() * 181.4 + 189.5
                ) and side.label_std == pytest.approx(label.astype(float).std() * 181.4)
            else:
                assert side.class_counts is not None and side.class_counts.tolist() == [
                    int((label == c).sum()) for c in range(len(CLASSES[kind]))
                ]
        positive = np.load(inputs.prepared.arrays.test.arrays["label"].path).mean()
        assert kind != "binary" or (
            f"Share of deteriorates = 1 train 6,300 70.0 % {sides['train'].groups:,}"
            in page.text["split"]
            and f"{100 * positive:.1f} %" in page.text["split"]
        )


def test_predictions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    inputs = build(tmp_path, "multiclass", rows=300)
    path = inputs.test.predictions.file
    whole = pq.read_table(path)

    def refused(change: Any, message: str) -> None:
        pq.write_table(change(whole), path)
        with pytest.raises(DataError, match=message):
            read_predictions(
                inputs.test.model_copy(update={"predictions": file_ref(path)}), inputs.prepared
            )

    refused(
        lambda t: t.drop_columns(["label"]),
        r"expected columns label and prediction, lacks \['label'\]",
    )
    refused(
        lambda t: t.drop_columns(["probability_Jogging"]),
        "expected 6 columns probability_<class>, found 5",
    )
    refused(
        lambda t: t.set_column(2, "label", [["flying"] * t.num_rows]),
        "found flying and 0 nulls; evaluate again",
    )
    refused(
        lambda t: t.set_column(2, "label", [[None] * t.num_rows]), "and .* nulls; evaluate again"
    )


def test_times_are_matched_by_id_not_by_place(tmp_path: Path) -> None:
    inputs = build(tmp_path, "regression", rows=300)
    path, expected = inputs.test.predictions.file, read_predictions(inputs.test, inputs.prepared)
    order = np.random.default_rng(1).permutation(inputs.test.rows)
    pq.write_table(pq.read_table(path).take(order), path)
    found = read_predictions(inputs.test, inputs.prepared)
    assert (
        found.time is not None
        and expected.time is not None
        and np.array_equal(found.time, expected.time[order])
        and np.array_equal(found.label, expected.label[order])
    )


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_confusion_equals_scikit_learn(made: dict[str, Any], kind: str) -> None:
    inputs, _, page = made[kind]
    rows = read_predictions(inputs.test, inputs.prepared)
    found = report_appendix.confusion(rows, len(CLASSES[kind]))
    assert np.array_equal(
        found, confusion_matrix(rows.label, rows.prediction, labels=range(len(CLASSES[kind])))
    )
    assert f"{report_format.number(found[1, 1] / found[1].sum())}" in page.text["predictions"]


def test_one_class_in_test_draws_what_is_defined(tmp_path: Path) -> None:
    inputs = build(tmp_path / "run", "binary", rows=300)
    path = inputs.test.predictions.file
    whole = pq.read_table(path)
    pq.write_table(whole.set_column(2, "label", [[0] * whole.num_rows]), path)
    text, page = render(inputs, tmp_path)
    assert (
        "ROC curve" not in text and "Calibration in" in text and "1 0 " in page.text["predictions"]
    )


def test_many_classes_are_cut_with_a_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = build(tmp_path, "multiclass", rows=300)
    statistics = inputs.prepared.statistics.model_copy(
        update={"classes": tuple(f"k{i:03d}" for i in range(120))}
    )
    label = rng.integers(0, 120, 5_000)
    rows = report_appendix.Predictions(
        label, np.where(rng.random(5_000) < 0.7, label, 0), rng.random((5_000, 120)), None
    )
    blocks = report_appendix.prediction_blocks(
        inputs.test, inputs.prepared.model_copy(update={"statistics": statistics}), rows
    )
    matrix = next(b for b in blocks if isinstance(b, report_blocks.Matrix))
    by_class = next(b for b in blocks if isinstance(b, report_blocks.Table))
    shown = sum(int(v.replace(",", "")) for row in matrix.counts for v in row)
    assert len(matrix.labels) == 20 and f"{5_000 - shown:,} rows of other pairs" in matrix.note
    assert (
        len(by_class.rows) == 30
        and by_class.note == "The first 30 of 120 classes, most frequent first."
    )


# ----------------------------------------------------------------------------------------- pictures


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1e6), min_size=2, max_size=60),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e5),
)
def test_no_bar_straddles_a_cut_and_every_row_is_counted(
    times: list[float], first: float, second: float, embargo: float
) -> None:
    values = np.asarray(times)
    edges = report_plots.time_edges([values], [first, second], embargo)
    assert (np.diff(edges) > 0).all() and len(edges) <= 90
    assert np.histogram(values, edges)[0].sum() == len(values)
    marks = [
        m
        for m in (first, second, first + embargo, second + embargo)
        if values.min() < m < values.max()
    ]
    assert set(marks) <= set(edges.tolist())


def test_timeline_marks_cuts_and_embargo(binary: ReportInputs) -> None:
    picture = report_plots.timeline(
        read_sides(binary.prepared), True, [START + 386 * DAY, START + 786 * DAY], 14 * DAY
    )
    page = Page(str(picture.svg))
    assert (
        "cut" in page.drawn and "embargo" in page.drawn and "validation (1,350 rows)" in page.drawn
    )
    assert "train from 2015-01-01" in next(
        a["aria-label"] or "" for t, a in page.tags if t == "svg"
    )


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 5_000), st.integers(0, 50))
def test_thinning_keeps_the_ends_and_the_shape(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    label, score = rng.integers(0, 2, size), rng.random(size)
    label[:2] = (0, 1)
    fpr, tpr, _ = roc_curve(label, score, drop_intermediate=False)
    x, y = report_svg.thin(fpr, tpr)
    assert len(x) <= 400 and (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert abs(np.trapezoid(y, x) - np.trapezoid(tpr, fpr)) < 0.01


def test_scatter_sample_is_fixed_and_without_repeats() -> None:
    chosen = report_svg.sample_rows(100_000)
    assert (
        len(chosen) == len(set(chosen.tolist())) == 4_000
        and np.array_equal(chosen, report_svg.sample_rows(100_000))
        and (np.diff(chosen) > 0).all()
    )
    assert np.array_equal(report_svg.sample_rows(5), np.arange(5))


def test_wilson_interval_equals_published_values() -> None:
    low, high = report_prediction_plots.wilson(
        np.array([10.0, 0.0, 20.0]), np.array([100.0, 20.0, 20.0])
    )
    assert low == pytest.approx([0.0552, 0.0, 0.8389], abs=1e-4) and high == pytest.approx(
        [0.1744, 0.1611, 1.0], abs=1e-4
    )


@pytest.mark.parametrize("module", [report_format, report_blocks, report_appendix])
def test_examples_in_the_docstrings(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0 and found.failed == 0
