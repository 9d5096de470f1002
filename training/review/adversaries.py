"""Optimizers of networks that are trained against each other, one of which holds the other's
network too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.lookups import optimizers_made
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    dotted,
    identifiers,
    method,
    own_nodes,
    own_nodes_of,
    receiver,
)

TRUE, FALSE = ("ones", "ones_like", "new_ones"), ("zeros", "zeros_like", "new_zeros")


class Holder(NamedTuple):
    """An optimizer under a name, and the names of the networks whose parameters it is given."""

    call: ast.Call
    scope: Scope
    name: str
    networks: frozenset[str]


def judges_held_twice(program: Program) -> Iterator[tuple[ast.Call, str, ast.Call]]:
    """Optimizers that hold a judge beside other networks: the judge has one of its own, whose steps
    ask for ones and zeros; these ask for one of both alone.
    """
    holders = list(_holders(program))
    for own in (h for h in holders if len(h.networks) == 1):
        for other in (h for h in holders if h.scope is own.scope and own.networks < h.networks):
            asked, against = _asked(program, own, holders), _asked(program, other, holders)
            if (
                asked
                and against
                and all(a == {"true", "false"} for a in asked)
                and all(len(a) == 1 for a in against)
            ):
                yield other.call, next(iter(own.networks)), own.call


def _holders(program: Program) -> Iterator[Holder]:
    for call, scope in optimizers_made(program):
        if isinstance(statement := program.parents[call], ast.Assign):
            names = [dotted(receiver(c)) for c in calls(call.args[0]) if method(c) == "parameters"]
            if names and all(names) and dotted(statement.targets[0]):
                yield Holder(call, scope, dotted(statement.targets[0]), frozenset(names))


def _asked(program: Program, holder: Holder, holders: list[Holder]) -> list[set[str]]:
    """Of each step of an optimizer which constant labels are made between the step before it in its
    function and this one.
    """
    names = {h.name for h in holders}
    found = []
    for step in (c for c in program.methods_of("step") if dotted(receiver(c)) == holder.name):
        scope = program.scope(step)
        if scope is not holder.scope and not (
            holder.name.startswith("self.") and scope.owner is holder.scope.owner
        ):
            continue
        steps = [
            n.lineno
            for n in own_nodes_of(scope.node, ast.Call)
            if method(n) == "step" and dotted(receiver(n)) in names
        ]
        since = max((line for line in steps if line < step.lineno), default=0)
        read = {
            i
            for n in own_nodes(scope.node)
            if since < getattr(n, "lineno", 0) <= step.lineno and isinstance(n, ast.Call)
            for i in identifiers(n)
        }
        found.append(
            {side for side, makers in (("true", TRUE), ("false", FALSE)) if read & set(makers)}
        )
    return found
