"""The expressions that a value may be: through the last assignments of names, helpers of the file
and what callers pass.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from training.review.program import Program, Scope, argument
from training.review.syntax import constant, method, own_nodes_of
from training.review.values import reaching_elements

DEPTH = 8


class Leaf(NamedTuple):
    """An expression that is followed no further, and the function in which it stands."""

    node: ast.expr
    scope: Scope


def leaves(
    program: Program, node: ast.expr, scope: Scope, index: int | None = None, depth: int = 0
) -> list[Leaf]:
    """What a value may be, of a tuple its element `index`; a name that is counted up, or of which
    nothing is known, is a leaf itself.
    """
    if depth > DEPTH:
        return [Leaf(node, scope)]
    found: list[Leaf] = []
    match node:
        case ast.IfExp():
            return [
                leaf
                for side in (node.body, node.orelse)
                for leaf in leaves(program, side, scope, index, depth + 1)
            ]
        case ast.Tuple() | ast.List() if index is not None and index < len(node.elts):
            return leaves(program, node.elts[index], scope, None, depth + 1)
        case ast.Name():
            for value, at in reaching_elements(program, node, scope):
                found += leaves(program, value, scope, index if at is None else at, depth + 1)
            if not found and node.id in scope.parameters and node.id not in scope.bindings:
                for call, caller in program.call_sites[scope]:
                    given = argument(call, scope, node.id)
                    found += (
                        leaves(program, given, caller, index, depth + 1)
                        if given is not None
                        else ()
                    )
        case ast.Attribute(value=ast.Name(id="self")):
            bound = program.bindings_of(node, scope)
            for b in bound if all(b.how == "assign" for b in bound) else ():
                found += leaves(
                    program, b.value, b.scope, index if b.index is None else b.index, depth + 1
                )
        case ast.Call():
            function = program.callees_by_name(node, scope)
            returned = (
                [n.value for n in own_nodes_of(function.node, ast.Return) if n.value]
                if function is not None
                else []
            )
            if function is not None:
                found += [
                    leaf
                    for value in returned
                    for leaf in leaves(program, value, function, index, depth + 1)
                ]
    return found or [Leaf(node, scope)]


def key_read(node: ast.expr) -> object:
    """The constant by which an expression is taken out of a dict: of `state["epoch"]` and
    `state.get("epoch", 0)`; None for anything else.
    """
    if isinstance(node, ast.Subscript):
        return constant(node.slice)
    return (
        constant(node.args[0])
        if isinstance(node, ast.Call) and method(node) in ("get", "pop") and node.args
        else None
    )
