"""Rule BH434: a bootstrapped target that goes on after the end of an episode."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.bootstraps import DISCOUNTS, REWARDS, Target, made_of, network_calls, targets, texts
from training.review.findings import Place, Subject, rule
from training.review.lookups import spoken_words
from training.review.memories import CERTAIN, MASKS, Kept, is_turned_round, kept_ends, stores_the_opposite
from training.review.program import Program, Scope
from training.review.syntax import identifiers, last_name, method, names_read, own_nodes, receiver, walk, words
from training.review.values import PASSED_ON

ENDS = {"done", "dones", "terminal", "terminals", "terminated", "term", "terms", "ended", "finished", "over", "final"}
STATES = {"obs", "observation", "observations", "state", "states", "s", "o", "ob", "feature", "features"}
ACTIONS = {"action", "actions", "act", "acts", "a", "move", "moves"}
# What stands beside a state, an action and a reward without ending anything; where time has run out, the next value is added rightly.
NO_ENDS = {
    *("info", "infos", "weight", "weights", "idx", "index", "indices", "log", "logp", "prob", "probs", "return", "returns", "step", "steps", "t", "time"),
    *("truncated", "truncation", "truncations", "timeout", "timeouts", "value", "values", "advantage", "advantages", "priority", "priorities", "goal", "goals"),
}
LATER = {"next", "after", "successor", "successors", "new"}


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
    """`reward + gamma * …`, the value of a later state in it, in a function that has the end of the episode at hand and reads no end; or one times the end.

    At hand: unpacked together with the reward; a name of ends that is bound there or a parameter; or what the file keeps beside the reward in its memory.
    """
    program = subject.program
    if not DISCOUNTS & spoken_words(program):
        return
    for scope in program.scopes:
        for end, statement, beside in _unpacked_ends(scope):
            target = next((n for n in own_nodes(scope.node) if _is_target(n, beside)), None) if not _is_read(end, scope) else None
            if target is not None and not {"locals", "vars"} & identifiers(scope.node):
                told = f"{end} of line {getattr(statement, 'lineno', 0)} is never read: after the end of an episode the next value is added too"
                yield target, told, statement
    kept = kept_ends(program)
    for found in targets(program):
        inverted = next((f for f in found.later if _is_end(program, f, found.scope, kept)), None)
        if inverted is not None and not stores_the_opposite(program):
            told = f"the next value is multiplied by {ast.unparse(inverted)}: it is added only where an episode has ended"
            yield found.node, f"{told}, and nowhere else"
        elif (unread := _unread_end(program, found, kept)) and not {"locals", "vars"} & identifiers(found.scope.node):
            yield found.node, f"{unread}: after the end of an episode the next value is added too"


def _is_read(name: str, scope: Scope) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in walk(scope.node))


def _unread_end(program: Program, found: Target, kept: list[Kept]) -> str:
    """What knows of ends in the target's function and is not read there; empty where something is, or where there is nothing.

    A target with a further factor is masked, and one whose next value is made of an end or a mask; what `step` of an environment gives also ends a loop.
    """
    scope = found.scope
    if len(found.later) != 1 or any((ENDS | MASKS) & words(n) for part in found.later for root in made_of(program, part, scope) for n in texts(root)):
        return ""
    if not network_calls(program, found.later[0], scope) and not any(LATER & words(n) for n in identifiers(found.later[0])):
        return ""
    ends = [n for n in (*scope.bindings, *scope.parameters) if CERTAIN & words(n)]
    ends = [n for n in ends if not any("step" in identifiers(b.value) for b in scope.bindings.get(n, ()))]
    if ends:
        return "" if any(_is_read(n, scope) for n in ends) else f"{ends[0]} is at hand and never read"
    for memory in kept:
        place = memory.of_end(program, scope)
        if place is not None:
            return f"the memory of line {memory.node.lineno} keeps {memory.end} beside {memory.reward}, and {place}"
    return ""


def _is_end(program: Program, node: ast.expr, scope: Scope, kept: list[Kept]) -> bool:
    """Whether a factor is 1 where an episode ended: named so, or taken from where the memory keeps ends, and turned round nowhere."""
    while isinstance(node, ast.Call) and method(node) in PASSED_ON and (inner := receiver(node)) is not None:
        node = inner
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return False
    roots = made_of(program, node, scope)
    if any(is_turned_round(n) for root in roots for n in walk(root)) or any(MASKS & words(n) for root in roots for n in texts(root)):
        return False
    if CERTAIN & words(last_name(node)):
        return True
    return isinstance(node, ast.Name) and any(memory.holds_end(node.id, scope) for memory in kept)


def _unpacked_ends(scope: Scope) -> Iterator[tuple[str, ast.AST, set[str]]]:
    """Names of ends that are unpacked from a batch: with the statement and the rewards unpacked beside them."""
    for name, bound in scope.bindings.items():
        if not (ENDS & words(name) or name == "d" or _is_fifth(name, scope)) or len(bound) != 1 or bound[0].how not in ("assign", "loop"):
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


def _is_fifth(name: str, scope: Scope) -> bool:
    """Whether a name is unpacked beside a state, an action, a reward and the state after it, and nothing else: what is kept with these is the end, whatever it is called."""
    bound = scope.bindings[name]
    if len(bound) != 1 or bound[0].index is None or name.startswith("_") or NO_ENDS & words(name):
        return False
    others = [n for n, own in scope.bindings.items() if n != name and any(b.statement is bound[0].statement for b in own)]
    kinds = [words(n) for n in others]
    after = [k for k in kinds if LATER & k or any(w.endswith("2") and len(w) <= 4 for w in k)]
    return len(others) == 4 and len(after) == 1 and all(any(kind & k for k in kinds if k not in after) for kind in (STATES, ACTIONS, REWARDS))


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
