"""The keyword arguments that a call gets by `**settings` or by `functools.partial`, where they can
be followed.
"""

from __future__ import annotations

import ast

from training.review.lookups import places_of
from training.review.program import Program, Scope
from training.review.syntax import (
    constant,
    dotted,
    keyword,
    last_name,
    method,
    own_nodes_of,
    receiver,
)

Settings = dict[str, ast.expr]
DEPTH = 5


def argument_of(
    program: Program, call: ast.Call, name: str, position: int | None = None
) -> ast.expr | None:
    """An argument of a call: written there, or among settings that are unpacked; None where it is
    absent or uncertain.
    """
    given = keyword(call, name, position)
    for item in call.keywords:
        if given is None and item.arg is None:
            given = (settings(program, item.value, program.scope(call), call) or {}).get(name)
    return given


def settings(
    program: Program, node: ast.expr, scope: Scope, use: ast.AST | None = None, depth: int = 0
) -> Settings | None:
    """What a dict holds at the place `use` (at the end of its function without one); None where
    that is uncertain. A key that may have changed is left out.
    """
    if depth > DEPTH:
        return None
    match node:
        case ast.Dict():
            return _of_dict(program, node, scope, depth)
        case ast.Call() if last_name(node.func) == "dict" and not program.callees_by_name(
            node, scope
        ):
            return _of_call(program, node, scope, depth)
        case ast.Call():
            function = program.callees_by_name(node, scope)
            returned = (
                [n.value for n in own_nodes_of(function.node, ast.Return) if n.value]
                if function is not None
                else []
            )
            return (
                settings(program, returned[0], function, None, depth + 1)
                if function is not None and len(returned) == 1
                else None
            )
        case ast.Name() | ast.Attribute():
            bound = program.bindings_of(node, scope)
            if not bound and isinstance(node, ast.Name):
                return _passed(program, node.id, scope)
            if len(bound) != 1 or bound[0].how != "assign" or bound[0].index is not None:
                return None
            held = settings(program, bound[0].value, bound[0].scope, None, depth + 1)
            return None if held is None else _changed(program, held, node, use)
    return None


def _passed(program: Program, name: str, scope: Scope) -> Settings | None:
    """What the one caller in this file passes as `**name`."""
    given = None if isinstance(scope.node, ast.Module) else scope.node.args.kwarg
    sites = program.call_sites[scope]
    if (
        given is None
        or given.arg != name
        or len(sites) != 1
        or any(k.arg is None for k in sites[0][0].keywords)
    ):
        return None
    return {str(k.arg): k.value for k in sites[0][0].keywords if k.arg not in scope.parameters}


def _of_dict(program: Program, node: ast.Dict, scope: Scope, depth: int) -> Settings | None:
    found: Settings = {}
    for key, value in zip(node.keys, node.values, strict=True):
        inner = (
            settings(program, value, scope, node, depth + 1)
            if key is None
            else {str(constant(key)): value}
        )
        if inner is None:
            return None
        found |= inner
    return found


def _of_call(program: Program, node: ast.Call, scope: Scope, depth: int) -> Settings | None:
    """`dict(first, a=1, **others)`."""
    found: Settings | None = {}
    for value in (*node.args, *(k.value for k in node.keywords if k.arg is None)):
        inner = settings(program, value, scope, node, depth + 1)
        found = None if inner is None or found is None else found | inner
    return None if found is None else found | {k.arg: k.value for k in node.keywords if k.arg}


def _changed(
    program: Program, held: Settings, node: ast.expr, use: ast.AST | None
) -> Settings | None:
    """A dict after the statements between its making and its use; None where it is changed in a way
    that is not followed.
    """
    found = dict(held)
    for name in places_of(program, dotted(node)):
        if not isinstance(name.ctx, ast.Load):
            continue
        parent = program.parents[name]
        item = (
            isinstance(parent, ast.Subscript)
            and parent.value is name
            and not isinstance(parent.ctx, ast.Load)
        )
        called = program.parents[parent] if isinstance(parent, ast.Attribute) else None
        changes = (
            isinstance(called, ast.Call)
            and method(called) in ("update", "pop", "setdefault", "clear", "popitem")
            and receiver(called) is name
        )
        if not item and not changes:
            continue
        statement = program.statement(name)
        if (
            use is not None
            and program.scope(use) is program.scope(name)
            and statement.lineno > getattr(use, "lineno", 0)
        ):
            continue
        certain = not any(
            isinstance(a, (ast.If, ast.For, ast.While, ast.Try)) for a in program.ancestors(name)
        )
        if (
            isinstance(parent, ast.Subscript)
            and isinstance(statement, ast.Assign)
            and isinstance(constant(parent.slice), str)
        ):
            found.pop(str(constant(parent.slice)), None)
            found |= {str(constant(parent.slice)): statement.value} if certain else {}
        elif (
            isinstance(called, ast.Call)
            and method(called) == "update"
            and not called.args
            and all(k.arg for k in called.keywords)
            and certain
        ):
            found |= {str(k.arg): k.value for k in called.keywords}
        elif (
            isinstance(called, ast.Call)
            and method(called) == "pop"
            and called.args
            and isinstance(constant(called.args[0]), str)
        ):
            found.pop(str(constant(called.args[0])), None)
        else:
            return None
    return found


def partial_calls(program: Program, call: ast.Call) -> list[ast.Call]:
    """Calls of the name that `partial(…)` is bound to, each as one call with the arguments
    of both.
    """
    statement = program.statement(call)
    if (
        last_name(call.func) != "partial"
        or not isinstance(statement, ast.Assign)
        or statement.value is not call
        or not call.args
    ):
        return []
    name, scope = dotted(statement.targets[0]), program.scope(call)
    found = []
    for later in (
        c
        for c in program.calls_of(name.rpartition(".")[2])
        if name and dotted(c.func) == name and program.scope(c) is scope
    ):
        given = {k.arg for k in later.keywords}
        both = ast.Call(
            call.args[0],
            [*call.args[1:], *later.args],
            [*later.keywords, *(k for k in call.keywords if k.arg not in given)],
        )
        program.scope_of[both], program.parents[both] = scope, program.parents[later]
        found.append(ast.copy_location(both, later))
    return found
