"""Whether a file does something when it is started, and whether anything in it calls a function."""

from __future__ import annotations

import ast

from training.review.program import Program, Scope
from training.review.syntax import FUNCTIONS, calls, identifiers, last_name


def is_started(program: Program) -> bool:
    """Whether a file does something when it is started: a loop, statements under a test of
    `__name__`, or calls of its own functions.
    """
    started = [
        s
        for s in program.tree.body
        if isinstance(s, (ast.For, ast.While))
        or (isinstance(s, ast.If) and "__name__" in identifiers(s.test))
    ]
    called = [
        c for s in program.tree.body if isinstance(s, (ast.Expr, ast.Assign)) for c in calls(s)
    ]
    return bool(started) or any(
        isinstance(c.func, ast.Name) and program.local_function(c.func.id, program.top) is not None
        for c in called
    )


def is_asked_for(program: Program, scope: Scope) -> bool:
    """Whether a function is called, or may be: by its name with as many arguments, handed on, or by
    the base of its class.
    """
    bases = (
        {last_name(b) for b in scope.owner.bases} - {"Module", "object"}
        if scope.owner is not None
        else set()
    )
    if (
        program.call_sites[scope]
        or bases
        or (
            isinstance(scope.node, FUNCTIONS)
            and any(last_name(d) in ("property", "staticmethod") for d in scope.node.decorator_list)
        )
    ):
        return True
    takes = len([name for name in scope.parameters if name not in ("self", "cls")])
    by_name = [c for c in program.all_calls if last_name(c.func) == scope.name]
    asked = [
        n
        for n in (*program.nodes[ast.Name], *program.nodes[ast.Attribute])
        if last_name(n) == scope.name
    ]
    return len(asked) > len(by_name) or any(
        len(c.args) + len(c.keywords) == takes or any(isinstance(a, ast.Starred) for a in c.args)
        for c in by_name
    )
