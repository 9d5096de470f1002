"""Rule BH327: pos_weight is the share of positives, not its inverse."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import calls_given
from training.review.program import Program, Scope
from training.review.syntax import (
    constant,
    identifiers,
    keyword,
    last_name,
    method,
    nodes_of,
    receiver,
    words,
)
from training.review.values import value_of
from training.review.whole import LABEL_WORDS

MOST_SMOOTHED, MOST_DROPPED = 0.5, 0.95


@rule("BH327")
def weight_of_frequent_class(subject: Subject) -> Iterator[Place]:
    """`pos_weight` is a quotient of what is called positive, or counted where labels are 1, by what
    is called negative, or counted where they are 0.
    """
    program = subject.program
    for call in calls_given(program, "pos_weight"):
        given = keyword(call, "pos_weight")
        scope = program.scope(call)
        value = value_of(program, given, scope) if given is not None else None
        inner = (
            value.args[0]
            if isinstance(value, ast.Call)
            and last_name(value.func) in ("tensor", "as_tensor")
            and value.args
            else value
        )
        inner = inner.elts[0] if isinstance(inner, ast.List) and len(inner.elts) == 1 else inner
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) and given is not None:
            above, below = (
                _class_counted(program, side, scope) for side in (inner.left, inner.right)
            )
            if above == "positive" and below == "negative":
                yield (
                    given,
                    (
                        f"{ast.unparse(inner)} is small where positives are rare: it is to be the"
                        " other way round"
                    ),
                )


def _class_counted(program: Program, node: ast.expr, scope: Scope) -> str:
    """Of which of two classes something is the count, by its name or by what it compares labels
    with.
    """
    named = {w for n in identifiers(node) for w in words(n)}
    if named & {"pos", "positive", "positives", "npos"} or named & {
        "neg",
        "negative",
        "negatives",
        "nneg",
    }:
        both = named & {"pos", "positive", "positives", "npos"} and named & {
            "neg",
            "negative",
            "negatives",
            "nneg",
        }
        return (
            ""
            if both
            else "positive"
            if named & {"pos", "positive", "positives", "npos"}
            else "negative"
        )
    made = value_of(program, node, scope)
    if (
        method(made) == "sum" and (counted := receiver(made)) is not None
    ):  # of labels 0 and 1: `y.sum()`, `(1 - y).sum()`
        turned = (
            isinstance(counted, ast.BinOp)
            and isinstance(counted.op, ast.Sub)
            and constant(counted.left) in (1, 1.0)
        )
        labels = counted.right if turned and isinstance(counted, ast.BinOp) else counted
        if words(last_name(labels)) & LABEL_WORDS:
            return "negative" if turned else "positive"
    against = {
        constant(n.comparators[0])
        for n in nodes_of(made, ast.Compare)
        if isinstance(n.ops[0], ast.Eq)
    }
    return "positive" if against == {1} else "negative" if against == {0} else ""
