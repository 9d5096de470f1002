"""Rule BH313: a divergence that is added with the wrong sign."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program
from training.review.syntax import constant, dotted, exponent, last_name, method, receiver

THROUGH = {"sum", "mean", "flatten", "view", "reshape", "squeeze"}


@rule(
    "BH313",
    "divergence-with-wrong-sign",
    "error",
    title="A KL divergence is added with the wrong sign",
    why="1 + log σ² - μ² - σ² is never above 0: without the minus in front, minimising the loss drives the posterior as far from the prior as it goes.",
    remedy="`kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()`",
    bad="""
        import torch
        from torch.nn import functional as F

        def loss(x, x_hat, mu, logvar):
            kl = 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
            return F.mse_loss(x_hat, x, reduction="sum") / len(x) + kl
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def loss(x, x_hat, mu, logvar):
            kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
            return F.mse_loss(x_hat, x, reduction="sum") / len(x) + kl
        """,
)
def divergence_with_wrong_sign(subject: Subject) -> Iterator[Place]:
    """`1 + a - b² - exp(a)` goes on with a plus, and nothing that it is given to, by its name, is subtracted or turned round."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        above = program.parents[node]
        if (
            not isinstance(node, ast.BinOp)
            or (isinstance(above, ast.BinOp) and isinstance(above.op, ast.Add | ast.Sub))
            or (sign := divergence_sign(node)) == 0
        ):
            continue
        sign, statement = _outwards(program, node, sign)
        name = dotted(statement.targets[0]).rpartition(".")[2] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else ""
        turned = name and any(_subtracts(n, name) for kind in (ast.BinOp, ast.UnaryOp, ast.AugAssign) for n in program.nodes[kind])
        if sign < 0 and not turned:
            yield node, "the KL divergence is minus a half of this, and goes into the loss with a plus"


def _terms(node: ast.expr, sign: int) -> list[tuple[int, ast.expr]]:
    """The terms of a sum, each with its sign."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _terms(node.left, sign) + _terms(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _terms(node.operand, -sign)
    return [(sign, node)]


def divergence_sign(node: ast.expr) -> int:
    """-1 where it is 1 + a - b² - exp(a), which is never above 0, +1 where it is the negative of that, 0 for anything else."""
    terms = _terms(node, 1)
    ones = [s for s, t in terms if constant(t) in (1, 1.0)]
    squares = [s for s, t in terms if _is_square(t)]
    powers = [(s, ast.unparse(inner)) for s, t in terms if (inner := exponent(t)) is not None]
    plain = {ast.unparse(t): s for s, t in terms if isinstance(t, ast.Name | ast.Attribute | ast.Subscript)}
    if len(terms) != 4 or not (len(ones) == len(squares) == len(powers) == 1) or powers[0][1] not in plain:
        return 0
    signs = (ones[0], plain[powers[0][1]], -squares[0], -powers[0][0])
    return -signs[0] if len(set(signs)) == 1 else 0


def _is_square(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return constant(node.right) == 2
    squared = isinstance(node, ast.Call) and last_name(node.func)
    return squared == "square" or (squared == "pow" and isinstance(node, ast.Call) and bool(node.args) and constant(node.args[-1]) == 2)


def _outwards(program: Program, node: ast.AST, sign: int) -> tuple[int, ast.AST]:
    """The sign with which a value goes into its statement, and the statement."""
    while not isinstance(node, ast.stmt):
        above = program.parents[node]
        if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.USub):
            sign = -sign
        elif isinstance(above, ast.BinOp):
            other = above.right if above.left is node else above.left
            negative = isinstance(other, ast.UnaryOp) and isinstance(other.op, ast.USub)
            if isinstance(above.op, ast.Mult | ast.Div) and (negative or (isinstance(value := constant(other), int | float) and value < 0)):
                sign = -sign
            if isinstance(above.op, ast.Sub) and above.right is node:
                sign = -sign
        node = above
    return sign, node


def _subtracts(node: ast.AST, name: str) -> bool:
    """Whether something of that name is subtracted, negated or multiplied by what is below 0."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_named(node.operand, name)
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Sub) and _is_named(node.value, name)
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.Sub):
        return _is_named(node.right, name)
    negative = [isinstance(side, ast.UnaryOp) and isinstance(side.op, ast.USub) for side in (node.left, node.right)]
    return isinstance(node.op, ast.Mult) and any(negative) and (_is_named(node.left, name) or _is_named(node.right, name))


def _is_named(node: ast.expr, name: str) -> bool:
    """Whether a value is that of a name, its sum or mean, or a multiple of it."""
    while isinstance(node, ast.Call) and method(node) in THROUGH and (inner := receiver(node)) is not None:
        node = inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _is_named(node.left, name) or _is_named(node.right, name)
    return last_name(node) == name
