"""What becomes of a gradient that `torch.autograd.grad` gives: whether it is a term of the loss, as a penalty on it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.lookups import calls_to
from training.review.program import Program, Scope
from training.review.syntax import constant, identifiers, last_name, method, once, walk
from training.review.values import number, reaching_elements

DEPTH = 40
NORMS = {"norm", "vector_norm", "square", "pow", "abs", "sqrt"}
SUMS = {"mean", "sum"}
DISTANCES = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
KEPT = {"view", "reshape", "flatten", "squeeze", "unsqueeze", "float", "contiguous", "clamp", "relu", "to", "clamp_min", "double", "transpose", "permute", "t"}


class Term(NamedTuple):
    """A sum to which a penalty made of a gradient is added, or from which it is taken away."""

    node: ast.expr
    sum: ast.BinOp | ast.AugAssign
    subtracted: bool


@once
def slopes(program: Program) -> tuple[ast.Call, ...]:
    """Every call of `torch.autograd.grad`."""
    return tuple(calls_to(program, "torch.autograd.grad", "torch.autograd.functional.jacobian"))


def terms(program: Program, call: ast.Call) -> Iterator[Term]:
    """The sums into which the norm or square of a gradient goes, averaged or summed up; through names of the function and what it returns."""
    yield from _outwards(program, call, {"start"}, set())


def _outwards(program: Program, node: ast.expr, been: set[str], done: set[int]) -> Iterator[Term]:
    """`been`: what it has gone through, `norm` and `sum` among others."""
    if id(node) in done or len(done) > DEPTH:
        return
    done.add(id(node))
    above = program.parents[node]
    if isinstance(above, ast.BinOp):
        yield from _through_operator(program, node, above, been, done)
    elif isinstance(above, (ast.UnaryOp, ast.Subscript, ast.IfExp)):
        yield from _outwards(program, above, been, done)
    elif isinstance(above, ast.AugAssign):
        if {"norm", "sum"} <= been and isinstance(above.op, (ast.Add, ast.Sub)):
            yield Term(node, above, isinstance(above.op, ast.Sub))
    elif isinstance(above, (ast.Attribute, ast.Call, ast.keyword)):
        yield from _through_call(program, node, above, been, done)
    elif isinstance(above, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        for name in _loads(program, above, node):
            yield from _outwards(program, name, been, done)
    elif isinstance(above, ast.Return):
        for call, _ in program.call_sites[program.scope(above)]:
            yield from _outwards(program, call, been, done)


def _through_operator(program: Program, node: ast.expr, above: ast.BinOp, been: set[str], done: set[int]) -> Iterator[Term]:
    other = above.right if above.left is node else above.left
    match above.op:
        case ast.Add() | ast.Sub():
            if constant(other) is not None or number(program, other, program.scope(above)) is not None or "sum" not in been:
                yield from _outwards(program, above, been, done)
            elif "norm" in been:
                yield Term(node, above, isinstance(above.op, ast.Sub) and above.right is node)
        case ast.Pow() if above.left is node:
            yield from _outwards(program, above, been | {"norm"}, done)
        case ast.Mult() | ast.Div():
            square = ast.dump(other) == ast.dump(node)
            if square or (is_weight(program, other) and not (isinstance(above.op, ast.Div) and above.right is node)):
                yield from _outwards(program, above, been | ({"norm"} if square else set()), done)


def _through_call(program: Program, node: ast.expr, above: ast.AST, been: set[str], done: set[int]) -> Iterator[Term]:
    call = program.parents[above] if isinstance(above, (ast.Attribute, ast.keyword)) else above
    first = isinstance(above, ast.Attribute) or (isinstance(call, ast.Call) and bool(call.args) and call.args[0] is node)
    if (
        isinstance(above, ast.Call)
        and node in above.args
        and program.is_torch(above.func, *DISTANCES)
        and not any(k.arg == "reduction" for k in above.keywords)
    ):
        yield from _outwards(program, above, been | {"norm", "sum"}, done)
    if not isinstance(call, ast.Call) or not first or (isinstance(above, ast.Attribute) and call.func is not above):
        return
    name = method(call) or last_name(call.func)
    if isinstance(above, ast.Call) and not program.resolve(call.func).startswith("torch."):
        return
    if name in NORMS | SUMS | KEPT:
        whole = name in SUMS or (name in ("norm", "vector_norm") and not any(k.arg in ("dim", "axis") for k in call.keywords))
        yield from _outwards(program, call, been | ({"norm"} if name in NORMS else set()) | ({"sum"} if whole else set()), done)


def _loads(program: Program, statement: ast.Assign | ast.AnnAssign | ast.NamedExpr, value: ast.expr) -> Iterator[ast.Name]:
    """Where the names that a statement binds are read with that value."""
    bound = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = {n.id for t in bound for n in walk(t) if isinstance(n, ast.Name)}
    scope = program.scope(statement)
    for node in walk(scope.node):
        if not (isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)):
            continue
        if program.scope(node) is scope and any(value is v for v, _ in reaching_elements(program, node, scope)):
            yield node


def is_weight(program: Program, node: ast.expr) -> bool:
    """Whether a factor is a setting: a number, a parameter or an attribute, or a name of capitals; nothing that was computed from tensors."""
    scope: Scope = program.scope(node)
    if constant(node) is not None or number(program, node, scope) is not None:
        return True
    if isinstance(node, ast.BinOp):
        return is_weight(program, node.left) and is_weight(program, node.right)
    if isinstance(node, ast.Name):
        bound = program.bindings_of(node, scope)
        if not bound:
            return node.id in scope.parameters
        return len(bound) == 1 and bound[0].index is None and bound[0].how == "assign" and is_weight(program, bound[0].value)
    return isinstance(node, (ast.Attribute, ast.Subscript)) and not {"grad", "data"} & identifiers(node)
