"""Rules BH432 and BH433: the scale of attention scores."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, dotted, identifiers, keyword, last_name, method, receiver, walk, words
from training.review.values import reaching_elements

PRODUCTS = {"matmul", "bmm", "baddbmm"}
SAME_SCORES = {
    "masked_fill", "masked_fill_", "float", "to", "type_as", "view", "reshape", "transpose", "permute", "contiguous", "squeeze", "unsqueeze", "flatten", "half", "double",
    "clamp", "add", "chunk", "split", "unbind", "unflatten", "mT", "expand", "repeat",
}  # fmt: skip
NARROW = 4
SCALES = {"sqrt", "rsqrt", "scale", "scales", "scaled", "scaling", "temperature", "temp", "tau", "normalize", "normalise", "rmsnorm", "rms", "inv", "logit"}


@dataclass
class Scores:
    """Attention scores: the softmax that takes them, the factors and divisors on the way, and what was multiplied."""

    softmax: ast.Call
    scope: Scope
    product: tuple[ast.expr, ast.expr] | None = None
    factors: list[ast.expr] = field(default_factory=list)
    divisors: list[ast.expr] = field(default_factory=list)
    unseen: bool = False


@rule(
    "BH432",
    "attention-not-scaled",
    "warning",
    title="Attention scores are not scaled",
    why="A product of two vectors grows with their width: without a division by its root softmax puts nearly all weight on one place from the start, and hardly any gradient comes through it.",
    remedy="divide by the root of a head's width, or use `F.scaled_dot_product_attention`",
    bad="""
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

            def forward(self, x):
                scores = self.q(x) @ self.k(x).transpose(-2, -1)
                return scores.softmax(dim=-1) @ self.v(x)
        """,
    good="""
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

            def forward(self, x):
                q, k = self.q(x), self.k(x)
                scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
                return scores.softmax(dim=-1) @ self.v(x)
        """,
)
def attention_not_scaled(subject: Subject) -> Iterator[Place]:
    """A softmax of a product of two linear maps of the same input, in a class and file that scale nothing: no root, factor, temperature, normalization, nor in how weights begin."""
    program = subject.program
    for scores in _attentions(program):
        owner = scores.scope.owner
        if (
            owner is None
            or scores.product is None
            or scores.factors
            or scores.divisors
            or scores.unseen
            or _scales(owner)
            or _scaled_start(program)
            or _begins_closed(owner)
        ):
            continue
        of = [_projection(program, side, scores.scope, 0) for side in scores.product]
        if of[0] is not None and of[1] is not None and of[0][1] == of[1][1] != "" and not _is_narrow(program, owner, of[0][0]):
            yield (
                scores.softmax,
                f"{ast.unparse(scores.product[0])} and {ast.unparse(scores.product[1])} are multiplied, and nothing divides by the root of their width",
            )


@rule(
    "BH433",
    "attention-scaled-up",
    "error",
    title="Attention scores are multiplied by the root of the width",
    why="The root was to take away what the width adds. Multiplied by it scores are as many times too large as the width: softmax puts all weight on one place, and no gradient comes through it.",
    remedy="divide by it: `scores / math.sqrt(width)`, or multiply by `width ** -0.5`",
    bad="""
        import math
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.width = width
                self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

            def forward(self, x):
                scores = self.q(x) @ self.k(x).transpose(-2, -1) * math.sqrt(self.width)
                return scores.softmax(dim=-1) @ self.v(x)
        """,
    good="""
        import math
        from torch import nn

        class Attention(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.width = width
                self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

            def forward(self, x):
                scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(self.width)
                return scores.softmax(dim=-1) @ self.v(x)
        """,
)
def attention_scaled_up(subject: Subject) -> Iterator[Place]:
    """The only factor between a product of two tensors and their softmax is a root, or the only divisor a root's inverse; nothing is normalized."""
    program = subject.program
    for scores in _attentions(program):
        if scores.product is None or len(scores.factors) + len(scores.divisors) != 1 or scores.unseen or scores.scope.owner is None:
            continue
        if any(_brings_to_one(c) for m in program.methods[scores.scope.owner].values() for c in calls(m.node)):
            continue
        power = _power(program, [*scores.factors, *scores.divisors][0], scores.scope)
        if power == (0.5 if scores.factors else -0.5):
            yield (
                scores.softmax,
                f"scores are multiplied by {ast.unparse([*scores.factors, *scores.divisors][0])}, which grows with the width"
                if scores.factors
                else (f"scores are divided by {ast.unparse(scores.divisors[0])}, which is less than 1"),
            )


def _attentions(program: Program) -> Iterator[Scores]:
    """Every softmax, and what is known of its scores."""
    for call in program.calls_of("softmax"):
        functional = program.resolve(call.func) or (dotted(receiver(call)) in ("self", "") and call.args and not isinstance(receiver(call), ast.Call))
        on = keyword(call, "input", 0) if functional else receiver(call)
        on = receiver(call) if on is None or isinstance(on, ast.Constant) else on
        found = Scores(call, program.scope(call))
        if on is not None:
            _follow(program, on, found, 0)
            yield found


def _follow(program: Program, node: ast.expr, found: Scores, depth: int) -> None:
    """Go back from scores to the product that made them."""
    if depth > 12 or found.product is not None:
        found.unseen |= depth > 12
        return
    match node:
        case ast.Name():
            values = reaching_elements(program, node, found.scope)
            if len({ast.dump(v) for v, _ in values}) != 1 and not _masks_alone(program, values, node.id):
                found.unseen = True
                return
            _follow(program, values[-1][0] if len(values) > 1 else values[0][0], found, depth + 1)
        case ast.BinOp(op=ast.MatMult()):
            found.product = (node.left, node.right)
        case ast.BinOp(op=ast.Mult()):
            scores, other = (node.right, node.left) if _is_number(node.left) or _power(program, node.left, found.scope) else (node.left, node.right)
            found.factors.append(other)
            _follow(program, scores, found, depth + 1)
        case ast.BinOp(op=ast.Div()):
            found.divisors.append(node.right)
            _follow(program, node.left, found, depth + 1)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            _follow(program, node.left, found, depth + 1)
        case ast.Call():
            _through_call(program, node, found, depth)
        case _:
            found.unseen = True


def _through_call(program: Program, node: ast.Call, found: Scores, depth: int) -> None:
    name, resolved = last_name(node.func), program.resolve(node.func)
    if name in PRODUCTS and len(node.args) == 2 and resolved:
        found.product = (node.args[0], node.args[1])
    elif name in PRODUCTS and len(node.args) == 1 and (on := receiver(node)) is not None:
        found.product = (on, node.args[0])
    elif name == "einsum" and len(node.args) == 3:
        found.product = (node.args[1], node.args[2])
    elif name == "where" and len(node.args) == 3 and resolved:
        _follow(program, node.args[1] if not _is_number(node.args[1]) else node.args[2], found, depth + 1)
    elif name in SAME_SCORES and not resolved and (on := receiver(node)) is not None:
        _follow(program, on, found, depth + 1)
    elif name in ("div", "mul", "div_", "mul_", "true_divide") and node.args and not resolved and (on := receiver(node)) is not None:
        (found.divisors if "div" in name else found.factors).append(node.args[0])
        _follow(program, on, found, depth + 1)
    else:
        found.unseen = True


def _masks_alone(program: Program, values: list[tuple[ast.expr, int | None]], name: str) -> bool:
    """Whether a name holds scores, and later assignments in branches only mask them."""
    later = [v for v, _ in values[:-1]]
    return bool(values) and all(isinstance(v, ast.Call) and method(v).startswith("masked_fill") and dotted(receiver(v)) == name for v in later)


def _is_number(node: ast.expr) -> bool:
    """Whether it is a literal, or infinite."""
    return constant(node) is not None or (isinstance(node, ast.Call) and last_name(node.func) == "float")


def _power(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> float:
    """0.5 of a root of something, -0.5 of its inverse, 0 of anything else."""
    if isinstance(node, ast.Call) and last_name(node.func) in ("sqrt", "rsqrt"):
        under = node.args[0] if node.args else receiver(node)
        return (0.5 if last_name(node.func) == "sqrt" else -0.5) * (-1 if _is_inverse(under) else 1)
    if isinstance(node, ast.Call) and last_name(node.func) in ("float", "tensor") and node.args:
        return _power(program, node.args[0], scope, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = constant(node.right)
        return float(power) * (-1 if _is_inverse(node.left) else 1) if power in (0.5, -0.5) and isinstance(power, float) else 0.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and constant(node.left) in (1, 1.0):
        return -_power(program, node.right, scope, depth + 1)
    if isinstance(node, (ast.Name, ast.Attribute)) and depth < 3:
        found = {_power(program, b.value, b.scope, depth + 1) if b.how == "assign" and b.index is None else 0.0 for b in program.bindings_of(node, scope)}
        return found.pop() if len(found) == 1 else 0.0
    return 0.0


def _brings_to_one(call: ast.Call) -> bool:
    """Whether it may bring queries and keys to length one: `normalize`, `.norm()`, a function called so, a norm layer of theirs; not the norm of the block."""
    name = last_name(call.func)
    return "norm" in name and name[:1].islower() and (not dotted(call.func).startswith("self.") or bool({"q", "k", "query", "key", "qk"} & words(name)))


def _is_inverse(node: ast.expr | None) -> bool:
    """Whether it is `1 / d`."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and constant(node.left) in (1, 1.0)


def _projection(program: Program, node: ast.expr, scope: Scope, depth: int) -> tuple[str, str] | None:
    """The linear map of the class that made a tensor, and its input as it is written; None where anything else happened on the way."""
    if depth > 10:
        return None
    match node:
        case ast.Name():
            values = reaching_elements(program, node, scope)
            return _projection(program, values[0][0], scope, depth + 1) if len(values) == 1 else None
        case ast.Subscript():
            return _projection(program, node.value, scope, depth + 1)
        case ast.Attribute() if node.attr in ("T", "mT"):
            return _projection(program, node.value, scope, depth + 1)
        case ast.Tuple() | ast.List() | ast.GeneratorExp() | ast.ListComp():
            return None
        case ast.Call():
            made = [o for o in program.origins(node.func, scope) if o.name.startswith("torch.nn.")] if dotted(receiver(node)) == "self" else []
            if made and all(o.last == "Linear" for o in made) and len(node.args) == 1:
                return last_name(node.func), ast.unparse(node.args[0])
            if method(node) in SAME_SCORES and not program.resolve(node.func) and (on := receiver(node)) is not None:
                return _projection(program, on, scope, depth + 1)
            if program.resolve(node.func).startswith("torch.") and last_name(node.func) in SAME_SCORES and node.args:
                return _projection(program, node.args[0], scope, depth + 1)
    return None


def _scales(owner: ast.ClassDef) -> bool:
    """Whether a class has a root, or a name that speaks of a scale."""
    roots = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) and constant(n.right) in (0.5, -0.5, -1, 0.25, -0.25) for n in walk(owner))
    return roots or any(words(n) & SCALES for n in identifiers(owner))


def _begins_closed(owner: ast.ClassDef) -> bool:
    """Whether what attention gives begins at nothing, behind a parameter of zero, or a weight is divided in place where it is made."""
    closed = any(
        last_name(c.func) == "Parameter"
        and c.args
        and isinstance(c.args[0], ast.Call)
        and last_name(c.args[0].func) == "zeros"
        and [constant(a) for a in c.args[0].args] in ([1], [()])
        for c in calls(owner)
    )
    by_hand = any(isinstance(n, ast.AugAssign) and isinstance(n.op, (ast.Div, ast.Mult)) and last_name(n.target) == "weight" for n in walk(owner))
    return closed or by_hand or any(method(c) in ("div_", "mul_") and last_name(receiver(c)) == "weight" for c in calls(owner))


def _is_narrow(program: Program, owner: ast.ClassDef, name: str) -> bool:
    """Whether the projection gives so few numbers that products do not grow by their count."""
    widths = [constant(keyword(b.value, "out_features", 1)) for b in program.attributes[owner].get(name, []) if isinstance(b.value, ast.Call)]
    return bool(widths) and all(isinstance(w, int) and w <= NARROW for w in widths)


def _scaled_start(program: Program) -> bool:
    """Whether weights begin so small that products need no scale, as those of T5: a root in a function that initializes."""
    for scope in program.scopes:
        if {"init", "initialize", "reset", "weights"} & words(scope.name.strip("_")) and scope.name != "__init__":
            powers = any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow) for n in walk(scope.node))
            if powers or {"sqrt", "rsqrt"} & identifiers(scope.node):
                return True
    return False
