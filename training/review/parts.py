"""Predictions that the program reads by parts alone."""

from __future__ import annotations

import ast

from training.review.syntax import nodes_of


def taken_in_parts(text: str, line: int) -> bool:
    r"""Return whether the name that a line binds is read only with positions in brackets: rows of
    several splits are scored at once and separated afterwards.

    >>> code = "def f(model, z, fit, rest):\n    eta = model(z).numpy()\n    return eta[fit].mean(), eta[rest].mean()\n"
    >>> taken_in_parts(code, 2), taken_in_parts(code.replace("eta[fit].mean()", "eta.mean()"), 2)
    (True, False)
    """  # noqa: E501
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    for scope in reversed(
        [tree, *(n for n in nodes_of(tree, ast.FunctionDef) if _covers(n, line))]
    ):
        bound = [
            n.targets[0].id
            for n in nodes_of(scope, ast.Assign)
            if isinstance(n.targets[0], ast.Name) and _covers(n, line)
        ]
        if bound:
            reads = [
                n
                for n in nodes_of(scope, ast.Name)
                if n.id == bound[0] and isinstance(n.ctx, ast.Load)
            ]
            parts = [
                n.value
                for n in nodes_of(scope, ast.Subscript)
                if not isinstance(n.slice, (ast.Slice, ast.Tuple))
            ]
            return bool(reads) and all(n in parts for n in reads)
    return False


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or line)
