"""Gaps that are filled from the label: by an imputer that is given it among other columns, or by a
statistic of the rows of one class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program, Scope
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes,
    receiver,
    words,
)

FROM_OTHERS = {
    "KNNImputer",
    "IterativeImputer",
    "MissForest",
}  # what they fill a gap with follows from the other columns of the row
ROWS, LABEL = {":, :-1"}, {":, -1", ":, -1:"}
TARGETS = {"target", "label", "y", "outcome"}
EMPTY = {"isna", "isnull", "isnan"}
GIVEN = {"to_numpy", "values", "astype", "copy", "tolist", "float", "long"}


def filled_from_labels(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """`full = KNNImputer().fit_transform(table)`, of which the last column, or one that is taken
    out, becomes the label afterwards.
    """
    if not FROM_OTHERS & program.called_names:
        return
    for call in program.methods_of("fit_transform", "transform"):
        kind, statement = _imputer(program, call), program.statement(call)
        if (
            not kind
            or not isinstance(statement, ast.Assign)
            or not isinstance(statement.targets[0], ast.Name)
        ):
            continue
        scope, name = program.scope(call), statement.targets[0].id
        if any(_parted(where, n) for where, n in ((scope, name), *_given(program, scope, name))):
            yield (
                call,
                f"{kind} fills gaps from all columns of the table, and the label is one of them",
            )


def _imputer(program: Program, call: ast.Call) -> str:
    """The imputer whose method is called, made there or under a name; one in a pipeline is left
    alone.
    """
    made = receiver(call)
    values = (
        [b.value for b in program.bindings_of(made, program.scope(call))]
        if isinstance(made, ast.Name)
        else [made]
    )
    return next(
        (
            last_name(v.func)
            for v in values
            if isinstance(v, ast.Call) and last_name(v.func) in FROM_OTHERS
        ),
        "",
    )


def _given(program: Program, scope: Scope, name: str) -> Iterator[tuple[Scope, str]]:
    """Functions of the file that get it, and what they call it."""
    for node in own_nodes(scope.node):
        callee = program.callees_by_name(node, scope) if isinstance(node, ast.Call) else None
        if callee is not None and isinstance(node, ast.Call):
            yield from (
                (callee, p)
                for p, a in zip(callee.parameters, node.args, strict=False)
                if dotted(a) == name
            )


def _parted(scope: Scope, name: str) -> bool:
    """Whether rows and labels are both taken of it: by the last place, or by the name of a
    label.
    """
    taken: set[str] = set()
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Subscript) and dotted(node.value) == name:
            taken.add(ast.unparse(node.slice).strip("()"))
            if constant(node.slice) in TARGETS:
                taken.add(":, -1")
        elif (
            isinstance(node, ast.Call) and method(node) == "drop" and dotted(receiver(node)) == name
        ):
            dropped = {c.value for c in nodes_of(node, ast.Constant)}
            taken |= {":, :-1"} if TARGETS & {str(d) for d in dropped} else set()
    return bool(taken & ROWS and taken & LABEL)


def filled_by_class(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """`t[c].fillna(t[LABEL].map(medians))`, `t.fillna(t.groupby(LABEL)[c].transform("median"))`,
    `t.groupby(LABEL)[c].transform(lambda s: s.fillna(s.mean()))`, or `t.loc[(t[LABEL] == k) &
    t[c].isna(), c] = …`, where LABEL is what is learned.
    """
    for call in program.methods_of("fillna"):
        by = call.args[0] if call.args else keyword(call, "value")
        keys = [] if by is None else [*_mapped(by), *_grouped(by)]
        keys += [k for above in _around(program, call) for k in _grouped(above)]
        filled = receiver(call)
        own = ast.dump(filled.slice) if isinstance(filled, ast.Subscript) else ""
        if key := next((k for k in keys if ast.dump(k) != own and _is_label(program, k)), None):
            yield (
                call,
                (
                    f"gaps are filled by what the rows of the same {ast.unparse(key)} have, which"
                    " is the label"
                ),
            )
    for node in program.nodes[ast.Assign]:
        target = node.targets[0]
        if (
            not isinstance(target, ast.Subscript)
            or last_name(target.value) != "loc"
            or not EMPTY & identifiers(target.slice)
        ):
            continue
        compared = [
            n.left for n in nodes_of(target.slice, ast.Compare) if isinstance(n.ops[0], ast.Eq)
        ]
        if key := next(
            (
                c.slice
                for c in compared
                if isinstance(c, ast.Subscript) and _is_label(program, c.slice)
            ),
            None,
        ):
            yield (
                target,
                (
                    f"gaps are filled by what the rows of the same {ast.unparse(key)} have, which"
                    " is the label"
                ),
            )


def _mapped(by: ast.expr) -> list[ast.expr]:
    """The columns that are looked up: `LABEL` of `t[LABEL].map(medians)`."""
    looked_up = [receiver(c) for c in calls(by) if method(c) in ("map", "replace")]
    return [column.slice for column in looked_up if isinstance(column, ast.Subscript)]


def _grouped(node: ast.expr) -> list[ast.expr]:
    """The columns by which a table is grouped there."""
    given = [keyword(c, "by", 0) for c in calls(node) if method(c) == "groupby"]
    return [
        e
        for g in given
        if g is not None
        for e in (g.elts if isinstance(g, (ast.List, ast.Tuple)) else [g])
    ]


def _around(program: Program, call: ast.Call) -> list[ast.expr]:
    """What `transform` or `apply` is called on, where the call stands in the function that they are
    given.
    """
    above: ast.AST | None = program.parents.get(call)
    while above is not None and not isinstance(above, (ast.Lambda, ast.stmt)):
        above = program.parents.get(above)
    asked = program.parents.get(above) if isinstance(above, ast.Lambda) else None
    of = (
        receiver(asked)
        if isinstance(asked, ast.Call) and method(asked) in ("transform", "apply")
        else None
    )
    return [of] if of is not None else []


def _is_label(program: Program, key: ast.expr) -> bool:
    """Whether a column is what is learned, by its own name or by that which its values get: `y =
    t[OUTCOME].to_numpy()`.
    """
    text = constant(key) if isinstance(key, ast.Constant) else last_name(key)
    if not isinstance(text, str) or isinstance(key, (ast.Call, ast.BinOp)):
        return False
    if TARGETS & words(text):
        return True
    dumped = ast.dump(key)
    for node in program.nodes[ast.Assign]:
        names = {n for t in node.targets for n in words(last_name(t))}
        if names & TARGETS:
            value = node.value
            while (isinstance(value, ast.Call) and method(value) in GIVEN) or (
                isinstance(value, ast.Attribute) and value.attr in GIVEN
            ):
                value = (
                    receiver(value) or value.func if isinstance(value, ast.Call) else value.value
                )
            if isinstance(value, ast.Subscript) and ast.dump(value.slice) == dumped:
                return True
    return any(
        isinstance(s := keyword(c, "stratify"), ast.Subscript) and ast.dump(s.slice) == dumped
        for c in program.calls_of("train_test_split")
    )
