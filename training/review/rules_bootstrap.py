"""Rule BH434: a bootstrapped target that goes on after the end of an episode."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Scope
from training.review.syntax import identifiers, last_name, names_read, own_nodes, walk, words

ENDS = {"done", "dones", "terminal", "terminals", "terminated", "term", "terms", "ended", "over", "final"}
REWARDS = {"r", "rew", "rews", "reward", "rewards", "rw"}
DISCOUNTS = {"gamma", "discount", "discounts"}


@rule(
    "BH434",
    "target-beyond-the-end",
    "error",
    title="A bootstrapped target goes on after the end of an episode",
    why="Where an episode ended nothing follows: the value of the state after it is added all the same, and every value grows by what is never earned.",
    remedy="`target = reward + gamma * next_value * (1 - done)`",
    bad="""
        import torch

        def td_loss(batch, q, frozen, gamma):
            states, actions, rewards, successors, dones = map(torch.stack, zip(*batch))
            with torch.no_grad():
                target = rewards + gamma * frozen(successors).max(1).values
            return (q(states).gather(1, actions) - target).pow(2).mean()
        """,
    good="""
        import torch

        def td_loss(batch, q, frozen, gamma):
            states, actions, rewards, successors, dones = map(torch.stack, zip(*batch))
            with torch.no_grad():
                target = rewards + gamma * frozen(successors).max(1).values * (1 - dones)
            return (q(states).gather(1, actions) - target).pow(2).mean()
        """,
)
def target_beyond_the_end(subject: Subject) -> Iterator[Place]:
    """`reward + gamma * …`, the value of a later state in it, in a function that unpacks the reward and the end of the episode together and reads no end."""
    program = subject.program
    if not any(DISCOUNTS & words(n) for n in program.identifiers):
        return
    for scope in program.scopes:
        for end, statement, beside in _unpacked_ends(scope):
            read = [n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == end and isinstance(n.ctx, ast.Load)]
            target = next((n for n in own_nodes(scope.node) if _is_target(n, beside)), None) if not read else None
            if target is not None and not {"locals", "vars"} & identifiers(scope.node):
                told = f"{end} of line {getattr(statement, 'lineno', 0)} is never read: after the end of an episode the next value is added too"
                yield target, told, statement
        for node in own_nodes(scope.node):
            end = next((f.id for f in _later_factors(node) if isinstance(f, ast.Name) and ENDS & words(f.id)), "")
            if isinstance(node, ast.BinOp) and end and not any(isinstance(n, ast.Sub | ast.Invert) for b in scope.bindings.get(end, ()) for n in walk(b.value)):
                yield node, f"the next value is multiplied by {end} itself: it counts where the episode ended, and nowhere else"


def _later_factors(node: ast.AST) -> list[ast.expr]:
    """The factors of the value of a later state in `reward + gamma * value * mask`."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return []
    for reward, later in ((node.left, node.right), (node.right, node.left)):
        factors, pending = [], [later]
        while pending:
            part = pending.pop()
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
                pending += [part.left, part.right]
            else:
                factors.append(part)
        if any(REWARDS & words(n) for n in identifiers(reward)) and any(DISCOUNTS & words(last_name(f)) for f in factors):
            return factors
    return []


def _unpacked_ends(scope: Scope) -> Iterator[tuple[str, ast.AST, set[str]]]:
    """Names of ends that are unpacked from a batch: with the statement and the rewards unpacked beside them."""
    for name, bound in scope.bindings.items():
        if not (ENDS & words(name) or name == "d") or len(bound) != 1 or bound[0].how not in ("assign", "loop"):
            continue
        if bound[0].index is None:  # `d = torch.tensor([row[4] for row in batch])` beside `r`, made likewise
            rewards = {n for n, own in scope.bindings.items() if REWARDS & words(n) and any(names_read(b.value) & names_read(bound[0].value) for b in own)}
            if rewards and bound[0].how == "assign" and isinstance(bound[0].value, ast.Call):
                yield name, bound[0].statement, rewards
            continue
        statement = bound[0].statement
        beside = {n for n, own in scope.bindings.items() if any(b.statement is statement for b in own)}
        rewards = {n for n in beside if REWARDS & words(n)}
        called = {last_name(c.func) for c in walk(bound[0].value) if isinstance(c, ast.Call)}
        if rewards and len(beside) >= 4 and "step" not in called:
            yield name, statement, rewards


def _is_target(node: ast.AST, rewards: set[str]) -> bool:
    """`reward + gamma * value`, or with its sides changed about, and nothing named after an end or a mask in it."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return False
    for reward, later in ((node.left, node.right), (node.right, node.left)):
        if identifiers(reward) & rewards and isinstance(later, ast.BinOp) and isinstance(later.op, ast.Mult):
            named = identifiers(later)
            discounted = any(DISCOUNTS & words(n) for n in named)
            if discounted and not any((ENDS | {"mask", "masks", "alive", "continues", "nonterminal"}) & words(n) for n in named):
                return True
    return False
