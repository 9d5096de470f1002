"""Rule BH620: the forward pass stands outside of no_sync."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Scope
from training.review.syntax import (
    calls,
    dotted,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
)


@rule("BH620")
def forward_outside_no_sync(subject: Subject) -> Iterator[Place]:
    """A block under `x.no_sync()` takes a loss backward that a name bound before the block holds,
    and `x(…)` is called in that loop, not in the block.
    """
    program = subject.program
    for block in program.nodes[ast.With]:
        scope = program.scope(block)
        wrapped = {
            dotted(receiver(c))
            for item in block.items
            for c in _contexts(item.context_expr, scope)
            if method(c) == "no_sync"
        } - {""}
        inside = [c for s in block.body for c in calls(s)]
        backward = next((c for c in inside if method(c) == "backward"), None)
        loop = next(
            (a for a in program.ancestors(block) if isinstance(a, (ast.For, ast.While))), None
        )
        if (
            not wrapped
            or backward is None
            or loop is None
            or any(dotted(c.func) in wrapped for c in inside)
        ):
            continue
        called = [
            c
            for c in calls(loop)
            if dotted(c.func) in wrapped and c not in inside and c.lineno < block.lineno
        ]
        bound = {
            last_name(t) for s in block.body for n in nodes_of(s, ast.Assign) for t in n.targets
        }
        if called and names_read(receiver(backward)) and not names_read(receiver(backward)) & bound:
            yield (
                block,
                (
                    f"{dotted(called[0].func)} is called in line {called[0].lineno}, before"
                    " no_sync: gradients are averaged all the same"
                ),
            )


def _contexts(node: ast.expr, scope: Scope) -> Iterator[ast.Call]:
    """The calls that a context manager may be, written there or bound to its name."""
    candidates = (
        [b.value for b in scope.bindings.get(node.id, ())] if isinstance(node, ast.Name) else [node]
    )
    for candidate in candidates:
        yield from calls(candidate)
