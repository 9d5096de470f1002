"""Rule BH619: one rank leaves the loop that the others go on with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import torch_calls
from training.review.program import Program, Scope
from training.review.rules_distributed import COLLECTIVES, REDUCES, one_rank
from training.review.syntax import (
    calls,
    identifiers,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    receiver,
    walk,
    words,
)

CLOCKS = {"time.time", "time.monotonic", "time.perf_counter"}
LOSSES = {"loss", "losses"}
WRAPPERS = ("DistributedDataParallel", "fully_shard", "FullyShardedDataParallel")


@rule("BH619")
def loop_left_by_one_rank(subject: Subject) -> Iterator[Place]:
    """In a file that wraps a network, a loop that makes backward passes is left under a condition
    on the rank, or on a loss or a clock that nothing reduces.
    """
    program = subject.program
    if not torch_calls(program, *WRAPPERS):
        return
    for node in program.nodes[ast.Break]:
        scope = program.scope(node)
        around = _until_loop(program, node)
        if around is None or not _trains(program, around[0], scope):
            continue
        loop, branches = around
        ranked = [(b, taken) for b, taken in branches if one_rank(b.test, program.rank_names)]
        if ranked and not any(_leaves(b.orelse if taken else b.body) for b, taken in ranked):
            yield node, "one rank leaves the loop here, and the others wait in their next backward"
            continue
        if _exchanges(program, loop, scope):
            continue
        own = _of_this_rank(program, loop, scope)
        if any(names_read(b.test) & own or _reads_clock(program, b.test) for b, _ in branches):
            yield node, "each rank decides by a number of its own whether it leaves the loop here"


def _until_loop(
    program: Program, node: ast.Break
) -> tuple[ast.For | ast.While, list[tuple[ast.If, bool]]] | None:
    """The loop that a break leaves, and the conditions in between with whether their first branch
    was taken.
    """
    branches = list[tuple[ast.If, bool]]()
    below: ast.AST = node
    for above in program.ancestors(node):
        if isinstance(above, ast.If):
            branches.append((above, below in above.body))
        elif isinstance(above, (ast.For, ast.While)):
            return (above, branches) if below in above.body else None
        below = above
    return None


def _trains(program: Program, loop: ast.For | ast.While, scope: Scope) -> bool:
    """Whether a loop makes backward passes, itself or by a function that it calls."""
    return any(
        method(c) == "backward"
        or any(method(i) == "backward" for f in program.callees(c, scope) for i in calls(f.node))
        for c in calls(loop)
    )


def _leaves(body: list[ast.stmt]) -> bool:
    return any(isinstance(n, (ast.Break, ast.Return, ast.Raise)) for s in body for n in walk(s))


def _exchanges(program: Program, loop: ast.For | ast.While, scope: Scope) -> bool:
    """Whether ranks exchange numbers in a loop or in what it calls, there or out of sight."""
    return any(
        last_name(c.func) in COLLECTIVES | REDUCES
        or any(
            last_name(i.func) in COLLECTIVES | REDUCES
            for f in program.callees(c, scope)
            for i in calls(f.node)
        )
        for c in calls(loop)
    )


def _of_this_rank(program: Program, loop: ast.For | ast.While, scope: Scope) -> set[str]:
    """Names that a loss which a backward begins at goes into, or that are changed by a condition on
    it.
    """
    own = set[str]()
    for call in calls(loop):
        if method(call) == "backward" and isinstance(at := receiver(call), ast.Name):
            own.add(at.id)
        if any(
            method(i) == "backward" for f in program.callees(call, scope) for i in calls(f.node)
        ):
            own |= {
                n
                for t in getattr(program.statement(call), "targets", ())
                for n in identifiers(t)
                if LOSSES & words(n)
            }
    assigned = [
        n
        for n in own_nodes(scope.node)
        if isinstance(n, (ast.Assign, ast.AugAssign)) and loop in program.ancestors(n)
    ]
    while True:
        grown = set(own)
        for node in assigned:
            tests = [
                a.test
                for a in program.ancestors(node)
                if isinstance(a, ast.If) and loop in program.ancestors(a)
            ]
            if names_read(node.value) & own or any(names_read(t) & own for t in tests):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                grown |= {
                    n.id
                    for t in targets
                    for n in nodes_of(t, ast.Name)
                    if isinstance(n.ctx, ast.Store)
                }
        if grown == own:
            return own
        own = grown


def _reads_clock(program: Program, test: ast.expr) -> bool:
    return any(program.resolve(c.func) in CLOCKS for c in calls(test))
