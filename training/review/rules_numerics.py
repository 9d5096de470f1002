"""Rule BH440: functions written by hand that overflow where torch's own do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import dotted, exponent, identifiers, method, receiver, walk, words

BOUNDED = {
    "max", "amax", "maximum", "normalize", "cosine", "similarity", "cos", "sim", "tanh", "hardtanh",
    "sigmoid", "clamp", "clip", "log", "logsumexp", "logsoftmax", "lse", "temperature", "tau",
}  # fmt: skip
DEPTH = 3  # names that a value is followed through


@rule("BH440")
def softmax_by_hand(subject: Subject) -> Iterator[Place]:
    """In a method of a network exp of what one of its layers gives is divided by its own sum, with
    no maximum subtracted, nor a bound, before.
    """
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        if not isinstance(node.op, ast.Div):
            continue
        scope = program.scope(node)
        if (
            not program.is_module(scope.owner)
            or dotted(node.left) == ""
            or not _sum_of(program, node.right, dotted(node.left))
        ):
            continue
        for binding in program.bindings_of(node.left, scope):
            given = (
                exponent(binding.value)
                if binding.how == "assign" and binding.index is None
                else None
            )
            if given is not None and _of_layer(program, given, scope):
                yield (
                    node,
                    (
                        f"{dotted(node.left)} is exp({ast.unparse(given)}), divided by its own sum:"
                        " from a score of 89 on both are inf"
                    ),
                )
                break


def _sum_of(program: Program, node: ast.expr, name: str) -> bool:
    """Whether it is the sum of what has that name."""
    if not isinstance(node, ast.Call):
        return False
    return (method(node) == "sum" and dotted(receiver(node)) == name) or (
        program.is_torch(node.func, "sum") and bool(node.args) and dotted(node.args[0]) == name
    )


def _of_layer(program: Program, node: ast.expr, scope: Scope, depth: int = DEPTH) -> bool:
    """Whether a value is what a layer of the network gives, as it is: no difference, no sign, no
    name of a bound.
    """
    if isinstance(node, ast.Name) and depth:
        bound = program.bindings_of(node, scope)
        return bool(bound) and all(
            b.how == "assign" and _of_layer(program, b.value, scope, depth - 1) for b in bound
        )
    if (
        any(isinstance(n, (ast.UnaryOp, ast.Sub, ast.Div, ast.Pow)) for n in walk(node))
        or {w for n in identifiers(node) for w in words(n)} & BOUNDED
    ):
        return False
    if not (
        isinstance(node, ast.Call)
        and dotted(node.func).startswith("self.")
        and dotted(node.func).count(".") == 1
    ):
        return False
    made = [o.call for o in program.origins(node.func, scope)]
    own = [
        program.methods[program.classes[o.name]].get("forward")
        for o in program.origins(node.func, scope)
        if o.name in program.classes
    ]
    inside = [
        *made,
        *(f.node for f in own if f is not None),
        *(f.node for f in program.callees(node, scope)),
    ]
    return not {w for part in inside for n in identifiers(part) for w in words(n)} & (
        BOUNDED | {"softplus"}
    )
