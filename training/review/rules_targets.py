"""Rule BH543: the column of the labels is among the features."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.imputed import filled_by_class, filled_from_labels
from training.review.program import Program, Scope
from training.review.syntax import (
    constant,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    receiver,
    walk,
    words,
)
from training.review.values import reaching

TABLES = {"values", "to_numpy", "drop", "astype", "select_dtypes", "fillna", "copy"}
PAIRS = {"train_test_split", "TensorDataset", "fit", "fit_transform", "partial_fit"}
LABELS = {"y", "target", "targets", "label", "labels", "truth", "outcome", "outcomes", "response"}


@rule("BH543")
def label_among_columns(subject: Subject) -> Iterator[Place]:
    """Rows and labels go together into a split, a data set or a fit: the labels are one column of a
    table, the rows all columns of it, or all but others; or an imputer that fills gaps from the
    other columns is given a table of which one column becomes the label; or gaps are filled by a
    statistic of each class.
    """
    program = subject.program
    yield from filled_from_labels(program)
    yield from filled_by_class(program)
    for call in program.calls_of(*PAIRS):
        if len(call.args) < 2:
            continue
        scope = program.scope(call)
        thrown = [
            e
            for t in getattr(program.statement(call), "targets", ())
            if isinstance(t, ast.Tuple)
            for e in t.elts
            if last_name(e).startswith("_")
        ]
        if len(thrown) > 1:
            continue  # labels that only keep the shares alike
        rows, labels = (_made(program, a, scope) for a in call.args[:2])
        column = _column(labels) if labels is not None else None
        left = _whole(rows) if rows is not None and column is not None else None
        called = words(last_name(call.args[1])) | (
            words(column[1]) if column is not None else set()
        )
        if (
            column is None
            or left is None
            or not called & LABELS
            or left[0] != column[0]
            or left[2]
            or column[1] in left[1]
        ):
            continue
        if not _taken_out(scope, column[0], column[1]) and rows is not None:
            yield (
                rows,
                f"{ast.unparse(rows)} holds the column {column[1]!r} as well, which is the label",
            )


def _made(program: Program, node: ast.expr, scope: Scope) -> ast.expr | None:
    """What a name stands for; of tensors and arrays what they were made of."""
    if isinstance(node, ast.Name):
        found = reaching(program, node, scope)
        return _made(program, found[0], scope) if len(found) == 1 and found[0] is not node else None
    if (
        isinstance(node, ast.Call)
        and last_name(node.func)
        in ("tensor", "as_tensor", "from_numpy", "array", "asarray", "Tensor", "FloatTensor")
        and node.args
    ):
        return _made(program, node.args[0], scope)
    if (
        isinstance(node, ast.Call)
        and method(node) in ("float", "long", "to", "view", "reshape", "unsqueeze")
        and receiver(node) is not None
    ):
        return _made(program, receiver(node) or node, scope)
    return node


def _column(node: ast.expr) -> tuple[str, str] | None:
    """The table and the name of the one column that something is."""
    while (isinstance(node, ast.Call) and method(node) in TABLES) or (
        isinstance(node, ast.Attribute) and node.attr == "values"
    ):
        node = receiver(node) or node.func if isinstance(node, ast.Call) else node.value
    name = (
        constant(node.slice)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        else None
    )
    return (
        (node.value.id, name)
        if isinstance(name, str)
        and isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        else None
    )


def _whole(node: ast.expr) -> tuple[str, set[str], bool] | None:
    """The table of which something is all columns, those that were dropped, and whether more may be
    missing; None for anything else.
    """
    dropped: set[str] = set()
    unknown = False
    while True:
        if isinstance(node, ast.Attribute) and node.attr == "values":
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and method(node) in TABLES
            and (inner := receiver(node)) is not None
        ):
            if method(node) == "drop":
                given = keyword(node, "columns") or keyword(node, "labels", 0)
                names = given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]
                dropped |= {n for e in names if isinstance(n := constant(e), str)}
                unknown |= any(not isinstance(constant(e), str) for e in names) or not (
                    keyword(node, "columns") or constant(keyword(node, "axis", 1)) in (1, "columns")
                )
            unknown |= method(node) == "select_dtypes"
            node = inner
        else:
            break
    return (node.id, dropped, unknown) if isinstance(node, ast.Name) else None


def _taken_out(scope: Scope, table: str, column: str) -> bool:
    """Whether the column may be gone from the table: popped, deleted, dropped, or the table made
    anew.
    """
    bound = scope.bindings.get(table, ())
    if len(bound) > 1 or (
        bound
        and (
            {column} & {constant(n) for n in walk(bound[0].value)}
            or "usecols" in identifiers(bound[0].value)
        )
    ):
        return True
    for node in walk(scope.node):
        if isinstance(node, ast.Delete) and any(
            dotted(getattr(t, "value", None)) == table for t in node.targets
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and dotted(receiver(node)) == table
            and (method(node) == "pop" or keyword(node, "inplace") is not None)
        ):
            return True
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Subscript)
            and dotted(t.value) == table
            and constant(t.slice) == column
            for t in node.targets
        ):
            return True
    return False
