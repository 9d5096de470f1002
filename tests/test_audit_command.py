"""`bulkhead audit` for scripts: exit codes, JSON, plain lines, the report on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.test_cli import call
from tests.training.data.leakage.test_files import sides
from training.data.leakage.catalogue_page import catalogue_page

ROOT = Path(__file__).resolve().parent.parent
ROLES = ("--id", "visit", "--group", "patient", "--time", "at", "--label", "outcome")


def write(folder: Path, change: str = "") -> tuple[str, ...]:
    for name, side in zip(("train", "test"), sides(change), strict=True):
        side.to_parquet(folder / f"{name}.parquet", index=False)
    return ("audit", "--train", "train.parquet", "--test", "test.parquet", *ROLES)


@pytest.mark.req("D6")
def test_files_end_with_0_or_1_and_say_where_the_report_is(tmp_path: Path) -> None:
    done = call(tmp_path, *write(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (
        "Nothing failed in" in done.stdout
        and "cannot decide" in done.stdout
        and "audits/train.html" in done.stdout
    )
    assert (tmp_path / "home" / "audits" / "train.html").is_file()
    found = call(tmp_path, *write(tmp_path, "group"), "--json", "--html", "out.html")
    assert found.returncode == 1 and (tmp_path / "out.html").is_file()
    answer = json.loads(found.stdout)
    assert [r["name"] for r in answer["checks"]["results"] if r["verdict"] == "fail"] == [
        "group_overlap"
    ] and answer["report"] == "out.html"


@pytest.mark.req("P1")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected one declaration, or --train and --test, got neither"),
        (("--train", "x.csv"), "expected --train and --test"),
        (("run.yaml", "--train", "x.csv", "--test", "y.csv"), "no declaration, got 'run.yaml'"),
        (("run.yaml", "--label", "y"), "--label: for --train and --test only"),
        (
            ("--train", "x.csv", "--test", "y.csv", "--task", "forecast"),
            "--task: should be 'binary', 'multiclass', 'regression' or 'causal_lm'",
        ),
    ],
)
def test_wrong_usage_ends_with_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = call(tmp_path, "audit", *arguments)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.req("D6")
def test_a_declaration_is_audited_without_training_and_its_steps_are_reused(tmp_path: Path) -> None:
    write(tmp_path)
    columns = {
        "visit": "id",
        "patient": "group",
        "at": "ignore",
        "drawn": "ignore",
        "constant": "ignore",
        "outcome": "label",
        "*": "feature",
    }
    tree = {
        "name": "visits",
        "data": {"uri": "train.parquet", "columns": columns},
        "task": {"kind": "binary"},
        "split": {"kind": "random"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    found = call(tmp_path, "audit", "run.yaml")
    assert found.returncode == 1 and "patient values are in both" in found.stdout, found.stderr
    again = call(tmp_path, "audit", "run.yaml", "split.kind=group")
    assert (
        again.returncode == 0 and "↺ validate" in again.stderr and "byte-identical" in again.stdout
    ), again.stderr
    assert (
        not (tmp_path / "home" / "runs").exists()
        and (tmp_path / "home" / "audits" / "run.html").is_file()
    )


@pytest.mark.req("D6")
def test_the_page_of_checks_is_that_of_the_catalogue() -> None:
    assert (ROOT / "docs" / "leaks.md").read_text() == catalogue_page(), "write it again: make docs"
