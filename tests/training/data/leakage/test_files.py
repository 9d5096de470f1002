"""Two or three files from anywhere: each planted fault is named, an honest pair passes, and nothing
is refused that the checks must report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from schemas.audit import AuditReport, FilesToAudit
from schemas.errors import ConfigError, SchemaError
from schemas.records import CheckResult
from training.data.leakage.audit import audit_files
from training.report.audit_report import outcome, write_audit_report


def frame(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    return pd.DataFrame(
        {
            "visit": [f"V{i}" for i in rng.permutation(rows)],
            "patient": [f"P-{i // 4:03d}" for i in range(rows)],
            "at": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(rows), unit="h"),
            "a": x[:, 0],
            "b": x[:, 1],
            "c": x[:, 2],
            "ward": rng.choice(["n", "s", "w"], rows),
            "drawn": (
                pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, rows), unit="D")
            ),
            "constant": 1,
            "outcome": (x[:, 0] + rng.normal(size=rows) > 0).astype(int),
        }
    )


def sides(change: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    whole = frame()
    train, test = whole[:400].copy(), whole[400:].copy()
    if change == "id":
        test.iloc[:3, 0] = train["visit"].iloc[:3]
    elif change == "alias":
        test.iloc[:3, 0] = train["visit"].iloc[:3].str.lower() + " "
    elif change == "group":
        test.iloc[:3, 1] = "P-000"
    elif change == "time":
        test.iloc[0, 2] = train["at"].iloc[5]
    elif change == "rows":
        test = pd.concat(
            [
                test,
                train[:4].assign(
                    visit=["W1", "W2", "W3", "W4"], patient="P-900", at=test["at"].max()
                ),
            ]
        )
    elif change == "twice":
        test = pd.concat([test, test[:2]])
    elif change == "label":
        train["code"], test["code"] = (
            s["outcome"].map({0: "red", 1: "blue"}) for s in (train, test)
        )
    return train, test


def audit(folder: Path, change: str = "", suffix: str = "parquet", **request: Any) -> AuditReport:
    paths = []
    for name, side in zip(("train", "test"), sides(change), strict=True):
        path = folder / f"{name}.{suffix}"
        (
            side.to_parquet(path, index=False)
            if suffix == "parquet"
            else side.to_csv(path, index=False)
        )
        paths.append(str(path))
    roles = {"id": ["visit"], "group": ["patient"], "time": "at", "label": "outcome"} | request
    return audit_files(
        FilesToAudit.model_validate({"train": [paths[0]], "test": [paths[1]], **roles})
    )


def result(report: AuditReport, name: str) -> CheckResult:
    return next(r for r in report.checks.results if r.name == name)


@pytest.mark.req("D6")
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_an_honest_pair_passes_and_says_what_was_assumed(tmp_path: Path, suffix: str) -> None:
    report = audit(tmp_path, suffix=suffix, label=None)
    assert not report.checks.failed
    assert report.rows == {"train": 400, "test": 200} and report.task == "binary"
    assert any(g.startswith("label: outcome") for g in report.guesses) and any(
        g.startswith("split: group_time") for g in report.guesses
    )
    assert "drawn" in report.roles["features"]  # a date is looked at as a number
    assert "clean" not in report.model_dump_json()


@pytest.mark.req("D6")
@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ("id", "id_overlap", "3 ids (visit) are on more than one side"),
        ("alias", "id_alias", "3 visit values are on two sides in spellings"),
        ("group", "group_overlap", "1 patient value is in both"),
        ("time", "time_overlap", "train ends at 2024-01-17"),
        ("rows", "duplicates", "4 of 204 test rows"),
        ("twice", "id_overlap", "2 ids (visit) stand twice on one side"),
        ("label", "label_proxy", "column 'code' predicts 'outcome' by itself"),
    ],
)
def test_each_planted_fault_is_named(tmp_path: Path, change: str, check: str, words: str) -> None:
    found = result(audit(tmp_path, change), check)
    assert found.verdict == "fail" and words in found.summary


@pytest.mark.req("D6")
def test_rows_stand_side_by_side_in_a_report_that_loads_nothing(tmp_path: Path) -> None:
    report = audit(tmp_path, "alias")
    position = next(i for i, r in enumerate(report.checks.results) if r.name == "id_alias")
    assert len(report.shown[position][0].headers) == 2
    page = Path(write_audit_report(report, tmp_path / "audit.html").path).read_text()
    assert (
        "How it inflates the score" in page
        and "What to do" in page
        and report.shown[position][0].headers[0] in page
    )
    assert (
        "clean" not in page.lower()
        and "<script" not in page
        and "http" not in page.split("</head>")[1]
    )
    assert outcome(report).startswith("1 of ")


@pytest.mark.req("D6")
def test_files_without_an_id_are_numbered_and_a_sorted_file_is_noticed(tmp_path: Path) -> None:
    train, test = sides()
    for name, side in (("train", train), ("test", test)):
        side.drop(columns=["visit", "patient", "at"]).sort_values("outcome").to_parquet(
            tmp_path / f"{name}.parquet", index=False
        )
    report = audit_files(
        FilesToAudit(
            train=(str(tmp_path / "train.parquet"),), test=(str(tmp_path / "test.parquet"),)
        )
    )
    assert result(report, "file_order").verdict == "warn"
    assert "id_overlap" not in [r.name for r in report.checks.results]
    assert any("no id is declared" in u for u in report.undecided)


@pytest.mark.req("D6")
def test_texts_of_a_language_model_are_looked_at_and_must_be_named(tmp_path: Path) -> None:
    words = np.random.default_rng(3).choice([f"word{i}" for i in range(500)], (400, 30))
    texts = [" ".join(w) for w in words]
    copied = [*(t.upper() for t in texts[:6]), *texts[306:]]
    for change, held_out in (("pass", texts[300:]), ("fail", copied)):
        paths = {
            "train": [str(tmp_path / f"{change}-train.parquet")],
            "test": [str(tmp_path / f"{change}-test.parquet")],
        }
        pd.DataFrame(
            {"id": [f"a{i}" for i in range(300)], "speech": texts[:300], "year": 1600}
        ).to_parquet(paths["train"][0])
        pd.DataFrame(
            {"id": [f"b{i}" for i in range(len(held_out))], "speech": held_out, "year": 1601}
        ).to_parquet(paths["test"][0])
        report = audit_files(
            FilesToAudit.model_validate(
                {**paths, "id": ["id"], "label": "speech", "task": "causal_lm"}
            )
        )
        assert result(report, "text_copies").verdict == change and report.task == "causal_lm"
    assert {r.name for r in report.checks.failed} == {"text_copies"}
    with pytest.raises(
        ConfigError,
        match=(
            r"--label: of --task causal_lm expected the column of texts, got 'year'; columns of"
            r" text are 'speech'"
        ),
    ):
        audit_files(
            FilesToAudit.model_validate(
                {**paths, "id": ["id"], "label": "year", "task": "causal_lm"}
            )
        )


@pytest.mark.req("S2")
def test_columns_that_differ_between_files_are_told_not_refused(tmp_path: Path) -> None:
    train, test = sides()
    train.assign(only=1, mixed="x").to_csv(tmp_path / "train.csv", index=False)
    test.assign(mixed=range(len(test))).to_parquet(tmp_path / "test.parquet", index=False)
    report = audit_files(
        FilesToAudit(
            train=(str(tmp_path / "train.csv"),),
            test=(str(tmp_path / "test.parquet"),),
            id=("visit",),
            label="outcome",
        )
    )
    assert any("'only'" in g for g in report.guesses) and any(
        g.startswith("mixed: read as varchar") for g in report.guesses
    )


@pytest.mark.req("S2")
def test_what_cannot_be_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="column 'hospital': not in the train and test file"):
        audit(tmp_path, group=["hospital"])
    with pytest.raises(ConfigError, match="of files, checks, task, split can be set"):
        audit(tmp_path, settings=["train.epochs=3"])
    with pytest.raises(SchemaError, match="column 'ward': expected dates, timestamps or numbers"):
        audit(tmp_path, time="ward")


@pytest.mark.req("D6")
def test_a_finding_is_allowed_with_a_reason_and_thresholds_can_be_set(tmp_path: Path) -> None:
    allowed = audit(
        tmp_path,
        "rows",
        settings=['checks.allow=[{check: duplicates, reason: "the copies are wanted here"}]'],
    )
    assert result(allowed, "duplicates").verdict == "allowed"
    assert (
        result(
            audit(tmp_path, "rows", settings=["checks.max_duplicate_share=0.5"]), "duplicates"
        ).verdict
        == "warn"
    )


@pytest.mark.req("D9")
def test_memory_stays_bounded_where_files_do_not_fit(tmp_path: Path) -> None:
    big = pd.concat(
        [frame(6000, seed=s).assign(visit=[f"{s}-{i}" for i in range(6000)]) for s in range(10)]
    )
    big["text"] = np.char.add(
        "some longer text to fill the memory with ", np.arange(len(big)).astype(str)
    )
    big[:40_000].to_csv(tmp_path / "train.csv", index=False)
    big[40_000:].to_csv(tmp_path / "test.csv", index=False)
    request = FilesToAudit(
        train=(str(tmp_path / "train.csv"),),
        test=(str(tmp_path / "test.csv"),),
        id=("visit",),
        label="outcome",
        ignore=("patient",),
    )
    assert result(audit_files(request, memory_limit="200MB"), "id_overlap").verdict == "pass"


def test_what_is_set_is_not_said_to_be_assumed(tmp_path: Path) -> None:
    roles = {"group": ("patient",), "time": "at", "label": "outcome"}
    assumed = audit(tmp_path, **roles).guesses
    assert "split: group_time (of --group patient and --time at)" in assumed and any(
        g.startswith("task: binary") for g in assumed
    )
    given = audit(
        tmp_path, settings=("split.kind=group", "task.kind=binary", "task.positive=1"), **roles
    ).guesses
    assert not any(g.startswith(("split:", "task:")) for g in given)
