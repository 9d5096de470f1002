"""No message counts one thing in the plural: "1 rows", "1 features"."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import counted
from schemas.records import TableSpec
from tests.training.toys import declare
from training.data.leakage.overlap import judge_groups, judge_ids
from training.data.leakage.straddle import Straddle
from training.formatting import plural

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("training/data/leakage", "training/data/split", "training/report", "tasks", "flows")
NOUNS = (
    "batch|categor|check|class|column|copi|document|epoch|feature|file|fold|group|id|label|metric"
    "|model|null|parameter|process|rank|row|run|seed|shard|slice|step|token|trial|value|version"
)
TEXTS = (
    "name",
    "rows",
    "count(rows)",
    "count(generation)",
    "d.side",
    "f.window",
    "folds",
    "len(seen.ranks)",
    "found.rows",  # of conflicts: two at least
    "at_all",
)  # words, or at least 2
COUNTED = re.compile(
    rf" (?:(?:train|val|validation|test|other|numeric|left-out) )?(?:{NOUNS})(?:s|es|ies)\b"
)


def counted_in_plural(source: str) -> list[str]:
    """Return the f-strings of a source that put a number in front of a noun in the plural.

    A number of at least two is no fault: a constant in capitals, or the whole in `3 of 20 rows`.
    """
    found = []
    for text in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.JoinedStr)):
        for before, number, after in zip(
            [None, *text.values], text.values, text.values[1:], strict=False
        ):
            if not isinstance(number, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            of = isinstance(before, ast.Constant) and str(before.value).endswith((" of ", "most "))
            shown = ast.unparse(number.value)
            is_name = shown in TEXTS or "per_" in shown
            capitals = re.fullmatch(r"(?:count\()?[A-Z_]{3,}\)?", shown)
            noun = COUNTED.match(str(after.value))
            if noun and not (of or capitals or is_name):
                found.append(f"line {number.lineno}: {{{shown}}}{noun[0]}")
    return found


@pytest.mark.req("P8")
def test_one_is_counted_in_the_singular() -> None:
    assert counted_in_plural('f"{len(x)} test rows equal"') == ["line 1: {len(x)} test rows"]
    for honest in ("{n} of {m} rows", "{MOST_ROWS} rows", "{counted(n, 'row')} here", "{x} rowset"):
        assert not counted_in_plural(f'f"{honest}"')
    found = {
        f"{path.relative_to(ROOT)}: {line}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for line in counted_in_plural(path.read_text())
    }
    assert not found, "\n".join(("write schemas.errors.counted(number, noun):", *sorted(found)))


@pytest.mark.req("P8")
def test_checks_speak_of_one_row_and_of_several() -> None:
    spec = TableSpec(
        id=("visit",), group=("patient",), time=None, time_is_timestamp=False, label="y",
        label_type="int", weight=None, split=None, numeric=("x",), categorical=(), tensor={},
    )  # fmt: skip
    one, two = (Straddle(n, n, [("p", "train and test")], np.zeros(0)) for n in (1, 2))
    said = [judge_groups(found, spec, declare("binary")).summary for found in (one, two)]
    assert said == [
        "1 patient value is in both train and test (first: p), 1 row",
        "2 patient values are in both train and test (first: p, …), 2 rows",
    ]
    assert judge_ids(one, 0, spec).summary.startswith("1 id (visit) is on more than one side")
    assert judge_ids(Straddle(0, 0, [], np.zeros(0)), 1, spec).summary == (
        "1 id (visit) stands twice on one side"
    )


@pytest.mark.req("P8")
@pytest.mark.parametrize("spoken", [counted, plural])
def test_a_count_has_its_noun(spoken: Callable[[int, str], str]) -> None:
    found = [spoken(n, noun) for noun in ("row", "class") for n in (0, 1, 2, 1200)]
    assert found[:4] == ["0 rows", "1 row", "2 rows", "1,200 rows"]
    assert found[4:] == ["0 classes", "1 class", "2 classes", "1,200 classes"]
