"""What a loop adds up: `total += x`, `total = total + x`, and both within a tuple, as `total, seen
= total + x, seen + 1`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.syntax import dotted, nodes_of


class Addition(NamedTuple):
    """One term that is added to a sum: the name of the sum, the term, and the statement."""

    name: str
    value: ast.expr
    statement: ast.Assign | ast.AugAssign


def additions(node: ast.AST) -> Iterator[Addition]:
    r"""All of them within a node.

    >>> [(a.name, ast.unparse(a.value)) for a in additions(ast.parse("a, n = a + f(x), 1 + n\nb += 2\nc = b + 1"))]
    [('b', '2'), ('a', 'f(x)'), ('n', '1')]
    """  # noqa: E501
    for added in nodes_of(node, ast.AugAssign):
        if isinstance(added.op, ast.Add):
            yield Addition(dotted(added.target), added.value, added)
    for statement in nodes_of(node, ast.Assign):
        if len(statement.targets) == 1:
            yield from (
                Addition(name, term, statement)
                for name, term in _terms(statement.targets[0], statement.value)
            )


def _terms(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if (
        isinstance(target, ast.Tuple)
        and isinstance(value, ast.Tuple)
        and len(target.elts) == len(value.elts)
    ):
        for part, given in zip(target.elts, value.elts, strict=True):
            yield from _terms(part, given)
    elif (
        isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and (name := dotted(target))
    ):
        if dotted(value.left) == name:
            yield name, value.right
        elif dotted(value.right) == name:
            yield name, value.left
