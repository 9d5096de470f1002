"""Rules BH437 and BH438: which way a policy gradient goes, and whose log probability it weighs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.findings import Place, Subject, rule
from training.review.lookups import keywords_of
from training.review.program import Program, Scope
from training.review.rules_policy import CRITIC, LOGS, of_logs
from training.review.signs import Signs, is_turned
from training.review.syntax import calls, dotted, exponent, identifiers, is_true, keyword, last_name, method, once, own_nodes, receiver, walk, words
from training.review.values import value_of

REWARDS = {"reward", "rewards", "return", "returns", "advantage", "advantages", "adv", "advs", "gae", "gaes", "gain", "gains", "delta", "deltas", "td"}
SHORT = {"R", "G", "A", "Gt"}
COSTS = {"loss", "losses", "cost", "costs", "nll", "error", "penalty", "penalties", "regret", "length", "lengths", "latency", "neg", "negative"}
DECIDED = {"argmax", "mode"}


class Product(NamedTuple):
    """A log probability, or a ratio of probabilities, times what was gained."""

    node: ast.BinOp
    log: ast.expr
    weight: ast.expr
    scope: Scope
    ratio: bool


@rule(
    "BH437",
    "policy-gradient-with-wrong-sign",
    "error",
    title="The policy is pushed the wrong way",
    why="The optimizer makes the loss small: log probability times advantage without a minus makes good actions rare, and an entropy with a plus takes exploration away.",
    remedy="`loss = -(log_prob * advantage).mean() - 0.01 * entropy.mean()`",
    bad="""
        import torch

        def update(policy, optimizer, state, action, advantage):
            dist = policy(state)
            loss = (dist.log_prob(action) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def update(policy, optimizer, state, action, advantage):
            dist = policy(state)
            loss = -(dist.log_prob(action) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def policy_gradient_with_wrong_sign(subject: Subject) -> Iterator[Place]:
    """A log probability or a ratio times what was gained arrives at `backward` with a plus on each way; beside one with a minus, the entropy does."""
    program = subject.program
    if not _products(program) and not program.methods_of("entropy"):
        return
    if any(not isinstance(k.value, ast.Constant) or is_true(k.value) for k in keywords_of(program, "maximize")):
        return
    if any(last_name(receiver(c)) == "grad" for c in program.methods_of("neg_", "neg")):
        return  # gradients are turned round before the step
    if _ascends_by_hand(program):
        return
    signs = Signs(program)
    turned = is_turned(program, {n for n in program.identifiers if any(kind <= words(n) for kind in LOGS)})
    rising: set[Scope] = set()
    for product in _products(program):
        way = signs.into_backward(product.node, _inner_sign(product.log) * _inner_sign(product.weight))
        direct = any(method(c) == "log_prob" for c in calls(product.log)) or product.ratio
        if way == {1} and (direct or not turned) and not _has_opponent(product):
            yield product.node, f"{ast.unparse(product.node)} goes into the loss with a plus: what was gained most becomes rare"
        if way <= {1, -1} and way:
            rising.add(product.scope)
    rising |= {program.scope(c) for c in program.methods_of("log_prob")}
    for call in program.methods_of("entropy") if rising else ():
        if not call.args and not call.keywords and program.scope(call) in rising and signs.into_backward(call) == {1}:
            yield call, f"{ast.unparse(call)} goes into the loss with a plus, which makes it small: exploration is taken away"


def _ascends_by_hand(program: Program) -> bool:
    """Whether parameters are moved along their gradient, and not against it: `p.add_(p.grad, alpha=rate)`, `p += rate * p.grad`."""
    for call in program.methods_of("add_"):
        if call.args and any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in walk(call.args[0])):
            step = keyword(call, "alpha")
            if not any(isinstance(n, ast.USub) for part in (call.args[0], step) if part is not None for n in walk(part)):
                return True
    added = [n for n in program.nodes[ast.AugAssign] if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Add)]
    return any(isinstance(n, ast.Attribute) and n.attr == "grad" for a in added for n in walk(a.value)) and not any(
        isinstance(n, ast.USub) for a in added for n in walk(a.value)
    )


def _has_opponent(product: Product) -> bool:
    """Whether the same gain stands in the function with a minus too: what one player earns the other loses."""
    gain = ast.unparse(product.weight)
    others = [n for n in own_nodes(product.scope.node) if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub)]
    return any(product.node not in walk(o) and any(ast.unparse(n) == gain for n in walk(o) if isinstance(n, ast.Name)) for o in others)


@once
def _products(program: Program) -> tuple[Product, ...]:
    return tuple(_found_products(program))


def _found_products(program: Program) -> Iterator[Product]:
    gains = {n for n in program.identifiers if words(n) & REWARDS or n in SHORT}
    for node in program.nodes[ast.BinOp] if gains else ():
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            continue
        scope = program.scope(node)
        for log, weight in ((node.left, node.right), (node.right, node.left)):
            if gains.isdisjoint(identifiers(weight)) or not gains.isdisjoint(identifiers(log)):
                continue
            ratio = _is_ratio(program, log, scope)
            if (ratio or of_logs(log)) and not of_logs(weight) and not _of_costs(program, weight, scope):
                yield Product(node, log, weight, scope, ratio)
                break


def _is_ratio(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a name is bound to the exp of a difference of log probabilities."""
    bound = program.bindings_of(node, scope) if isinstance(node, ast.Name) else []
    inner = [exponent(b.value) for b in bound]
    return bool(inner) and all(i is not None and of_logs(i) for i in inner)


def _of_costs(program: Program, weight: ast.expr, scope: Scope) -> bool:
    """Whether a gain is made of a loss or a cost, or is what a critic expects less what came."""
    values = [b.value for n in walk(weight) if isinstance(n, ast.Name) for b in program.bindings_of(n, scope)]
    for value in (weight, *values):
        if any(words(n) & COSTS for n in identifiers(value)):
            return True
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and any(words(n) & CRITIC for n in identifiers(value.left)):
            return not any(words(n) & REWARDS for n in identifiers(value.left))
        less = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and isinstance(value.right, ast.Name) and bool(words(value.right.id) & REWARDS)
        if less and isinstance(value, ast.BinOp) and any(words(n) & {"mean", "greedy", "baseline"} for n in identifiers(value.left)):
            return True  # what was to be expected less what came
    return False


def _inner_sign(node: ast.expr) -> int:
    return -_inner_sign(node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1


@rule(
    "BH438",
    "log-probability-of-other-action",
    "error",
    title="The log probability is not that of a drawn action",
    why="A policy gradient holds for the action that was drawn and rewarded: a second draw is another one, and what argmax chooses is never explored.",
    remedy="`action = dist.sample()`, act with it, and weigh `dist.log_prob(action)`",
    bad="""
        import torch

        def update(policy, optimizer, state, act):
            dist = policy(state)
            reward = act(dist.sample())
            loss = -(dist.log_prob(dist.sample()) * reward).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    good="""
        import torch

        def update(policy, optimizer, state, act):
            dist = policy(state)
            action = dist.sample()
            reward = act(action)
            loss = -(dist.log_prob(action) * reward).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
)
def log_probability_of_other_action(subject: Subject) -> Iterator[Place]:
    """In a product with what was gained: `log_prob` of a fresh `sample()`, of one that goes nowhere else beside another one, or of what argmax gave."""
    program = subject.program
    for product in _products(program):
        made = value_of(program, product.log, product.scope)
        for call in (c for c in calls(made) if method(c) == "log_prob" and len(c.args) == 1):
            scope = program.scope(call)
            given = call.args[0]
            bound = program.bindings_of(given, scope) if isinstance(given, ast.Name) else []
            value = bound[0].value if len(bound) == 1 and bound[0].index is None and bound[0].how == "assign" else given
            if _draws(given) or (_draws(value) and _read_once(scope, given) and _drawn_again(scope, value)):
                yield call, f"{ast.unparse(call)} is the log probability of another draw than that which was acted on"
            elif _decided(value):
                yield call, f"{ast.unparse(given)} is chosen, not drawn: {ast.unparse(value)} explores nothing, and its log probability is learned"


def _draws(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and method(node) == "sample" and not node.args


def _read_once(scope: Scope, node: ast.expr) -> bool:
    return sum(isinstance(n, ast.Name) and n.id == last_name(node) and isinstance(n.ctx, ast.Load) for n in own_nodes(scope.node)) == 1


def _drawn_again(scope: Scope, value: ast.expr) -> bool:
    """Whether the same distribution is sampled elsewhere in the function."""
    on = ast.dump(receiver(value) or value)
    return any(_draws(n) and n is not value and ast.dump(receiver(n) or n) == on for n in own_nodes(scope.node) if isinstance(n, ast.expr))


def _decided(node: ast.expr) -> bool:
    """Whether it is the most probable action: `argmax`, `max(…)[1]`, `max(…).indices` or the distribution's `mode`."""
    if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "indices"):
        return isinstance(node.value, ast.Call) and last_name(node.value.func) in ("max", "topk")
    if isinstance(node, ast.Attribute):
        return node.attr == "mode"
    return isinstance(node, ast.Call) and last_name(node.func) in DECIDED and not _of_a_draw(node)


def _of_a_draw(node: ast.Call) -> bool:
    """Whether the largest is taken of scores with noise, which is a draw, or of one-hot rows, which is the action itself."""
    on = receiver(node) if isinstance(node.func, ast.Attribute) and not dotted(receiver(node)).startswith("torch") else next(iter(node.args), None)
    return on is not None and bool({w for n in identifiers(on) for w in words(n)} & {"noise", "gumbel", "hot", "onehot", "noisy", "perturbed"})
