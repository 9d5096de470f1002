"""Rule BH229: labels are compared with the greatest score, not with its class."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.provenance import role
from training.review.syntax import (
    calls,
    constant,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
)
from training.review.values import reaching_elements

SAME = {
    "view", "reshape", "squeeze", "flatten", "cpu", "to", "detach", "float", "long", "int", "numpy",
}  # fmt: skip


DECISIONS = {"argmax", "round", "gt", "ge", "lt", "le"}


@rule("BH229")
def greatest_score_as_class(subject: Subject) -> Iterator[Place]:
    """The values of `max` over one axis of a network's scores are compared by == with something
    that is not made of them, or any such values with labels.
    """
    program = subject.program
    if "max" not in program.called_names:
        return
    for node, sides in _comparisons(program):
        for one, other in (sides, sides[::-1]):
            scope = program.scope(node)
            scores = _values_of(program, one, scope)
            if (
                scores is None
                or constant(other) is not None
                or _extreme(other)
                or _values_of(program, other, scope) is not None
            ):
                continue
            if _decided(program, scores, scope) or _of_same_scores(program, other, scores, scope):
                continue
            belong = (
                role(program, scores, scope) == "scores" or role(program, other, scope) == "labels"
            )
            if belong and not (names_read(scores) | names_read(one)) & names_read(other):
                yield (
                    node,
                    (
                        f"{ast.unparse(one)} holds the greatest values of {ast.unparse(scores)},"
                        " not where they stand"
                    ),
                )
                break


def _comparisons(program: Program) -> Iterator[tuple[ast.expr, tuple[ast.expr, ast.expr]]]:
    """Both sides of ==, `.eq()` and `torch.eq()`."""
    for node in program.nodes[ast.Compare]:
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            yield node, (node.left, node.comparators[0])
    for call in program.all_calls if "eq" in program.called_names else ():
        if program.is_torch(call.func, "eq") and len(call.args) == 2:
            yield call, (call.args[0], call.args[1])
        elif method(call) == "eq" and len(call.args) == 1 and (on := receiver(call)) is not None:
            yield call, (on, call.args[0])


def _values_of(
    program: Program, node: ast.expr, scope: Scope, index: int | None = None
) -> ast.expr | None:
    """The scores of which these are the greatest along an axis."""
    match node:
        case ast.Name() if index is None:
            found = reaching_elements(program, node, scope)
            return (
                _values_of(
                    program, found[0][0], scope, found[0][1] if found[0][1] is not None else -1
                )
                if len(found) == 1
                else None
            )
        case ast.Subscript() if index in (None, -1):
            return (
                _values_of(program, node.value, scope, 0)
                if constant(node.slice) == 0 and isinstance(node.value, ast.Call)
                else None
            )
        case ast.Attribute(attr="values") if index in (None, -1):
            return _values_of(program, node.value, scope, 0)
        case ast.Call() if (
            method(node) in SAME and index in (None, -1) and not program.resolve(node.func)
        ):
            on = receiver(node)
            return _values_of(program, on, scope, index) if on is not None else None
        case ast.Call() if index == 0:
            return _of_max(program, node)
    return None


def _of_max(program: Program, call: ast.Call) -> ast.expr | None:
    """What `torch.max(scores, 1)` or `scores.max(dim=1)` goes over: with an axis that is left out
    afterwards.
    """
    if last_name(call.func) != "max" or is_true(keyword(call, "keepdim")):
        return None
    if program.is_torch(call.func, "max"):
        axis = keyword(call, "dim", 1)
        return (
            call.args[0]
            if call.args and isinstance(constant(axis), int) and len(call.args) <= 2
            else None
        )
    axis = keyword(call, "dim", 0)
    return receiver(call) if isinstance(constant(axis), int) and len(call.args) <= 1 else None


def _decided(program: Program, scores: ast.expr, scope: Scope) -> bool:
    """Whether what the greatest is taken of are decisions already, of which it is one."""
    values = (
        [v for v, _ in reaching_elements(program, scores, scope)]
        if isinstance(scores, ast.Name)
        else []
    )
    return any(last_name(c.func) in DECISIONS for v in (scores, *values) for c in calls(v)) or any(
        isinstance(n, ast.Compare) for v in (scores, *values) for n in walk(v)
    )


def _of_same_scores(program: Program, other: ast.expr, scores: ast.expr, scope: Scope) -> bool:
    """Whether the other side is taken out of the same scores, one name back."""
    values = [v for n in nodes_of(other, ast.Name) for v, _ in reaching_elements(program, n, scope)]
    return any(names_read(v) & names_read(scores) for v in values)


def _extreme(node: ast.expr) -> bool:
    """Whether the other side is a least or greatest value too, or infinite."""
    return (
        isinstance(node, ast.UnaryOp)
        or last_name(node) == "inf"
        or (isinstance(node, ast.Call) and last_name(node.func) in ("max", "min", "amax", "amin"))
    )
