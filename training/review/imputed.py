"""Gaps that an imputer fills from the other columns of a table, the label among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program, Scope
from training.review.syntax import constant, dotted, last_name, method, own_nodes, receiver, walk

FROM_OTHERS = {"KNNImputer", "IterativeImputer", "MissForest"}  # what they fill a gap with follows from the other columns of the row
ROWS, LABEL = {":, :-1"}, {":, -1", ":, -1:"}
TARGETS = {"target", "label", "y", "outcome"}


def filled_from_labels(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """`full = KNNImputer().fit_transform(table)`, of which the last column, or one that is taken out, becomes the label afterwards."""
    if not FROM_OTHERS & program.called_names:
        return
    for call in program.methods_of("fit_transform", "transform"):
        kind, statement = _imputer(program, call), program.statement(call)
        if not kind or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        scope, name = program.scope(call), statement.targets[0].id
        if any(_parted(where, n) for where, n in ((scope, name), *_given(program, scope, name))):
            yield call, f"{kind} fills gaps from all columns of the table, and the label is one of them"


def _imputer(program: Program, call: ast.Call) -> str:
    """The imputer whose method is called, made there or under a name; one in a pipeline is left alone."""
    made = receiver(call)
    values = [b.value for b in program.bindings_of(made, program.scope(call))] if isinstance(made, ast.Name) else [made]
    return next((last_name(v.func) for v in values if isinstance(v, ast.Call) and last_name(v.func) in FROM_OTHERS), "")


def _given(program: Program, scope: Scope, name: str) -> Iterator[tuple[Scope, str]]:
    """Functions of the file that get it, and what they call it."""
    for node in own_nodes(scope.node):
        callee = program.callees_by_name(node, scope) if isinstance(node, ast.Call) else None
        if callee is not None and isinstance(node, ast.Call):
            yield from ((callee, p) for p, a in zip(callee.parameters, node.args, strict=False) if dotted(a) == name)


def _parted(scope: Scope, name: str) -> bool:
    """Whether rows and labels are both taken of it: by the last place, or by the name of a label."""
    taken: set[str] = set()
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Subscript) and dotted(node.value) == name:
            taken.add(ast.unparse(node.slice).strip("()"))
            if constant(node.slice) in TARGETS:
                taken.add(":, -1")
        elif isinstance(node, ast.Call) and method(node) == "drop" and dotted(receiver(node)) == name:
            dropped = {c.value for c in walk(node) if isinstance(c, ast.Constant)}
            taken |= {":, :-1"} if TARGETS & {str(d) for d in dropped} else set()
    return bool(taken & ROWS and taken & LABEL)
