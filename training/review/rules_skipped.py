"""Rule BH230: batches that are left out because the network is wrong about them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.leaves import leaves
from training.review.program import Program, Scope
from training.review.syntax import constant, dotted, last_name, method, receiver, words
from training.review.trace import Event

SAFE = 5.0  # above it a limit is a guard against batches that blow up
READS = {"item", "detach", "float", "cpu", "mean"}


@rule(
    "BH230",
    "large-losses-skipped",
    "error",
    title="Batches with a large loss are left out of training",
    why="What the network gets wrong is what it has to learn from: with the hard batches left out the train loss looks fine, rare classes are never learned, and early in training nothing is.",
    remedy="leave out batches whose loss is not finite alone: `if not torch.isfinite(loss): continue`; clip gradients against outliers",
    bad="""
        import torch
        from torch.nn import functional as F

        def train(model, optimizer, loader):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                if loss.item() > 0.9:
                    continue
                loss.backward()
                optimizer.step()
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def train(model, optimizer, loader):
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                if not torch.isfinite(loss):
                    continue
                loss.backward()
                optimizer.step()
        """,
)
def large_losses_skipped(subject: Subject) -> Iterator[Place]:
    """`backward` of a loss runs only where that loss is below a number of at most 5: after `continue` where it is above, or under `if`."""
    program = subject.program
    for trace in subject.traces:
        for event in (e for e in trace if e.kind == "backward" and e.loops):
            inside = [b for b in event.branches if event.loops[-1].node in program.ancestors(b[0])]
            for branch, taken in inside:
                limit = _limit(program, event, branch, taken) if isinstance(branch, ast.If) and not _of_entropy(event) else None
                if limit is not None:
                    yield branch, f"batches with a loss above {limit:g} are left out: the ones that the network has to learn from", event.loops[-1].node


def _of_entropy(event: Event) -> bool:
    """Whether what goes backward is the entropy of the scores themselves, which has no labels: batches are left out that are not to be trusted."""
    return "entropy" in words(last_name(receiver(event.node))) and "cross" not in words(last_name(receiver(event.node)))


def _limit(program: Program, event: Event, branch: ast.If, taken: bool) -> float | None:
    """The number that the loss of an event must not exceed for it to happen; None where a condition says anything else."""
    leaves_out = not taken and isinstance(branch.body[-1], ast.Continue)
    test = branch.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, taken = test.operand, not taken
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not (leaves_out or (taken and not branch.orelse)):
        return None
    left, op, right = test.left, test.ops[0], test.comparators[0]
    if _number(program, left, event.scope) is not None:
        left, right = right, left
        op = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}.get(type(op), type(op))()
    limit = _number(program, right, event.scope)
    excluded = isinstance(op, (ast.Lt, ast.LtE)) if taken else isinstance(op, (ast.Gt, ast.GtE))
    backed = receiver(event.node) if method(event.node) == "backward" else None
    while isinstance(backed, ast.Call):  # scaler.scale(loss)
        backed = backed.args[0] if backed.args else None
    same = bool(dotted(backed)) and dotted(_bare(program, left, event.scope)) == dotted(backed)
    return limit if excluded and limit is not None and 0 < limit <= SAFE and same else None


def _bare(program: Program, node: ast.expr, scope: Scope) -> ast.expr:
    """A loss without `.item()` or `float(…)`, also by the name of its number."""
    while isinstance(node, ast.Call) and (method(node) in READS or last_name(node.func) == "float"):
        inner = node.args[0] if last_name(node.func) == "float" and node.args else receiver(node)
        if inner is None:
            break
        node = inner
    bound = scope.bindings.get(node.id, []) if isinstance(node, ast.Name) else []
    if len(bound) == 1 and isinstance(bound[0].value, ast.Call) and (method(bound[0].value) in READS or last_name(bound[0].value.func) == "float"):
        return _bare(program, bound[0].value, scope)
    return node


def _number(program: Program, node: ast.expr, scope: Scope) -> float | None:
    """A number that is written down, here or under a name."""
    found = {constant(leaf.node) for leaf in leaves(program, node, scope)}
    if isinstance(node, ast.Name) and node.id not in scope.bindings and node.id not in scope.parameters:
        found = {constant(b.value) for b in program.bindings_of(node, scope)}
    value = found.pop() if len(found) == 1 else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
