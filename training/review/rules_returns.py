"""Rules BH452 to BH454: sums of later rewards, and what a state is said to be worth."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.rules_bootstrap import DISCOUNTS, REWARDS
from training.review.syntax import FunctionNode, constant, dotted, identifiers, last_name, method, own_nodes, receiver, walk, words

CUTS = {"detach", "no_grad", "inference_mode", "stop_gradient", "item", "requires_grad_"}


@rule(
    "BH452",
    "returns-in-wrong-order",
    "error",
    title="Returns stand beside the steps of the other end",
    why="The return of a step is the sum of the rewards after it. Summed from the front it is what was earned before; summed from behind and not turned round, the first step gets the return of the last.",
    remedy="go through the rewards from behind, and turn the list round: `returns.insert(0, total)` or `returns[::-1]`",
    bad="""
        import torch

        def returns_of(rewards, gamma):
            total, returns = 0.0, []
            for reward in reversed(rewards):
                total = reward + gamma * total
                returns.append(total)
            return torch.tensor(returns)
        """,
    good="""
        import torch

        def returns_of(rewards, gamma):
            total, returns = 0.0, []
            for reward in reversed(rewards):
                total = reward + gamma * total
                returns.append(total)
            return torch.tensor(returns[::-1])
        """,
)
def returns_in_wrong_order(subject: Subject) -> Iterator[Place]:
    """A loop over rewards keeps `total = reward + gamma * total` and appends it: from behind, and nothing turns the list round, or from the front."""
    program = subject.program
    for loop in (n for n in program.nodes[ast.For] if isinstance(n, ast.For)):
        scope = program.scope(loop)
        named = any(REWARDS & words(n) for n in identifiers(loop.iter) | identifiers(loop.target))
        total = next((_running(s) for s in loop.body if _running(s)), "")
        kept = [c for s in loop.body for c in walk(s) if isinstance(c, ast.Call) and method(c) == "append" and c.args and last_name(c.args[0]) == total]
        if not named or not total or len(kept) != 1 or not isinstance(receiver(kept[0]), ast.Name):
            continue
        behind, name = _from_behind(loop.iter), last_name(receiver(kept[0]))
        turned = _turned(program, scope, name)
        if behind and not turned:
            yield kept[0], f"{name} begins with the return of the last step, and nothing turns it round", loop
        elif not behind and not _from_behind(_value(scope, loop.iter)) and isinstance(loop.iter, ast.Name | ast.Attribute) and not turned:
            yield kept[0], f"{total} sums the rewards before a step, not those after it", loop


def _running(statement: ast.stmt) -> str:
    """The name of a sum that is discounted: `total = reward + gamma * total`."""
    if not (
        isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.BinOp) and isinstance(statement.value.op, ast.Add)
    ):
        return ""
    name = last_name(statement.targets[0])
    for side in (statement.value.left, statement.value.right):
        read = identifiers(side)
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult) and name in read and (any(DISCOUNTS & words(n) for n in read) or len(read) == 1):
            return name
    return ""


def _from_behind(node: ast.AST) -> bool:
    """Whether rows are gone through from the last to the first."""
    for part in walk(node):
        if isinstance(part, ast.Call) and last_name(part.func) in ("reversed", "flip", "flipud"):
            return True
        if isinstance(part, ast.Slice) and constant(part.step) == -1:
            return True
        if isinstance(part, ast.Call) and last_name(part.func) == "range" and len(part.args) == 3 and constant(part.args[2]) == -1:
            return True
    return False


def _value(scope: Scope, node: ast.expr) -> ast.expr:
    bound = scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    return bound[-1].value if bound else node


def _turned(program: Program, scope: Scope, name: str) -> bool:
    """Whether a list is turned round: in its function, or by what calls it."""
    for node in walk(scope.node):
        if isinstance(node, ast.Call) and (method(node) in ("reverse", "flip") or last_name(node.func) in ("flip", "flipud")) and name in identifiers(node):
            return True
        reads = isinstance(node, ast.Subscript | ast.Call) and name in identifiers(node) and not isinstance(program.parents[node], ast.For)
        if reads and _from_behind(node):
            return True
    return any(_from_behind(program.statement(call)) for call, _ in program.call_sites[scope]) if isinstance(scope.node, FunctionNode) else False


class Target:
    """`reward + gamma * …`: where, and the calls of networks that say what comes after is worth."""

    def __init__(self, program: Program, node: ast.BinOp, later: ast.expr, scope: Scope) -> None:
        self.node, self.scope = node, scope
        self.values: list[ast.expr] = [later]
        for name in (n for n in walk(later) if isinstance(n, ast.Name)):
            self.values += [b.value for b in scope.bindings.get(name.id, ()) if b.how == "assign" and b.index is None]
        found = [c for v in self.values for c in walk(v) if isinstance(c, ast.Call) and len(c.args) == 1 and isinstance(c.args[0], ast.Name | ast.Subscript)]
        self.asked = [c for c in found if isinstance(c.func, ast.Name | ast.Attribute) and last_name(c.func) not in METHODS and not program.resolve(c.func)]
        statements = [program.statement(node), *(program.statement(c) for c in self.asked)]
        around = [a for s in statements for a in program.ancestors(s) if isinstance(a, ast.With)]
        cut = any(CUTS & {n for i in a.items for n in identifiers(i.context_expr)} for a in around)
        decorated = any(CUTS & identifiers(d) for d in getattr(scope.node, "decorator_list", ()))
        self.quiet = cut or decorated or any(CUTS & identifiers(v) for v in (node, *self.values))

    def learned(self) -> list[ast.expr | None]:
        """Results of networks of which the taken action's is gathered, those in the target itself left out."""
        own = {id(n) for v in self.values for n in walk(v)}
        return [receiver(c) for c in own_nodes(self.scope.node) if isinstance(c, ast.Call) and method(c) == "gather" and id(c) not in own]


METHODS = {
    "float",
    "int",
    "max",
    "min",
    "mean",
    "sum",
    "stack",
    "tensor",
    "cat",
    "len",
    "squeeze",
    "detach",
    "argmax",
    "gather",
    "unsqueeze",
    "amax",
    "log",
    "exp",
}


def targets(program: Program) -> Iterator[Target]:
    """Every bootstrapped target of a function."""
    if not any(DISCOUNTS & words(n) for n in program.identifiers):
        return
    for node in program.nodes[ast.BinOp]:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            continue
        for reward, later in ((node.left, node.right), (node.right, node.left)):
            named = any(REWARDS & words(n) for n in identifiers(reward))
            if named and isinstance(later, ast.BinOp) and isinstance(later.op, ast.Mult) and any(DISCOUNTS & words(n) for n in identifiers(later)):
                yield Target(program, node, later, program.scope(node))
                break


@rule(
    "BH453",
    "target-of-the-same-state",
    "error",
    title="The value of the next state is asked of the present one",
    why="What an action is worth is its reward and the value of the state that it leads to. With the present state in its place nothing is learned about where actions lead.",
    remedy="ask about the successors: `target_net(next_states).max(1).values`",
    bad="""
        import torch

        def td_loss(q, frozen, states, actions, rewards, successors, dones, gamma):
            with torch.no_grad():
                best = frozen(states).max(1).values
                target = rewards + gamma * best * (1 - dones)
            return (q(states).gather(1, actions).squeeze(1) - target).pow(2).mean()
        """,
    good="""
        import torch

        def td_loss(q, frozen, states, actions, rewards, successors, dones, gamma):
            with torch.no_grad():
                best = frozen(successors).max(1).values
                target = rewards + gamma * best * (1 - dones)
            return (q(states).gather(1, actions).squeeze(1) - target).pow(2).mean()
        """,
)
def target_of_the_same_state(subject: Subject) -> Iterator[Place]:
    """The network in a target is given what the one is given whose `gather` is learned in the same function."""
    program = subject.program
    for target in targets(program):
        learned = target.learned()
        states = {dotted(c.args[0]) for c in learned if isinstance(c, ast.Call) and len(c.args) == 1} - {""}
        chosen = [c for c in target.asked if dotted(c.args[0]) in states]
        if states and chosen and len(chosen) == len(target.asked):
            yield chosen[0], f"{ast.unparse(chosen[0])} is about the states in which the actions were taken, not about those after them"


@rule(
    "BH454",
    "target-with-gradient",
    "error",
    title="A bootstrapped target has a gradient",
    why="The goal is moved towards the guess as well as the guess towards the goal: values of next states are pulled down or up to fit the present ones, and learning is slow or wrong.",
    remedy="compute it under `torch.no_grad()`, or `.detach()` it",
    bad="""
        import torch
        from torch.nn import functional as F

        def td_loss(q, states, actions, rewards, successors, dones, gamma):
            target = rewards + gamma * q(successors).max(1).values * (1 - dones)
            return F.mse_loss(q(states).gather(1, actions).squeeze(1), target)
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def td_loss(q, states, actions, rewards, successors, dones, gamma):
            with torch.no_grad():
                target = rewards + gamma * q(successors).max(1).values * (1 - dones)
            return F.mse_loss(q(states).gather(1, actions).squeeze(1), target)
        """,
)
def target_with_gradient(subject: Subject) -> Iterator[Place]:
    """A target asks the very network whose `gather` is learned in the same function, and nothing cuts it off."""
    program = subject.program
    for target in targets(program):
        nodes = list(own_nodes(target.scope.node))
        learned = target.learned()
        networks = {dotted(c.func) for c in learned if isinstance(c, ast.Call)} - {""}
        own = [c for c in target.asked if dotted(c.func) in networks]
        names = {last_name(t) for t in getattr(program.statement(target.node), "targets", ())}
        cut_later = any(isinstance(c, ast.Call) and method(c) == "detach" and last_name(receiver(c)) in names for c in nodes)
        if own and not target.quiet and not cut_later:
            yield target.node, f"{ast.unparse(own[0])} is learned by this goal as well"
