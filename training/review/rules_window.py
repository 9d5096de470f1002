"""The condition around a step that comes once for several batches."""

from __future__ import annotations

import ast

from training.review.loops import Steps
from training.review.program import Scope
from training.review.syntax import nodes_of


def window_of(steps: Steps) -> ast.If | None:
    """The `if (i + 1) % n == 0` around a step, where the backward stands outside of it."""
    if steps.loop is None or any(
        e.within("accumulate") for e in (steps.step, *(b.event for b in steps.backwards))
    ):
        return None
    for branch, taken in steps.step.branches:
        if not (
            taken
            and isinstance(branch, ast.If)
            and bool(nodes_of(condition(branch, steps.step.scope), ast.Mod))
        ):
            continue
        if any((branch, True) in b.event.branches for b in steps.backwards):
            continue
        return branch
    return None


def condition(branch: ast.If, scope: Scope) -> ast.expr:
    """The condition of a branch; of a name that is bound once, as `last = (i + 1) % n == 0`, what
    it stands for.
    """
    bound = scope.bindings.get(branch.test.id, []) if isinstance(branch.test, ast.Name) else []
    return (
        bound[0].value
        if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None
        else branch.test
    )
