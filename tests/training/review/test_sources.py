"""Files that cannot be read, notebooks, and comments that allow a finding."""

from __future__ import annotations

import ast
import dataclasses
import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import ConfigError
from tasks.review import Reviewed, choose, explanation
from training.review.engine import (
    chosen_rules,
    python_files,
    review_file,
    review_files,
    review_text,
)
from training.review.findings import RULES, Finding, Place, Subject
from training.review.formats import as_sarif
from training.review.retired import RETIRED
from training.review.rules import KNOWN
from training.review.sources import Source

LOOP = """import torch

def train(model, optimizer, loader, loss_fn):
    for x, y in loader:
        loss_fn(model(x), y).backward()
        optimizer.step(){comment}
"""


def rules_of(found: list[Finding]) -> list[tuple[str, bool]]:
    return [(f.rule, bool(f.allowed)) for f in found]


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"def f(:\n", "cannot be parsed"),
        (b"x = '\xff\xfe'\n", "cannot be read"),
        (b"# coding: no-such-code\n", "cannot be read"),
        (b"x = 1\0\n", "cannot be parsed"),
        (b"(" * 5000, "cannot be parsed"),
        (b"  x = 1\n", "cannot be parsed"),
        (b"import torch\nx = y" + b".a(1)" * 600 + b"\n", "cannot be"),
    ],
)
def test_a_file_that_is_no_python_is_a_finding(tmp_path: Path, raw: bytes, cause: str) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(raw)
    (found,) = review_file(path, chosen_rules())
    assert found.rule == "BH001" and found.severity == "error" and cause in found.message


def test_latin_1_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    for raw in (
        b"# coding: latin-1\nx = '\xe4'\n",
        b"\xef\xbb\xbfx = 1\n",
        b"import torch\r\nx = 1\r\n",
        b"",
    ):
        (tmp_path / "sound.py").write_bytes(raw)
        assert review_file(tmp_path / "sound.py", chosen_rules()) == []


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    assert review_file(tmp_path / "absent.py", chosen_rules())[0].rule == "BH001"


def test_a_comment_with_a_reason_allows_the_finding_of_its_statement() -> None:
    found = review_text(
        LOOP.format(comment="  # bulkhead: allow[BH101] gradients of the whole run are wanted")
    )
    assert rules_of(found) == [("BH101", True)]
    assert found[0].allowed == "gradients of the whole run are wanted"


def test_a_comment_on_a_line_of_its_own_is_for_the_statement_below() -> None:
    above = LOOP.replace(
        "        optimizer.step()",
        "        # bulkhead: allow[BH101] the sum over the run is wanted\n        optimizer.step()",
    )
    assert rules_of(review_text(above.format(comment=""))) == [("BH101", True)]


def test_a_comment_without_a_reason_allows_nothing_and_is_told() -> None:
    for comment in ("  # bulkhead: allow[BH101]", "  # bulkhead: allow[BH101] ok"):
        found = review_text(LOOP.format(comment=comment))
        assert set(rules_of(found)) == {("BH101", False), ("BH002", False)}
    assert ("BH002", False) in rules_of(
        review_text(LOOP.format(comment="  # bulkhead: allow this is fine with us"))
    )


def test_a_comment_that_allows_nothing_is_told() -> None:
    found = review_text(
        "import torch\nx = 1  # bulkhead: allow[BH101] nothing of the kind is here\n"
    )
    assert rules_of(found) == [("BH003", False)] and "finds nothing here" in found[0].message
    unknown = review_text("x = 1  # bulkhead: allow[BH999] there is no such rule at all\n")
    assert rules_of(unknown) == [("BH003", False)] and "no rule" in unknown[0].message


def test_a_comment_about_a_removed_rule_is_a_note_that_fails_nothing() -> None:
    text = "import torch\nx = 1  # bulkhead: allow[BH453] the rule of an earlier version\n"
    (found,) = review_text(text)
    assert (found.rule, found.severity) == ("BH005", "note") and "was removed" in found.message
    assert Reviewed([found], 1).clean and not Reviewed([replace(found, rule="BH003")], 1).clean
    with pytest.raises(ConfigError, match="BH453: this rule was removed"):
        choose(("BH453",), (), strict=False)
    assert choose((), ("BH453",), strict=False) == chosen_rules()
    with pytest.raises(ConfigError, match="BH453: this rule was removed"):
        explanation("bh453")


def test_no_rule_has_the_id_of_a_removed_one_and_all_rules_are_listed() -> None:
    assert not RETIRED & KNOWN.keys() and len(RETIRED) == 178
    assert [line.split()[0] for line in explanation("all").splitlines()] == list(KNOWN)


def test_a_comment_for_a_rule_that_did_not_run_is_not_unused() -> None:
    text = "import torch\nx = 1  # bulkhead: allow[BH101] nothing of the kind is here\n"
    assert review_text(text, rules=chosen_rules(select=["BH3"])) == []


def test_a_rule_that_fails_is_told_and_hides_nothing_of_the_others() -> None:
    def check(subject: Subject) -> Iterator[Place]:
        yield subject.program.tree.body[0], "before the failure"
        raise IndexError("planted")

    broken = dataclasses.replace(RULES["BH102"], check=check)
    found = review_text(LOOP.format(comment=""), rules=[broken, RULES["BH101"]])
    assert (
        rules_of(found) == [("BH004", False), ("BH101", False)]
        and "BH102" in found[0].message
        and "IndexError: planted" in found[0].message
    )
    assert (
        found[0].severity == "warning"
        and as_sarif(found, "1")["runs"][0]["results"][0]["ruleId"] == "BH004"
    )


def test_the_words_in_a_string_are_no_comment() -> None:
    assert review_text('x = "# bulkhead: allow[BH101] only text in a string"\n') == []


def notebook(*cells: str) -> str:
    return json.dumps(
        {
            "nbformat": 4,
            "cells": [
                {"cell_type": "markdown", "source": ["# title"]},
                *({"cell_type": "code", "source": c.splitlines(True)} for c in cells),
            ],
        }
    )


def test_cells_of_a_notebook_are_one_program_and_magics_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text(
        notebook(
            "%matplotlib inline\nimport torch\n!pip install x\n",
            "%%bash\nls (\n",
            LOOP.format(comment=""),
        )
    )
    (found,) = review_file(path, chosen_rules())
    assert (found.rule, found.cell, found.line) == ("BH101", 4, 6)
    path.write_text("{}")
    assert review_file(path, chosen_rules())[0].rule == "BH001"


def test_folders_are_searched_without_hidden_ones_and_many_files_are_shared_out(
    tmp_path: Path,
) -> None:
    for name in ("a.py", "b/c.py", ".venv/d.py", "b/__pycache__/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(LOOP.format(comment=""))
    assert [p.name for p in python_files([tmp_path])] == ["a.py", "c.py"]
    for number in range(45):
        (tmp_path / f"many_{number:02}.py").write_text(LOOP.format(comment=""))
    paths = python_files([tmp_path])
    found = review_files(paths, chosen_rules())
    assert [f.path for f in found] == [str(p) for p in paths] and {f.rule for f in found} == {
        "BH101"
    }


class _ParsesAtItsEnd:
    """A cycle whose finalizer parses something, as those of compilers do."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        ast.parse("x = [1, (2, [3])]")


def test_a_finalizer_that_parses_does_not_break_the_parsing_of_a_file() -> None:
    text = "\n".join(
        f"def f{i}(a):\n    return [(b + {i}) * (b - {i}) for b in range(a)]" for i in range(300)
    )
    before = gc.get_threshold()
    gc.set_threshold(50, 1, 1)
    try:
        for _ in range(30):
            for _ in range(20):
                _ParsesAtItsEnd()
            assert len(Source("a.py", text).parse().body) == 300
    finally:
        gc.set_threshold(*before)
        gc.collect()  # else they end within whatever is parsed next
    assert gc.isenabled()
