"""Loops that measure a network, for the rules of metrics."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.kinds import is_model
from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    identifiers,
    last_name,
    method,
    once,
    walk,
    words,
)

TRAINS = {"backward", "step", "manual_backward", "train_step", "training_step"}


QUIET = {"no_grad", "inference_mode", "eval", "set_grad_enabled"}


@once
def evaluating(program: Program) -> tuple[tuple[ast.For, Scope], ...]:
    """Loops that call a network and train nothing, in code that switches gradients or the train
    mode off; none that ends in its first round.
    """
    return tuple(_evaluating(program))


def _evaluating(program: Program) -> Iterator[tuple[ast.For, Scope]]:
    for loop in program.nodes[ast.For]:
        scope = program.scope(loop)
        quiet = QUIET & identifiers(scope.node) or any(
            QUIET & identifiers(a)
            for w in program.ancestors(loop)
            if isinstance(w, ast.With)
            for a in w.items
        )
        if not quiet:
            continue
        called = {method(c) or last_name(c.func) for c in calls(loop)}
        if (
            called & TRAINS
            or any("train" in words(n) or "fit" in words(n) for n in called)
            or scope.name in ("forward", "__iter__")
        ):
            continue
        ends = any(isinstance(s, (ast.Break, ast.Return)) for s in loop.body) or any(
            isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(loop)
        )
        if not ends and any(
            is_model(program, c.func, scope) and not program.resolve(c.func) for c in calls(loop)
        ):
            yield loop, scope
