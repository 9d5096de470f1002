"""Rule BH140: the first accumulation window holds one batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.loops import Steps, step_groups
from training.review.rules_window import condition, window_of
from training.review.syntax import constant, keyword, last_name, nodes_of


@rule("BH140")
def first_window_of_one_batch(subject: Subject) -> Iterator[Place]:
    """After a backward that nothing guards, a step where a counter from 0 divides evenly: the
    counter of the loop itself, or of `enumerate`.
    """
    for steps in step_groups(subject):
        branch = window_of(steps)
        if (
            branch is None
            or steps.loop is None
            or not isinstance(steps.loop.node, ast.For)
            or steps.step.via == "closure"
        ):
            continue
        counter, test = _from_zero(steps.loop.node), condition(branch, steps.step.scope)
        compared = (
            [test, *test.values]
            if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
            else [test]
        )
        written = {last_name(n.target) for n in nodes_of(steps.loop.node, ast.AugAssign)}
        if (
            counter
            and counter not in written
            and any(_divides_evenly(c, counter) for c in compared)
            and not _starts_over(steps)
        ):
            told = (
                f"{ast.unparse(test)} is true for the first batch already, as {counter} counts"
                " from 0"
            )
            yield branch, f"{told}: the first window holds one batch", steps.loop.node


def _from_zero(loop: ast.For) -> str:
    """The name that counts the passages of a loop from 0; empty where there is none."""
    head = loop.iter
    while isinstance(head, ast.Call) and last_name(head.func) in ("tqdm", "track") and head.args:
        head = head.args[0]
    if not isinstance(head, ast.Call):
        return ""
    start = keyword(head, "start", 1)
    if (
        last_name(head.func) == "enumerate"
        and isinstance(loop.target, ast.Tuple)
        and (start is None or constant(start) == 0)
    ):
        return last_name(loop.target.elts[0])
    if last_name(head.func) in ("range", "trange") and len(head.args) == 1:
        return last_name(loop.target) if isinstance(loop.target, ast.Name) else ""
    return ""


def _divides_evenly(test: ast.expr, counter: str) -> bool:
    """Whether it is `counter % n == 0` or `not counter % n`; of a window of 1 there is nothing to
    say.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        rest = test.operand
    elif (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Eq)
        and constant(test.comparators[0]) == 0
        and len(test.ops) == 1
    ):
        rest = test.left
    else:
        return False
    return (
        isinstance(rest, ast.BinOp)
        and isinstance(rest.op, ast.Mod)
        and isinstance(rest.left, ast.Name)
        and rest.left.id == counter
    )


def _starts_over(steps: Steps) -> bool:
    """Whether gradients are cleared in every passage: then no window is added up, and the backward
    is none of this optimizer's or of another rule.
    """
    return any(c.event.branches == steps.backwards[0].event.branches for c in steps.clears)
