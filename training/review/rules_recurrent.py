"""Rule BH459: the last step of a layer that runs both ways."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Origin, Program, Scope
from training.review.syntax import constant, is_true, keyword, own_nodes
from training.review.values import reaching_elements

RECURRENT = {"LSTM", "GRU", "RNN"}


@rule("BH459")
def last_step_of_both_ways(subject: Subject) -> Iterator[Place]:
    """`out[:, -1]` of a bidirectional layer with rows in front, or `out[-1]` of one with time in
    front, and the first step is taken nowhere beside it.
    """
    program = subject.program
    for owner in program.module_classes:
        for scope in program.methods[owner].values():
            places = [(n, _step_of(n)) for n in own_nodes(scope.node)]
            for node, taken in places:
                made = (
                    _output_of(program, taken[0], scope)
                    if taken is not None and isinstance(node, ast.Subscript)
                    else None
                )
                if (
                    made is None
                    or taken is None
                    or not is_true(keyword(made.call, "bidirectional"))
                ):
                    continue
                first = is_true(keyword(made.call, "batch_first"))
                both = any(
                    other is not None
                    and other[1:] == (taken[1], 0)
                    and ast.dump(other[0]) == ast.dump(taken[0])
                    for _, other in places
                )
                if taken[1:] == (first, -1) and not both:
                    yield (
                        node,
                        (
                            f"{ast.unparse(node)} holds what the backward half of {made.last} has"
                            " seen of one step"
                        ),
                    )


def _step_of(node: ast.AST) -> tuple[ast.expr, bool, int] | None:
    """Of which tensor one step is taken, whether along dimension 1, and which: the first, 0, or the
    last.
    """
    if not isinstance(node, ast.Subscript):
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    along = (
        len(parts) > 1
        and isinstance(parts[0], ast.Slice)
        and parts[0].lower is None
        and parts[0].upper is None
    )
    at = constant(parts[1] if along else parts[0])
    # a part of the width behind it, as `out[:, -1, :half]`, is the forward half alone
    cut = any(isinstance(p, ast.Slice) and (p.lower or p.upper) for p in parts[1:])
    return (
        (node.value, along, at)
        if at in (0, -1) and isinstance(at, int) and not isinstance(at, bool) and not cut
        else None
    )


def _output_of(program: Program, node: ast.expr, scope: Scope) -> Origin | None:
    """The recurrent layer of which a name is the output, not the state."""
    found = reaching_elements(program, node, scope) if isinstance(node, ast.Name) else []
    if len(found) != 1 or found[0][1] != 0 or not isinstance(found[0][0], ast.Call):
        return None
    made = [
        o
        for o in program.origins(found[0][0].func, scope)
        if o.name.startswith("torch.nn.") and o.last in RECURRENT
    ]
    return made[0] if len(made) == 1 else None
