"""`bulkhead look` for people and scripts: exit codes, escapes, JSON, the page."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd

from schemas.table_look import TableLook
from tests.test_cli import call
from training.data.look.look import look
from training.report.look_page import write_look

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    'say "hi"',
    "it's",
    "null",
    "select",
    "two\nlines",
    "{{ 7 * 7 }}",
    "[bold red]x[/]",
    "\u202eabc",
]


def hostile(path: Path) -> str:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.choice(HOSTILE, 60) for name in HOSTILE})
    table['"><img src=x onerror=alert(1)>'] = np.repeat(HOSTILE[:6], 10)
    table["y"] = rng.choice(["<b>yes</b>", "\x1b[31mno"], 60)
    table.to_parquet(path, index=False)
    return str(path)


class Tags(HTMLParser):
    """Collects tags and the text besides style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_hostile_names_and_values_are_escaped_everywhere(tmp_path: Path) -> None:
    file = hostile(tmp_path / "t.parquet")
    done = call(tmp_path, "look", file, "--output", "look.html")
    assert done.returncode == 0, done.stderr
    assert not any(c in done.stdout for c in "\x1b\x9b\x07\u202e")
    assert "[bold red]x[/]" in done.stdout and "two·lines" in done.stdout
    page = (tmp_path / "look.html").read_text()
    read = Tags()
    read.feed(page)
    assert not {"script", "img", "b"} & read.tags and not any(c in page for c in "\x1b\x9b\u202e")
    assert "<script>alert(1)</script>" in "".join(read.text) and "{{ 7 * 7 }}" in page
    answer = call(tmp_path, "look", file, "--json")
    assert not any(c in answer.stdout for c in "\x1b\x9b\x07")
    report = TableLook.model_validate(json.loads(answer.stdout))
    assert {*HOSTILE} < {c.name for c in report.columns}


def test_hostile_texts_of_delimited_files_are_read(tmp_path: Path) -> None:
    names = ["null", "select", 'say "hi"', "name", "value", "y"]
    table = pd.DataFrame({n: np.arange(40) % (3 + i) for i, n in enumerate(names)})
    table.to_csv(tmp_path / "t.csv", index=False)
    found = look(str(tmp_path / "t.csv"), label="y", most=20)
    assert [c.name for c in found.columns] == names


def test_exit_codes_are_those_of_the_other_commands(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(30)))
    (tmp_path / "bad.csv").write_text("a,y\n1,2\n3\n")
    for arguments, code, words in (
        (("bad.csv",), 1, "cannot be read"),
        (("t.csv", "--label", "z"), 2, "no such column"),
    ):
        done = call(tmp_path, "look", *arguments)
        assert (done.returncode, words in done.stderr) == (code, True), (arguments, done.stderr)
        assert "Traceback" not in done.stderr


def test_a_page_of_the_same_table_has_the_same_bytes(tmp_path: Path) -> None:
    found = look(hostile(tmp_path / "t.parquet"))
    pages = [write_look(found, tmp_path / f"{i}.html").sha256 for i in range(2)]
    assert pages[0] == pages[1]


def test_a_look_loads_no_training_and_no_server() -> None:
    heavy = ("torch", "prefect", "mlflow", "sklearn", "matplotlib")
    code = (
        "import sys, flows.cli.look_table, tasks.look, training.report.look_page;"
        f" print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"
