"""What a statement keeps beyond the passage of its loop: in a sum, a list, a dict, or an object of
this file that collects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program, Scope, argument
from training.review.syntax import dotted, last_name, method, names_read, own_nodes, own_nodes_of
from training.review.trace import Event

DETACHED = {
    "item", "detach", "float", "numpy", "tolist", "data", "detach_", "int", "len", "isfinite",
    "isnan", "reduce_mean", "gather", "mean_item",
}  # fmt: skip
APPENDS = {"append", "appendleft", "insert", "extend", "add"}


def kept_by(program: Program, event: Event) -> Iterator[ast.expr]:
    """The values that an event adds to something, with the graph that they may have."""
    node = event.node
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield from _leaves(node.value)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Subscript) and names_read(target.slice):
            yield from _leaves(value)
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and dotted(target):
            for side, other in ((value.left, value.right), (value.right, value.left)):
                if dotted(side) == dotted(target):
                    yield from _leaves(other)
    elif isinstance(node, ast.Call):
        if method(node) in APPENDS - {"add"}:
            yield from (leaf for a in node.args for leaf in _leaves(a))
        yield from (leaf for a in _collected(program, node, event.scope) for leaf in _leaves(a))


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """The values that still have their graph, in literals of all kinds and under arithmetic."""
    match node:
        case ast.Tuple() | ast.List():
            yield from (leaf for element in node.elts for leaf in _leaves(element))
        case ast.Dict():
            yield from (leaf for value in node.values for leaf in _leaves(value))
        case ast.Call() if last_name(node.func) == "dict" and isinstance(node.func, ast.Name):
            yield from (leaf for k in node.keywords for leaf in _leaves(k.value))
        case _:
            bare = _bare(node)
            if bare is not None:
                yield bare


def _bare(node: ast.expr) -> ast.expr | None:
    """The value that still has its graph, under arithmetic alone."""
    if isinstance(node, ast.BinOp):
        return _bare(node.left) or _bare(node.right)
    if isinstance(node, ast.Call) and method(node) in ("cpu", "mean", "sum", "clone", "to"):
        return _bare(node.func.value) if isinstance(node.func, ast.Attribute) else None
    return (
        node
        if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) not in ("data",)
        else None
    )


def _collected(program: Program, call: ast.Call, scope: Scope) -> Iterator[ast.expr]:
    """The arguments that a method of this file adds to an attribute, or appends to something,
    without detaching them.
    """
    for function in program.callees(call, scope):
        if (
            function.owner is None
            or program.is_module(function.owner)
            or function.name == "__init__"
            or isinstance(function.node, ast.Module)
        ):
            continue
        for name in function.parameters[1:]:
            given = argument(call, function, name)
            if given is not None and _collects(function, {name}):
                yield given
        named = function.node.args.kwarg
        if named is not None and _collects(function, _values_of(function, named.arg)):
            yield from (
                k.value for k in call.keywords if k.arg and k.arg not in function.parameters
            )


def _values_of(function: Scope, name: str) -> set[str]:
    """The names that go through the values of a dict."""
    found = {name}
    for node in own_nodes_of(function.node, ast.For):
        if method(node.iter) in ("items", "values") and name in names_read(node.iter):
            found |= names_read(
                node.target.elts[-1] if isinstance(node.target, ast.Tuple) else node.target
            )
    return found


def _collects(function: Scope, names: set[str]) -> bool:
    """Whether a function adds one of these to something, and detaches none."""
    nodes = list(own_nodes(function.node))
    detached = any(
        isinstance(n, ast.Attribute)
        and n.attr in DETACHED
        and names_read(n)
        and names_read(n) <= names
        for n in nodes
    ) or any(
        isinstance(n, ast.Call) and last_name(n.func) in DETACHED and names & names_read(n)
        for n in nodes
    )
    adds = any(isinstance(n, ast.AugAssign) and names & names_read(n.value) for n in nodes)
    appends = any(
        isinstance(n, ast.Call)
        and method(n) in APPENDS
        and any(names & names_read(a) for a in n.args)
        for n in nodes
    )
    return (adds or appends) and not detached
