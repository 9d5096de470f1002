"""Hold docs/map.md to the tree: each path exists and each name is defined in its file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "map.md"
PATH = re.compile(r"`((?:flows|tasks|schemas|training|tests)/[\w/.]*)(?::(\w+))?`")


def absent(text: str) -> list[str]:
    """Return what a page names and the tree lacks."""
    missing = []
    for path, name in PATH.findall(text):
        file = ROOT / path
        if not file.exists():
            missing.append(path)
        elif name:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            kinds = (ast.FunctionDef, ast.ClassDef)
            if name not in {node.name for node in tree.body if isinstance(node, kinds)}:
                missing.append(f"{path}:{name}")
    return missing


def test_every_name_on_the_map_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(PATH.findall(text)) >= 30
    assert absent(text) == []
    assert absent("`training/data/split/split.py:spilt` `tasks/none.py`") == [
        "training/data/split/split.py:spilt",
        "tasks/none.py",
    ]


def test_every_package_of_training_is_on_the_map() -> None:
    text = PAGE.read_text(encoding="utf-8")
    packages = {p.parent.name for p in (ROOT / "training").glob("*/__init__.py")}
    assert {p for p in packages if f"`{p}/`" not in text} == set()


def test_the_map_fits_on_a_screen() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= 60
