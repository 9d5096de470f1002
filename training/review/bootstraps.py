"""Bootstrapped targets, `reward + discount * value of the next state`: what they are made of, and what is regressed on them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.syntax import calls, constant, dotted, identifiers, last_name, method, own_nodes, receiver, walk, words
from training.review.values import loss_calls, reaching_elements

REWARDS = {"r", "rew", "rews", "reward", "rewards", "rw"}
DISCOUNTS = {"gamma", "discount", "discounts"}
LEAST_DISCOUNT = 0.8  # of a number without a name
DEPTH = 40  # names that a value is followed through
CUTS = {"detach", "detach_", "item", "no_grad", "inference_mode", "set_grad_enabled", "numpy", "tolist", "data", "stop_gradient"}
REGRESSIONS = {"mse", "l1"}


class Target(NamedTuple):
    """`reward + discount * later`: the sum, the reward, and the factors beside the discount."""

    node: ast.BinOp
    scope: Scope
    reward: ast.expr
    later: list[ast.expr]


class Regression(NamedTuple):
    """Two values whose distance is a loss, and the bootstrapped target that is in the second."""

    node: ast.expr
    scope: Scope
    prediction: ast.expr
    goal: ast.expr
    target: Target


def targets(program: Program) -> Iterator[Target]:
    """Every bootstrapped target of the file; returns that are summed up step by step (`total = reward + gamma * total`) are none."""
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            continue
        scope = program.scope(node)
        for reward, product in ((node.left, node.right), (node.right, node.left)):
            later = _discounted(product)
            if later and _named(reward, REWARDS) and not _named(reward, DISCOUNTS) and not _accumulates(program, node, later):
                yield Target(node, scope, reward, later)
                break


def regressions(program: Program) -> Iterator[Regression]:
    """Every squared error, torch's or a squared difference, of which one side is made of a bootstrapped target of the same function."""
    known = list(targets(program))
    if not known:
        return
    for node, scope, sides in pairs(program):
        for prediction, goal in (sides, sides[::-1]):
            within = {n for root in made_of(program, goal, scope) for n in walk(root)}
            target = next((t for t in known if t.scope is scope and t.node in within), None)
            if target is not None:
                yield Regression(node, scope, prediction, goal, target)
                break


def made_of(program: Program, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """An expression and the values of the names in it, in the same function, one after the other; what is put into a part of one too."""
    found, pending, seen = [node], [node], {id(node)}
    parts = [
        (statement.targets[0].value.id, statement.value, None)
        for statement in own_nodes(scope.node)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript) and isinstance(statement.targets[0].value, ast.Name)
    ]
    while pending and len(found) < DEPTH:
        for name in (n for n in walk(pending.pop()) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)):
            known = reaching_elements(program, name, scope) or [(b.value, b.index) for b in scope.bindings.get(name.id, ()) if b.how == "augment"]
            for value, index in [*known, *((v, i) for n, v, i in parts if n == name.id)]:
                part = value.elts[index] if isinstance(value, ast.Tuple) and index is not None and index < len(value.elts) else value
                if id(part) not in seen:
                    seen.add(id(part))
                    found.append(part)
                    pending.append(part)
    return found


def network_calls(program: Program, node: ast.expr, scope: Scope) -> list[ast.Call]:
    """The calls of networks that a value is made of: what is known as one, a copy, or a parameter or what an object was given that is called."""
    found = []
    for root in made_of(program, node, scope):
        for call in calls(root):
            name = dotted(call.func)
            if name and call.args and (_is_given(program, call.func, scope) or is_model(program, call.func, scope)):
                found.append(call)
    return found


def _is_given(program: Program, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Name) and node.id in scope.parameters:
        return True
    if isinstance(node, ast.Attribute) and any(isinstance(b.value, ast.Name) and b.value.id in b.scope.parameters for b in program.bindings_of(node, scope)):
        return node.attr not in program.method_names
    return any(o.last == "deepcopy" for o in program.origins(node, scope))


def is_cut(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether something takes the gradient from a value, or from what it is made of."""
    for root in made_of(program, node, scope):
        if identifiers(root) & CUTS or any(
            isinstance(a, ast.With) and any(identifiers(i.context_expr) & CUTS for i in a.items) for a in program.ancestors(root)
        ):
            return True
    return False


def factors(node: ast.expr) -> list[ast.expr]:
    """What is multiplied.

    >>> [ast.unparse(f) for f in factors(ast.parse("a * (b - 1) * c", mode="eval").body)]
    ['a', 'b - 1', 'c']
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors(node.left), *factors(node.right)]
    return [node]


def texts(node: ast.AST) -> frozenset[str]:
    """Names, attributes and keys within."""
    return identifiers(node) | {n.value for n in walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _discounted(node: ast.expr) -> list[ast.expr]:
    """The factors of a product beside its discount; none where there is no discount."""
    found = factors(node)
    discounts = [f for f in found if _is_discount(f)]
    return [f for f in found if f not in discounts] if len(found) > 1 and discounts else []


def _is_discount(node: ast.expr) -> bool:
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        node = node.left
    value = constant(node)
    if isinstance(value, float):
        return LEAST_DISCOUNT <= value < 1
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and _named(node, DISCOUNTS)


def _named(node: ast.AST, kinds: set[str]) -> bool:
    return any(kinds & words(n) for n in texts(node))


def _accumulates(program: Program, node: ast.AST, later: list[ast.expr]) -> bool:
    """Whether what is discounted is what the statement binds anew, a sum over steps."""
    statement = program.statement(node)
    bound = statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, (ast.AnnAssign, ast.AugAssign)) else []
    names = {last_name(t) for t in bound} - {""}
    return any(isinstance(f, ast.Name) and f.id in names for f in later)


def pairs(program: Program) -> Iterator[tuple[ast.expr, Scope, tuple[ast.expr, ast.expr]]]:
    """Regression losses of torch, and squares of differences, with their two sides."""
    for loss in loss_calls(program):
        if loss.kind in REGRESSIONS and loss.target is not None:
            yield loss.call, loss.scope, (loss.scores, loss.target)
    for node in (*program.nodes[ast.BinOp], *program.nodes[ast.Call]):
        squared: ast.expr | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and constant(node.right) == 2:
            squared = node.left
        elif isinstance(node, ast.Call) and (method(node) == "square" or (method(node) == "pow" and [constant(a) for a in node.args] == [2])):
            squared = receiver(node)
        if squared is None or not isinstance(node, ast.expr):
            continue
        scope = program.scope(node)
        made = squared
        while isinstance(made, ast.Name) and len(values := reaching_elements(program, made, scope)) == 1 and values[0][1] is None:
            made = values[0][0]
        if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Sub):
            yield node, scope, (made.right, made.left)
