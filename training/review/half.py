"""Where a network is cast to float16: by `half`, `to` or `type`, in its layers, in its maker, or in
a statement of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import SAME_OBJECT, Program, Scope
from training.review.syntax import dotted, last_name, method, own_nodes, receiver

DEPTH = 5


def half_casts(
    program: Program, network: ast.expr | None, scope: Scope, depth: int = 0
) -> Iterator[ast.Call]:
    """The calls that make a network one of float16, as far as its making is in sight; a copy of it
    is another network.
    """
    if network is None or depth > DEPTH:
        return
    if isinstance(network, ast.Call):
        yield from _of_call(program, network, scope, depth)
        return
    for binding in program.bindings_of(network, scope):
        if binding.how == "assign" and binding.index is None:
            yield from half_casts(program, binding.value, binding.scope, depth + 1)
    name = dotted(network)
    for call in program.all_calls:
        statement = (
            isinstance(program.parents[call], ast.Expr)
            and name != ""
            and dotted(receiver(call)) == name
        )
        inside = program.scope(call) is scope or (
            name.startswith("self.") and program.scope(call).owner is scope.owner
        )
        if statement and inside and _casts(program, call):
            yield call


def _of_call(program: Program, call: ast.Call, scope: Scope, depth: int) -> Iterator[ast.Call]:
    if _casts(program, call):
        yield call
    elif method(call) in SAME_OBJECT and not program.resolve(call.func):
        yield from half_casts(program, receiver(call), scope, depth + 1)
    elif program.is_torch(
        call.func, "DistributedDataParallel", "DataParallel", "compile", "Sequential"
    ):
        for inner in call.args:
            yield from half_casts(program, inner, scope, depth + 1)
    elif program.resolve(call.func).startswith("torch.nn.") and any(
        k.arg == "dtype" and _is_float16(program, k.value) for k in call.keywords
    ):
        yield call
    elif (function := program.callees_by_name(call, scope)) is not None:
        for node in own_nodes(function.node):
            if isinstance(node, ast.Return):
                yield from half_casts(program, node.value, function, depth + 1)


def _casts(program: Program, call: ast.Call) -> bool:
    """Whether a method casts what it is called on to float16."""
    given = [*call.args, *(k.value for k in call.keywords)]
    return (method(call) == "half" and not given) or (
        method(call) in ("to", "type") and any(_is_float16(program, a) for a in given)
    )


def _is_float16(program: Program, node: ast.expr) -> bool:
    return program.resolve(node).startswith("torch.") and last_name(node) in ("float16", "half")
