"""Rule BH313: a divergence with a wrong sign or a wrong term."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import keywords_of
from training.review.program import Program
from training.review.signs import Signs
from training.review.syntax import children, constant, dotted, exponent, identifiers, is_true, last_name, method, once, receiver, walk, words
from training.review.values import number

THROUGH = {"sum", "mean", "flatten", "view", "reshape", "squeeze"}
MEANS = {"mu", "mus", "mean", "means", "loc", "m"}


@rule(
    "BH313",
    "divergence-with-wrong-sign",
    "error",
    title="A KL divergence has a wrong sign or a wrong term",
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
    """`1 + a - b² - exp(a)` goes on with a plus, and nothing that it is given to, by its name, is subtracted or turned round; or it is nearly that formula."""
    program = subject.program
    for node in program.nodes[ast.BinOp]:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
            continue
        above = program.parents[node]
        if isinstance(above, ast.BinOp) and isinstance(above.op, (ast.Add, ast.Sub)):
            continue
        if (sign := divergence_sign(node)) == 0:
            if wrong := _wrong_term(node):
                yield node, wrong
            continue
        sign, statement = _outwards(program, node, sign)
        name = dotted(statement.targets[0]).rpartition(".")[2] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else ""
        above, around = program.parents[node], program.ancestors(node)
        called = [above, *(a for a in around if isinstance(a, ast.Call))]
        if any(_turns(a) for a in called) or _arrives_below_0(program, node) or _settled_elsewhere(program, node):
            continue
        turned = name and any(_subtracts(n, name) for kind in (ast.BinOp, ast.UnaryOp, ast.AugAssign) for n in program.nodes[kind])
        if sign < 0 and not turned:
            yield node, "the KL divergence is minus a half of this, and goes into the loss with a plus"


def _turns(node: ast.AST) -> bool:
    """Whether it is a call that may turn the sign of what it is called on, or of what it is given."""
    return isinstance(node, ast.Call) and (
        method(node) in ("neg", "neg_", "mul_", "mul", "div", "div_", "sub", "rsub", "negative") or last_name(node.func) == "sub"
    )


def _arrives_below_0(program: Program, node: ast.BinOp) -> bool:
    """Whether what is never above 0 is negated on each of its ways into backward, which may lead through a bound that callers negate."""
    return Signs(program).into_backward(node, divergence_sign(node)) == {1}


def _settled_elsewhere(program: Program, node: ast.BinOp) -> bool:
    """Whether its sign is decided out of sight: a function gives it back, a dict holds it, or an optimizer ascends."""
    ascends = any(is_true(k.value) for k in keywords_of(program, "maximize"))
    statement = program.statement(node)
    name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else ""
    uses = [n for n in walk(program.scope(node).node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)] if name else []
    multiplied = any(
        isinstance(n, ast.AugAssign) and dotted(n.target) == name and isinstance(n.op, (ast.Mult, ast.Div)) for n in walk(program.scope(node).node)
    )
    negated = any(_negates(above) or _turns(above) for n in uses for above in program.ancestors(n)[:3]) or any(
        _by_constant(program, a) for a in program.ancestors(node)
    )
    negated = negated or (not name and any(_negates(a) for a in program.ancestors(node)[:4]))
    return ascends or multiplied or negated


def _by_constant(program: Program, node: ast.AST) -> bool:
    """Whether something is multiplied by a name of the file that holds a number below 0."""
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)) else ()
    return any(isinstance(s, ast.Name) and (number(program, s, program.top) or 0) < 0 for s in sides)


def _negates(node: ast.AST) -> bool:
    """Whether something is multiplied or divided by what is below 0, as `-0.5` or a constant of capitals, or subtracted."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        sides = (node.left, node.right)
        return any(isinstance(s, ast.UnaryOp) or (isinstance(s, ast.Name) and s.id.isupper()) for s in sides)
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _terms(node: ast.expr, sign: int) -> list[tuple[int, ast.expr]]:
    """The terms of a sum, each with its sign."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return _terms(node.left, sign) + _terms(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _terms(node.operand, -sign)
    return [(sign, node)]


def divergence_sign(node: ast.expr) -> int:
    """-1 where it is 1 + a - b² - exp(a), which is never above 0, +1 where it is the negative of that, 0 for anything else."""
    terms = _terms(node, 1)
    ones = [s for s, t in terms if constant(t) in (1, 1.0)]
    if len(terms) != 4 or len(ones) != 1:
        return 0
    squares = [s for s, t in terms if _is_square(t)]
    powers = [(s, ast.unparse(inner)) for s, t in terms if (inner := exponent(t)) is not None]
    plain = {ast.unparse(t): s for s, t in terms if isinstance(t, (ast.Name, ast.Attribute, ast.Subscript))}
    if not (len(squares) == len(powers) == 1) or powers[0][1] not in plain:
        return 0
    signs = (ones[0], plain[powers[0][1]], -squares[0], -powers[0][0])
    return -signs[0] if len(set(signs)) == 1 else 0


@once
def divergences(program: Program) -> tuple[tuple[ast.BinOp, ast.expr, ast.expr], ...]:
    """Every `1 + a - b² - exp(a)` or its negative: the expression, a, which is a log variance, and b, a mean."""
    found = []
    for node in program.nodes[ast.BinOp] if program.calls_of("exp") else ():
        if isinstance(node, ast.BinOp) and divergence_sign(node):
            terms = [t for _, t in _terms(node, 1)]
            logs = [inner for t in terms if (inner := exponent(t)) is not None]
            found.append((node, logs[0], next(squared for t in terms if (squared := _root(t)) is not None)))
    return tuple(found)


def is_log_variance(name: str) -> bool:
    """Whether a name speaks of the logarithm of a variance.

    >>> [is_log_variance(n) for n in ("logvar", "z_log_var", "log_variance", "log_std", "var")]
    [True, True, True, False, False]
    """
    plain = name.lower().replace("_", "")
    return plain.endswith(("logvar", "logvariance", "logsigma2", "logsigmasq")) or "logvar" in plain


def _wrong_term(node: ast.BinOp) -> str:
    """What is wrong in four terms of a log variance and a mean, called so, one of them 1: nearly the divergence, but another function."""
    terms = _terms(node, 1)
    if len(terms) != 4 or sum(constant(t) in (1, 1.0) for _, t in terms) != 1:
        return ""
    names = {ast.unparse(n) for _, t in terms for n in _values(t)}
    logs = {n for n in names if is_log_variance(n.rpartition(".")[2])}
    means = {n for n in names - logs if words(n.rpartition(".")[2]) & MEANS}
    if len(logs) != 1 or len(means) != 1 or names != logs | means:
        return ""
    log, mean = logs.pop(), means.pop()
    unit = next(s for s, t in terms if constant(t) in (1, 1.0))
    wanted = {"log": unit, "square of mean": -unit, "exp of log": -unit}
    kinds = [(s * unit, _kind(t, log, mean)) for s, t in terms if constant(t) is None]
    if any(not kind for _, kind in kinds):
        return ""
    right = f"1 + {log} - {mean}² - exp({log})"
    for sign, kind in kinds:
        if kind not in wanted:
            told = kind.replace("log", log).replace("mean", mean)
            return f"{told} stands in the divergence, which is minus a half of {right}"
        if sign != wanted[kind] * unit:
            told = kind.replace("log", log).replace("mean", mean)
            return f"{told} has the wrong sign in the divergence, which is minus a half of {right}"
    return ""


def _values(node: ast.expr) -> list[ast.expr]:
    """The names and attributes that a term is computed of, functions left out."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return [node]
    if isinstance(node, ast.Call):
        own = [receiver(node)] if not node.args or last_name(receiver(node)) not in ("torch", "np", "numpy", "math") else []
        return [v for part in (*own, *node.args) if part is not None for v in _values(part)]
    return [v for part in children(node) if isinstance(part, ast.expr) for v in _values(part)]


def _kind(node: ast.expr, log: str, mean: str) -> str:
    """Which function of the log variance or the mean a term is; empty for any other."""
    text = ast.unparse(node)
    if text in (log, mean):
        return "log" if text == log else "mean"
    if (root := _root(node)) is not None and ast.unparse(root) in (log, mean):
        return "square of log" if ast.unparse(root) == log else "square of mean"
    inner = exponent(node)
    if inner is None:
        return ""
    if ast.unparse(inner) in (log, mean):
        return "exp of log" if ast.unparse(inner) == log else "exp of mean"
    halved = isinstance(inner, ast.BinOp) and {constant(inner.left), constant(inner.right)} & {0.5, 2} and identifiers(inner) <= identifiers(ast.parse(log))
    return "exp of half of log" if halved and ("0.5" in ast.unparse(inner) or isinstance(getattr(inner, "op", None), ast.Div)) else ""


def _root(node: ast.expr) -> ast.expr | None:
    """What is squared; None for anything else."""
    if not _is_square(node):
        return None
    if isinstance(node, ast.BinOp):
        return node.left
    given = node.args if isinstance(node, ast.Call) else []
    return given[0] if isinstance(node, ast.Call) and len(given) == (1 if last_name(node.func) == "square" else 2) else receiver(node)


def _is_square(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return constant(node.right) == 2
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.unparse(node.left) == ast.unparse(node.right)
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
            if isinstance(above.op, (ast.Mult, ast.Div)) and (negative or (isinstance(value := constant(other), (int, float)) and value < 0)):
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
