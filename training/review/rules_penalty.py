"""Rules BH448 to BH451: what keeps a critic smooth, and what is added to a loss to keep something small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.signs import Signs
from training.review.syntax import calls, constant, has_unpacking, identifiers, is_true, keyword, last_name, method, receiver, walk, words
from training.review.values import value_of

SAME = {"view", "reshape", "flatten", "float", "contiguous"}
FLAT = {"view", "reshape", "flatten"}
PENALTIES = {"penalty", "gp", "regularizer", "regulariser", "regularization", "regularisation", "r1", "l1", "l2"}
BOUNDS = ("clamp", "clip", "spectral_norm", "weight_norm", "orthogonal", "parametriz", "grad", "lipschitz")


class Slope(NamedTuple):
    """`(slope.norm(…) - 1) ** 2`: the norm, the call of autograd that made the slope, and the calls on the way."""

    norm: ast.Call
    made: ast.Call
    through: tuple[str, ...]


def slopes(program: Program) -> Iterator[Slope]:
    """Every norm of a gradient of which one is taken off."""
    for node in program.nodes[ast.BinOp]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(constant(node.right), int | float) and constant(node.right):
            norm = value_of(program, node.left, program.scope(node))
            if isinstance(norm, ast.Call) and last_name(norm.func) in ("norm", "vector_norm"):
                of = norm.args[0] if program.resolve(norm.func) and norm.args else receiver(norm)
                made, through = _made(program, of, program.scope(norm))
                if made is not None:
                    yield Slope(norm, made, through)


def _made(program: Program, node: ast.expr | None, scope: Scope) -> tuple[ast.Call | None, tuple[str, ...]]:
    """The call of `autograd.grad` that gave a value, and the methods that it went through."""
    through: list[str] = []
    for _ in range(8):
        if isinstance(node, ast.Name):
            bound = [b for b in program.bindings_of(node, scope) if b.how == "assign"]
            own = [b for b in bound if node.id not in identifiers(b.value)]
            through += [method(c) for b in bound if b not in own for c in calls(b.value)]
            node = own[0].value if len(own) == 1 else None
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and program.resolve(node.func) in ("torch.autograd.grad", "torch.func.grad"):
            return node, tuple(through)
        elif isinstance(node, ast.Call) and method(node) in SAME:
            through.append(method(node))
            node = receiver(node)
        elif isinstance(node, ast.Call) and last_name(node.func) == "flatten" and node.args:
            through.append("flatten")
            node = node.args[0]
        else:
            break
    return None, ()


@rule(
    "BH448",
    "penalty-without-graph",
    "error",
    title="A gradient penalty has no gradient itself",
    why="Without `create_graph=True` the slope is a number like any other: the penalty is added to the loss, moves no weight, and the critic grows as steep as it likes.",
    remedy="`torch.autograd.grad(scores.sum(), points, create_graph=True)`",
    bad="""
        import torch

        def penalty(critic, points):
            points.requires_grad_(True)
            slope = torch.autograd.grad(critic(points).sum(), points)[0]
            return ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
        """,
    good="""
        import torch

        def penalty(critic, points):
            points.requires_grad_(True)
            slope = torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0]
            return ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
        """,
)
def penalty_without_graph(subject: Subject) -> Iterator[Place]:
    """A norm of `autograd.grad` without `create_graph=True`, of which one is taken off."""
    for slope in slopes(subject.program):
        if (
            not has_unpacking(slope.made)
            and not is_true(keyword(slope.made, "create_graph", 4))
            and not isinstance(keyword(slope.made, "create_graph", 4), ast.Name)
        ):
            yield slope.made, "the penalty that is made of this gradient has no gradient of its own"


@rule(
    "BH449",
    "penalty-subtracted",
    "error",
    title="A penalty is taken off the loss",
    why="The optimizer makes the loss small: a penalty with a minus is made as large as can be, and what it should keep small grows without end.",
    remedy="add it: `loss = fit + weight * penalty`",
    bad="""
        import torch

        def step(optimizer, fit, penalty):
            loss = fit - 10 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def step(optimizer, fit, penalty):
            loss = fit + 10 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def penalty_subtracted(subject: Subject) -> Iterator[Place]:
    """What is named after a penalty stands behind a minus, and arrives at `backward` with one on each way."""
    program = subject.program
    if not any(PENALTIES & words(n) for n in program.identifiers):
        return
    signs = Signs(program)
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
            continue
        factors = [node.right.left, node.right.right] if isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Mult) else [node.right]
        named = next((f for f in factors if isinstance(f, ast.Name | ast.Attribute) and PENALTIES & words(last_name(f))), None)
        others = [f for f in factors if f is not named]
        weighed = not any(isinstance(constant(f), int | float) and constant(f) < 0 for f in others)  # type: ignore[operator]
        if named is None or {"weight", "coef", "lambda", "alpha", "beta"} & words(last_name(named)):
            continue
        if weighed and not _turned(program, named) and signs.into_backward(node.right) == {-1}:
            yield node, f"{ast.unparse(named)} goes into the loss with a minus"


def _turned(program: Program, node: ast.expr) -> bool:
    """Whether its own value has a minus already."""
    value = value_of(program, node, program.scope(node))
    return any(isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub) for n in walk(value))


@rule(
    "BH450",
    "penalty-over-the-batch",
    "error",
    title="The slope of a critic is measured over the batch",
    why="The penalty wants the slope at each point to be 1. A norm over axis 0, or over everything, is that of all points together: it grows with the batch, and says nothing of any point.",
    remedy="one norm a row: `slope.flatten(1).norm(dim=1)`",
    bad="""
        import torch

        def penalty(critic, points):
            slope = torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0]
            return (slope.norm() - 1) ** 2
        """,
    good="""
        import torch

        def penalty(critic, points):
            slope = torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0]
            return ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
        """,
)
def penalty_over_the_batch(subject: Subject) -> Iterator[Place]:
    """The norm of which one is taken off goes over axis 0, or over all axes."""
    program = subject.program
    for slope in slopes(program):
        of_torch = bool(program.resolve(slope.norm.func))
        axis = keyword(slope.norm, "dim", 2 if of_torch else 1) or keyword(slope.norm, "axis")
        if (axis is None and not has_unpacking(slope.norm)) or (constant(axis) == 0 and not {"t", "transpose"} & set(slope.through)):
            yield slope.norm, "one norm is taken of all rows together" if axis is None else "the norm goes over the rows, one for each feature"


@rule(
    "BH451",
    "critic-without-bound",
    "warning",
    title="Nothing bounds a critic whose loss is a difference of means",
    why="A difference of mean scores is a distance only for critics that are not steep. Without a bound each step makes all scores larger, and the loss falls for ever without meaning anything.",
    remedy="a gradient penalty, spectral norm, or weights clamped after each step",
    bad="""
        import torch

        critic = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.LeakyReLU(), torch.nn.Linear(32, 1))

        def step(optimizer, real, fake):
            loss = critic(fake.detach()).mean() - critic(real).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        critic = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.LeakyReLU(), torch.nn.Linear(32, 1))

        def step(optimizer, real, fake):
            loss = critic(fake.detach()).mean() - critic(real).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for weight in critic.parameters():
                    weight.clamp_(-0.01, 0.01)
        """,
)
def critic_without_bound(subject: Subject) -> Iterator[Place]:
    """A loss is the difference of the means of one callable's two results and nothing else, and the file names no bound."""
    program = subject.program
    if not {"Linear", "Conv2d", "Conv1d"} & program.called_names:
        return  # networks that are made elsewhere may be bounded there
    named = {n.lower() for n in program.identifiers | program.called_names} - {"zero_grad", "no_grad", "requires_grad_", "requires_grad", "clip_grad_norm_"}
    if any(part in name for name in named for part in BOUNDS):
        return
    for statement in program.nodes[ast.Assign]:
        value = getattr(statement, "value", None)
        if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub)):
            continue
        sides = [_mean_of(program, side) for side in (value.left, value.right)]
        targets = {last_name(t) for t in getattr(statement, "targets", ())}
        propagated = {last_name(receiver(c)) for c in calls(program.scope(statement).node) if method(c) == "backward"}
        if all(sides) and sides[0] == sides[1] and targets & propagated:
            yield value, f"the loss is a difference of mean scores of {sides[0]}, and nothing bounds it"


def _mean_of(program: Program, node: ast.expr) -> str:
    """Of which callable a mean of scores is: `critic` of `critic(x).mean()` or `torch.mean(critic(x))`."""
    of = (
        node.args[0] if isinstance(node, ast.Call) and program.is_torch(node.func, "mean") and node.args else receiver(node) if method(node) == "mean" else None
    )
    of = value_of(program, of, program.scope(node)) if of is not None else None
    return last_name(of.func) if isinstance(of, ast.Call) and isinstance(of.func, ast.Name | ast.Attribute) and len(of.args) == 1 else ""
