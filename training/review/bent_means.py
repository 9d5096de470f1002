"""Where perplexity or RMSE of each batch is averaged: exp or the root of a mean, taken before the
mean over batches.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.additions import additions
from training.review.loops import innermost_loop
from training.review.program import Program, Scope
from training.review.provenance import is_loader
from training.review.rules_average import is_mean, single_rows
from training.review.syntax import (
    calls,
    constant,
    dotted,
    exponent,
    last_name,
    method,
    nodes_of,
    own_nodes,
    receiver,
)
from training.review.values import reaching

AVERAGES = {"mean", "fmean", "average", "nanmean"}
NUMBER = {"item", "cpu", "detach", "float", "numpy"}
DEPTH = 3


def bent_means(program: Program) -> Iterator[tuple[ast.expr, str, ast.For]]:
    """Terms that a loop over batches without a backward pass adds up or collects, each exp or the
    root of a mean loss, and that are averaged after it.

    Not told in a file that propagates such a root: there it is the loss itself, and its mean is
    that of the loss.
    """
    backward = program.methods_of("backward")
    if any(bend(program, receiver(c), program.scope(c)) for c in backward):
        return
    for loop in program.nodes[ast.For]:
        scope = program.scope(loop)
        if (
            not is_loader(program, loop.iter, scope)
            or single_rows(program, loop, scope)
            or any(method(c) == "backward" for c in calls(loop))
        ):
            continue
        added = [
            (a.name, a.value)
            for a in additions(loop)
            if innermost_loop(program, a.statement) is loop
        ]
        collected = [
            c
            for c in calls(loop)
            if method(c) == "append" and len(c.args) == 1 and innermost_loop(program, c) is loop
        ]
        terms = [*added, *((dotted(receiver(c)), c.args[0]) for c in collected)]
        for name, value in terms:
            of = bend(program, value, scope)
            if of and _averaged(name, scope, loop):
                yield value, of, loop


def bend(program: Program, value: ast.expr | None, scope: Scope, depth: int = 0) -> str:
    """`exp` or `the root` where a value is one of a mean over a batch; empty where it is not."""
    if value is None or depth > DEPTH:
        return ""
    if isinstance(value, ast.Call) and (
        method(value) in NUMBER or last_name(value.func) == "float"
    ):
        inner = (
            receiver(value)
            if method(value) in NUMBER and not value.args
            else value.args[0]
            if value.args
            else None
        )
        return bend(program, inner, scope, depth)
    if isinstance(value, ast.Name):
        found = {
            bend(program, behind, scope, depth + 1) for behind in reaching(program, value, scope)
        }
        return found.pop() if len(found) == 1 else ""
    inner = exponent(value)
    if inner is not None:
        return "exp" if _mean(program, inner, scope) else ""
    inner = _under_root(value)
    return "the root" if inner is not None and _mean(program, inner, scope) else ""


def _under_root(value: ast.expr) -> ast.expr | None:
    """What a root is taken of: `sqrt(x)`, `x.sqrt()`, `x ** 0.5`."""
    if (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Pow)
        and constant(value.right) == 0.5
    ):
        return value.left
    if isinstance(value, ast.Call) and last_name(value.func) == "sqrt":
        return value.args[0] if value.args else receiver(value)
    return None


def _mean(program: Program, value: ast.expr, scope: Scope) -> bool:
    """Whether it is a loss that is a mean over the batch, or the mean of squared differences, as a
    number or not.
    """
    while (
        isinstance(value, ast.Call)
        and method(value) in NUMBER
        and (inner := receiver(value)) is not None
    ):
        value = inner
    if (
        isinstance(value, ast.Call)
        and method(value) == "mean"
        and not value.args
        and not value.keywords
    ):
        squared = receiver(value)
        power = (isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Pow)) or method(
            squared
        ) in ("pow", "square")
        return (
            power
            and squared is not None
            and any(isinstance(n.op, ast.Sub) for n in nodes_of(squared, ast.BinOp))
        )
    return is_mean(program, value, scope)


def _averaged(name: str, scope: Scope, loop: ast.For) -> bool:
    """Whether a sum is divided after the loop, or what was collected is averaged there."""
    for node in own_nodes(scope.node):
        if getattr(node, "lineno", 0) < (loop.end_lineno or 0) or not name:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _holds(node.left, name):
            return True
        if (
            isinstance(node, ast.Call)
            and last_name(node.func) in AVERAGES
            and any(_holds(a, name) for a in [*node.args, receiver(node)] if a is not None)
        ):
            return True
    return False


def _holds(node: ast.expr, name: str) -> bool:
    """Whether it is that name, its `sum(…)` or its tensor."""
    if (
        isinstance(node, ast.Call)
        and last_name(node.func) in ("sum", "tensor", "array", "stack", "Tensor", "as_tensor")
        and node.args
    ):
        return _holds(node.args[0], name)
    return dotted(node) == name
