"""Walking over a tree, against the standard library, and over one that is rewritten meanwhile."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from training.review.program import Program
from training.review.syntax import identifiers, names_read, walk, walk_afresh

HERE = Path(__file__).resolve()
PROGRAMS = [*sorted((HERE.parents[2] / "zoo" / "scripts").glob("*.py"))[:6], HERE]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.name)
def test_walk_meets_every_node_but_contexts_in_the_same_order(path: Path) -> None:
    tree = ast.parse(path.read_text())
    expected = [n for n in ast.walk(tree) if not isinstance(n, ast.expr_context)]
    assert list(walk_afresh(tree)) == expected
    assert list(walk(tree)) == expected


def test_what_was_kept_of_a_tree_before_it_was_rewritten_is_dropped() -> None:
    tree = ast.parse("total = first + second\n")
    assert names_read(tree) == {"total", "first", "second"}
    tree.body[0].value.right = ast.Name("third", ast.Load())  # type: ignore[attr-defined]
    ast.fix_missing_locations(tree)
    program = Program(tree)
    assert identifiers(program.tree) == {"total", "first", "third"}
    assert "third" in names_read(program.tree.body[0])
