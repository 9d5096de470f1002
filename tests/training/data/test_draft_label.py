"""Which column is predicted where nobody says it: names, words, and the question at a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.training.data.test_draft_roles import A, B, Y, guessed
from training.data.draft.draft import draft
from training.data.draft.label_guess import LabelChoice

pytestmark = pytest.mark.req("P1")


@pytest.mark.parametrize(
    ("columns", "label", "why"),
    [
        ({"a": A, "outcome": Y, "b": B}, "outcome", "by its name"),
        ({"Sale_Price": B, "lat": A, "y0": A + B}, "Sale_Price", "by a word in its name; others"),
        ({"status": Y, "price": B, "b": A}, "b", "the last column, for want of a telling name"),
        ({"price": B, "x": A, "y": A * 2, "z": A * B}, "price", "by a word in its name; others"),
        ({"x": A, "y": Y, "b": B}, "y", "by its name"),
    ],
)
def test_a_name_or_a_single_word_tells_the_label(
    tmp_path: Path, columns: dict[str, np.ndarray], label: str, why: str
) -> None:
    found = guessed(pd.DataFrame(columns), tmp_path)[0]
    assert found.label.name == label and found.columns[label].why.startswith(why)


def test_candidates_are_asked_for_only_where_no_name_tells(tmp_path: Path) -> None:
    asked: list[list[LabelChoice]] = []

    def ask(choices: list[LabelChoice]) -> str:
        asked.append(list(choices))
        return choices[-1].name

    frame = pd.DataFrame({"ill": Y, "a": A, "b": B})
    frame.to_csv(tmp_path / "t.csv", index=False)
    text = draft(str(tmp_path / "t.csv"), ask=ask)  # type: ignore[arg-type]
    assert [c.name for c in asked[0]] == ["b", "ill"] and "ill: label  # as chosen" in text
    frame.rename(columns={"a": "target"}).to_csv(tmp_path / "t.csv", index=False)
    draft(str(tmp_path / "t.csv"), ask=ask)  # type: ignore[arg-type]
    draft(str(tmp_path / "t.csv"), label="ill", ask=ask)  # type: ignore[arg-type]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("2", "ill: label  # as chosen"),
        pytest.param("nothing", "'nothing': no such column", marks=pytest.mark.long),
    ],
)
def test_init_asks_at_a_terminal(tmp_path: Path, answer: str, line: str) -> None:
    pd.DataFrame({"ill": Y, "a": A, "b": B}).to_csv(tmp_path / "t.csv", index=False)
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "flows.cli", "init", str(tmp_path / "t.csv")]
    with subprocess.Popen(
        command, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, text=True
    ) as process:
        os.close(terminal)
        os.write(main, f"{answer}\n".encode())
        assert process.stdout is not None
        drafted = process.stdout.read()
        process.wait()
        shown = os.read(main, 10_000).decode()
    os.close(main)
    assert "Which column is to be predicted?" in shown and "2  ill (the first" in shown
    assert line in drafted + shown
