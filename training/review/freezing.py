"""Statements that freeze the parameters of a whole network, and those that set them free."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.program import Program, Scope, argument
from training.review.syntax import (
    constant,
    dotted,
    is_false,
    method,
    own_nodes,
    own_nodes_of,
    receiver,
)


class Freeze(NamedTuple):
    """All parameters of `network` are frozen, but those whose name holds `spared` (None:
    none is).
    """

    node: ast.stmt
    network: str
    scope: Scope
    spared: str | None


def freezes(program: Program) -> Iterator[Freeze]:
    """Every statement that freezes a network: a loop, `requires_grad_(False)`, or a call of a
    function of this file that does no more to what it is given.
    """
    for scope in (
        program.scopes if {"requires_grad", "requires_grad_"} & program.identifiers else ()
    ):
        for node in own_nodes(scope.node):
            if isinstance(node, ast.For):
                yield from _of_loop(node, scope)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                yield from _of_call(program, node, node.value, scope)


def _of_loop(node: ast.For, scope: Scope) -> Iterator[Freeze]:
    """`for p in net.parameters(): p.requires_grad = False`, perhaps under a condition on
    the name.
    """
    network = (
        dotted(receiver(node.iter))
        if method(node.iter) in ("parameters", "named_parameters")
        else ""
    )
    for statement in node.body if network else ():
        if sets(statement) is False:
            yield Freeze(node, network, scope, None)
        elif (
            isinstance(statement, ast.If)
            and not statement.orelse
            and len(node.body) == 1
            and sets(statement.body[0]) is False
        ):
            spared = _spared(statement.test)
            if spared is not None:
                yield Freeze(node, network, scope, spared)
        elif (
            isinstance(statement, ast.Assign)
            and dotted(statement.targets[0]).endswith(".requires_grad")
            and _held(statement.value) is not None
        ):
            yield Freeze(node, network, scope, _held(statement.value))


def _of_call(program: Program, node: ast.Expr, call: ast.Call, scope: Scope) -> Iterator[Freeze]:
    if (
        method(call) == "requires_grad_"
        and call.args
        and is_false(call.args[0])
        and dotted(receiver(call))
    ):
        yield Freeze(node, dotted(receiver(call)), scope, None)
    function = (
        program.local_function(call.func.id, scope) if isinstance(call.func, ast.Name) else None
    )
    if (
        function is not None
        and len(call.args) == 1
        and dotted(call.args[0])
        and len(function.parameters) == 1
    ):
        inner = [f for n in own_nodes_of(function.node, ast.For) for f in _of_loop(n, function)]
        if len(inner) == 1 and inner[0].network == function.parameters[0]:
            yield Freeze(node, dotted(call.args[0]), scope, inner[0].spared)


def sets(statement: ast.AST) -> bool | None:
    """To what literal a statement sets `requires_grad`; None where it does not, or where that is no
    literal.
    """
    if (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Attribute)
        and statement.targets[0].attr == "requires_grad"
    ):
        value = constant(statement.value)
        return value if isinstance(value, bool) else None
    call = statement.value if isinstance(statement, ast.Expr) else statement
    if isinstance(call, ast.Call) and method(call) == "requires_grad_":
        given = constant(call.args[0]) if call.args else True
        return given if isinstance(given, bool) else None
    return None


def _spared(test: ast.expr) -> str | None:
    """The text of `"head" not in name` and `not name.startswith("head")`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _held(test.operand)
    return (
        _text(test.left)
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn)
        else None
    )


def _held(test: ast.expr) -> str | None:
    """The text of `"head" in name` and `name.startswith("head")`."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In):
        return _text(test.left)
    return (
        _text(test.args[0])
        if isinstance(test, ast.Call) and method(test) == "startswith" and test.args
        else None
    )


def _text(node: ast.expr) -> str | None:
    value = constant(node)
    return value if isinstance(value, str) else None


def frees(program: Program) -> list[ast.AST]:
    """Everything that sets parameters free, or may do so."""
    names = [n for n in program.nodes[ast.Assign] if sets(n) is True or _by_value(n)]
    return [*names, *(c for c in program.all_calls if _frees(c))]


def _by_value(node: ast.AST) -> bool:
    """Whether `requires_grad` is set to something other than a literal or a question about
    a name.
    """
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    value = node.value if isinstance(node, ast.Assign) else None
    return (
        isinstance(target, ast.Attribute)
        and target.attr == "requires_grad"
        and value is not None
        and not isinstance(value, ast.Constant)
        and _held(value) is None
    )


def _frees(call: ast.Call) -> bool:
    spoken = method(call) or dotted(call.func)
    return (
        (method(call) == "requires_grad_" and sets(call) is not False)
        or "unfreeze" in spoken
        or "trainable" in spoken
        or "peft" in spoken
        or "lora" in spoken
    )


class Switch(NamedTuple):
    """The parameters of `network` are frozen (False) or set free (True)."""

    node: ast.stmt
    network: str
    free: bool


def switches(program: Program, scope: Scope) -> Iterator[Switch]:
    """Every statement of a function that freezes or frees a network, itself or by a function or
    method of this file.
    """
    for node in own_nodes(scope.node):
        if isinstance(node, ast.For):
            flags = [(network, constant(value)) for network, value in _switched(node)]
            yield from (
                Switch(node, network, flag) for network, flag in flags if isinstance(flag, bool)
            )
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _switched_by(program, node, node.value, scope)


def _switched_by(
    program: Program, node: ast.Expr, call: ast.Call, scope: Scope
) -> Iterator[Switch]:
    flag = sets(call)
    if flag is not None and dotted(receiver(call)):
        yield Switch(node, dotted(receiver(call)), flag)
    for function in program.callees(call, scope):
        for network, value in (
            found for n in own_nodes_of(function.node, ast.For) for found in _switched(n)
        ):
            root, dot, rest = network.partition(".")
            own = receiver(call) if root == "self" else argument(call, function, root)
            given = constant(
                argument(call, function, value.id) if isinstance(value, ast.Name) else value
            )
            if own is not None and dotted(own) and isinstance(given, bool):
                yield Switch(node, dotted(own) + dot + rest, given)


def _switched(node: ast.For) -> Iterator[tuple[str, ast.expr]]:
    """Of `for p in net.parameters(): p.requires_grad = flag` the network, and the value."""
    network = (
        dotted(receiver(node.iter))
        if method(node.iter) in ("parameters", "named_parameters")
        else ""
    )
    for statement in node.body if network else ():
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Attribute)
            and statement.targets[0].attr == "requires_grad"
        ):
            yield network, statement.value
        elif (
            isinstance(statement, ast.Expr)
            and method(statement.value) == "requires_grad_"
            and isinstance(statement.value, ast.Call)
        ):
            yield network, statement.value.args[0] if statement.value.args else ast.Constant(True)
