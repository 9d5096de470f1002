"""Rules BH452 and BH455: returns in the wrong order of time, and an advantage that is turned round."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.bootstraps import DISCOUNTS, REWARDS, network_calls, pairs
from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.rules_policy import CRITIC, of_logs
from training.review.signs import Signs
from training.review.syntax import constant, dotted, identifiers, last_name, method, names_read, own_nodes, receiver, walk, words
from training.review.values import reaching

TENSORS = {"tensor", "stack", "cat", "FloatTensor", "Tensor", "array", "asarray", "as_tensor", "from_numpy", "zip", "concatenate", "extend"}
TURNS = {"reverse", "reversed", "flip", "flipud", "fliplr"}
CHANGES = {"appendleft", "insert", "pop", "popleft", "sort"}
OF_TRACES = {"running", "trace", "traces", "eligibility", "normalizer", "rms", "smooth", "smoothed", "ewma", "ema", "moving"}
OF_RETURNS = {"return", "returns", "discounted", "go"}  # `to_go`
RETURNS = {"return", "returns", "target", "targets", "ret", "rets", "g", "gs", "rewards", "reward", "q"}
UNTOUCHED = {"detach", "squeeze", "view", "reshape", "flatten", "float", "clone", "unsqueeze", "to"}


class Summed(NamedTuple):
    """A loop over rewards that keeps a discounted sum at each step."""

    loop: ast.For
    kept: ast.expr
    names: str
    total: str
    backwards: bool


@rule(
    "BH452",
    "returns-out-of-time",
    "error",
    title="Returns stand in the wrong order of time",
    why="The return of a step is what follows it. Summed from the last reward to the first and appended, it stands at the other end of the episode; summed from the "
    "first, it is what went before: actions are praised for what others earned.",
    remedy="go through the rewards from the last, and turn the list round afterwards: `returns = returns[::-1]`",
    bad="""
        import torch

        def update(optimizer, log_probs, rewards, gamma):
            total, returns = 0.0, []
            for reward in reversed(rewards):
                total = reward + gamma * total
                returns.append(total)
            loss = -(torch.stack(log_probs) * torch.tensor(returns)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def update(optimizer, log_probs, rewards, gamma):
            total, returns = 0.0, []
            for reward in reversed(rewards):
                total = reward + gamma * total
                returns.append(total)
            loss = -(torch.stack(log_probs) * torch.tensor(returns[::-1])).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def returns_out_of_time(subject: Subject) -> Iterator[Place]:
    """A discounted sum of rewards is appended at each step to a list that becomes a tensor, from the last reward on and never turned round, or from the first.

    Nothing else is kept in the loop, and nothing is turned round in the function or in those that call it.
    """
    program = subject.program
    for scope in program.scopes:
        for found in _sums(scope):
            around = [scope, *(caller for _, caller in program.call_sites[scope])]
            if _becomes_a_tensor(program, found, scope) and not any(_turns(s, found) for s in around) and not _is_trace(scope, found):
                if found.backwards:
                    told = f"{found.names} gets the return of the last step first, and is turned round nowhere: each step is given another one's return"
                else:
                    told = f"{found.total} is summed from the first reward on: at each step it holds what was earned before, and nothing of what follows"
                yield found.kept, told, found.loop
        for node, loop, total in _stored_forwards(scope):
            turned = [n for n in walk(scope.node) if _is_turn(n)]
            if not turned:
                yield node, f"{total} is summed from the first reward on: at each step it holds what was earned before, and nothing of what follows", loop


def _stored_forwards(scope: Scope) -> Iterator[tuple[ast.Assign, ast.For, str]]:
    """`for t in range(n): total = delta + gamma * total; gains[t] = total`: where it is stored, the loop, and the sum."""
    for loop in (n for n in own_nodes(scope.node) if isinstance(n, ast.For) and isinstance(n.target, ast.Name)):
        totals = set(_totals(loop))
        if not totals or _backwards(loop.iter):
            continue
        at = last_name(loop.target)
        rewards = {w for n in identifiers(loop) for w in words(n)} | {str(constant(n)) for n in walk(loop) if isinstance(n, ast.Constant)}
        for node in loop.body if rewards & {"reward", "rewards", "rew", "rews", "delta", "deltas"} else ():
            match node:
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=into), slice=ast.Name(id=place))], value=ast.Name(id=total)):
                    said = words(into) | words(total) | words(scope.name)
                    if place == at and total in totals and said & (RETURNS | {"advantage", "advantages", "adv", "advs", "gae", "gain", "gains"}):
                        yield node, loop, total


def _sums(scope: Scope) -> Iterator[Summed]:
    for loop in (n for n in own_nodes(scope.node) if isinstance(n, ast.For)):
        totals = set(_totals(loop))
        if not totals:
            continue
        backwards = _backwards(loop.iter)
        steps = loop.iter if not isinstance(loop.iter, ast.Call) or last_name(loop.iter.func) in ("range", "len", "reversed", "enumerate") else None
        over = steps is not None and any(REWARDS & words(n) for n in identifiers(steps))
        appended = [n for n in walk(loop) if isinstance(n, ast.Call) and method(n) in ("append", "extend")]
        kept = [n for n in appended if method(n) == "append" and n.args and isinstance(n.args[0], ast.Name) and n.args[0].id in totals]
        if over and kept and all(totals & names_read(n) for n in appended):
            total = names_read(kept[0].args[0]).pop()
            yield Summed(loop, kept[0], dotted(receiver(kept[0])), total, backwards)


def _totals(loop: ast.For) -> Iterator[str]:
    """Names that become `reward + discount * themselves` in each passage."""
    scaled: set[str] = set()
    for node in loop.body:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and isinstance(node.target, ast.Name) and _is_discount(node.value):
            scaled.add(node.target.id)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name) and node.target.id in scaled:
            yield node.target.id
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.BinOp)):
            continue
        name, value = node.targets[0].id, node.value
        for one, other in ((value.left, value.right), (value.right, value.left)):
            scales = isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mult) and name in names_read(other) and any(_is_discount(n) for n in walk(other))
            if isinstance(value.op, ast.Add) and scales and name not in names_read(one):
                yield name


def _is_discount(node: ast.AST) -> bool:
    value = constant(node)
    if isinstance(value, float):
        return 0.8 <= value < 1
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(DISCOUNTS & words(last_name(node)))


def _backwards(node: ast.expr) -> bool:
    """Whether it goes from the last to the first."""
    return any(map(_is_turn, walk(node))) or (isinstance(node, ast.Call) and last_name(node.func) == "range" and constant(node.args[-1]) == -1)


def _is_turn(node: ast.AST) -> bool:
    if isinstance(node, ast.Slice):
        return constant(node.step) == -1
    return isinstance(node, ast.Call) and last_name(node.func) in TURNS


def _turns(scope: Scope, found: Summed) -> bool:
    """Whether anything in a function is turned round apart from what the loop goes over, or the list is changed otherwise or counted from its end."""
    within = set(walk(found.loop.iter))
    for node in walk(scope.node):
        if node in within:
            continue
        if _is_turn(node) or (method(node) in CHANGES and dotted(receiver(node)) == found.names):
            return True
        if isinstance(node, ast.Subscript) and dotted(node.value) == found.names and any(isinstance(n, ast.USub) for n in walk(node.slice)):
            return True
    return False


def _is_trace(scope: Scope, found: Summed) -> bool:
    """Whether the sum is named as one of what went before, which scales rewards; not in a function that is named after returns."""
    said = words(scope.name) | words(found.total) | words(found.names)
    return bool(OF_TRACES & said) and not OF_RETURNS & words(scope.name)


def _becomes_a_tensor(program: Program, found: Summed, scope: Scope) -> bool:
    """Whether the list is made a tensor, or goes on together with another, in the function or where it is returned to."""

    def used(names: set[str], where: Scope) -> bool:
        made = (n for n in own_nodes(where.node) if isinstance(n, ast.Call) and last_name(n.func) in TENSORS)
        return any(dotted(a) in names for n in made for a in n.args)

    if used({found.names}, scope):
        return True
    returned = any(isinstance(n, ast.Return) and dotted(n.value) == found.names for n in own_nodes(scope.node))
    for call, caller in program.call_sites[scope] if returned else ():
        if isinstance(above := program.parents[call], ast.Call) and last_name(above.func) in TENSORS:
            return True
        if isinstance(above, ast.Assign) and used({dotted(t) for t in above.targets} - {""}, caller):
            return True
    return False


@rule(
    "BH455",
    "advantage-turned-round",
    "error",
    title="The advantage is the value less the return",
    why="An action that brought more than the critic expected has a negative advantage then: it is made rarer, and what disappoints is made more likely.",
    remedy="`advantage = returns - values.detach()`",
    bad="""
        from torch.nn import functional as F

        def update(optimizer, log_probs, values, returns):
            advantage = values.detach() - returns
            loss = -(log_probs * advantage).mean() + 0.5 * F.mse_loss(values, returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        from torch.nn import functional as F

        def update(optimizer, log_probs, values, returns):
            advantage = returns - values.detach()
            loss = -(log_probs * advantage).mean() + 0.5 * F.mse_loss(values, returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def advantage_turned_round(subject: Subject) -> Iterator[Place]:
    """Log probabilities times a difference, negated in what is minimised; the first of the difference is what a regression in the function moves to the second."""
    program = subject.program
    signs = Signs(program)
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            continue
        scope = program.scope(node)
        for weight, other in ((node.left, node.right), (node.right, node.left)):
            if not (of_logs(other) or any("ratio" in words(n) for n in identifiers(other))) or of_logs(weight):
                continue
            made = _difference(program, weight, scope)
            if made is None:
                continue
            sides = ast.unparse(_bare(made.left)), ast.unparse(_bare(made.right))
            if sides[0] != sides[1] and _is_learned(program, made, sides, program.scope(made)) and signs.into_backward(node) == {-1}:
                told = f"{ast.unparse(made)} is positive where {sides[1]} is below {sides[0]}, which is what the critic expects: what disappoints is made more likely"
                yield made, told, node


def _bare(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and method(node) in UNTOUCHED and (inner := receiver(node)) is not None:
        node = inner
    return node


def _difference(program: Program, node: ast.expr, scope: Scope) -> ast.BinOp | None:
    """The difference that a weight is, through names, `detach` and a standardisation of itself."""
    for _ in range(4):
        node = _bare(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and not (isinstance(node.right, ast.Call) and method(node.right) == "mean"):
            return node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            node = node.left
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            node = node.left
        values = reaching(program, node, scope) if isinstance(node, ast.Name) else []
        if len(values) == 1:
            node = values[0]
    return None


def _is_learned(program: Program, made: ast.BinOp, sides: tuple[str, str], scope: Scope) -> bool:
    """Whether the first is a critic's value that a regression brings to the second: by its name, or by what made it."""
    if not any(where is scope and {ast.unparse(_bare(side)) for side in both} == set(sides) for _, where, both in pairs(program)):
        return False
    value, target = ({w for n in identifiers(_bare(s)) for w in words(n)} for s in (made.left, made.right))
    named = bool(value & CRITIC) and not target & CRITIC and bool(target & RETURNS)
    by_network = bool(network_calls(program, _bare(made.left), scope)) and not network_calls(program, _bare(made.right), scope)
    return (named and not value & RETURNS) or (by_network and not value & RETURNS - {"q"})
