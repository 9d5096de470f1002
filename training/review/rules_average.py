"""Means of batches, for the rules that bend or choose by them."""

from __future__ import annotations

import ast

from training.review.lookups import attributes_of
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    constant,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes_of,
    walk,
)
from training.review.values import loss_kind, reaching


def single_rows(program: Program, loop: ast.For, scope: Scope) -> bool:
    """Whether a loader that is made in this file gives batches of one."""
    head = (
        loop.iter.args[0]
        if isinstance(loop.iter, ast.Call)
        and last_name(loop.iter.func) in ("enumerate", "tqdm")
        and loop.iter.args
        else loop.iter
    )
    made = [o.call for o in program.origins(head, scope) if o.last == "DataLoader"]
    return any(
        constant(keyword(c, "batch_size", 1)) in (1, None)
        and not isinstance(keyword(c, "batch_size", 1), (ast.Name, ast.Attribute, ast.BinOp))
        for c in made
    )


def _losses(
    program: Program, value: ast.expr, scope: Scope, depth: int = 0
) -> list[tuple[ast.Call, Scope]]:
    """The losses of which a value is made."""
    found = [(c, scope) for c in calls(value) if loss_kind(program, c, scope)]
    for call in calls(value) if isinstance(value, ast.Call) and not found and depth < 3 else ():
        for own in program.callees(call, scope):
            found += [
                loss
                for n in own_nodes_of(own.node, ast.Return)
                if n.value
                for loss in _losses(program, n.value, own, depth + 1)
            ]
    within = {n for c, _ in found for part in (c.func, *c.args) for n in walk(part)}
    for name in (n for n in nodes_of(value, ast.Name) if n not in within and depth < 3):
        for behind in reaching(program, name, scope):
            found += _losses(program, behind, scope, depth + 1)
    return found


def is_mean(program: Program, value: ast.expr, scope: Scope) -> bool:
    """Whether a value is made of losses that are all means over the batch."""
    if not isinstance(value, (ast.Name, ast.Call, ast.Attribute)):
        return False
    found = _losses(program, value, scope)
    return (
        bool(found)
        and all(_mean_reduction(program, c, s) for c, s in found)
        and not _is_sum(program, value, scope)
    )


def _is_sum(program: Program, value: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a sum or a multiplication by something is anywhere in what a value was made of, as
    far as it is in sight.
    """
    losses = [c for c in calls(value) if loss_kind(program, c, scope)]
    within = {
        n for c in losses for part in (c.func, *c.args) for n in walk(part)
    }  # scores and targets: any sum there is none of losses
    if any(
        (c not in within and method(c) == "sum")
        or constant(keyword(c, "reduction")) in ("sum", "none")
        for c in calls(value)
    ):
        return True
    if depth and any(
        isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult) and not _weighs(n)
        for n in walk(value)
        if n not in within
    ):
        return True
    names = [n for n in nodes_of(value, ast.Name) if n not in within] if depth < 3 else []
    found = any(
        _is_sum(program, behind, scope, depth + 1)
        for n in names
        for behind in reaching(program, n, scope)
    )
    return found or any(
        not _mean_reduction(program, c, s) for c, s in _losses(program, value, scope)
    )


def _weighs(product: ast.BinOp) -> bool:
    """Whether one side is a number that is written there, as the weight of a term."""
    return isinstance(constant(product.left), (int, float)) or isinstance(
        constant(product.right), (int, float)
    )


def _mean_reduction(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a loss is left at its own reduction, the mean."""
    if any(isinstance(n.ctx, ast.Store) for n in attributes_of(program, "reduction")):
        return False  # set after it was made
    made = (
        [call]
        if program.resolve(call.func).startswith("torch.")
        else [o.call for o in program.origins(call.func, scope)]
    )
    unusual = {"reduction", "size_average", "reduce"}
    return bool(made) and all(
        not unusual & {str(k.arg) for k in c.keywords}
        or constant(keyword(c, "reduction")) == "mean"
        for c in made
    )
