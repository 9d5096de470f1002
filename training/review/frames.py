"""Tables whose rows are ordered or chosen anew after an array was taken of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Binding, Program, Scope
from training.review.splitting import line_of, values_read
from training.review.syntax import (
    constant,
    dotted,
    is_true,
    keyword,
    last_name,
    method,
    names_read,
    nodes_of,
    own_nodes,
    receiver,
    walk,
)

MOVES = {
    "sort_values",
    "sample",
    "sort_index",
    "query",
    "dropna",
    "drop_duplicates",
    "nlargest",
    "nsmallest",
}
ARRAYS = {"to_numpy", "values", "tolist", "to_list"}
MAKERS = {
    "array",
    "asarray",
    "tensor",
    "as_tensor",
    "from_numpy",
    "FloatTensor",
    "LongTensor",
    "list",
}
SAME_ROWS = {
    "astype", "copy", "reshape", "ravel", "flatten", "float", "long", "double", "to", "squeeze",
    "unsqueeze", "view",
}  # fmt: skip


def moved_after(program: Program, scope: Scope) -> Iterator[tuple[ast.expr, str]]:
    """`y = df["y"].to_numpy()`, then `df = df.sort_values(…)`, then features of `df` that go with
    `y`: returned with it, given with it, or paired.
    """
    if not (MOVES | {"shuffle"}) & program.called_names:
        return
    moves = list(_moves(program, scope))
    for name, bound in scope.bindings.items():
        if not moves or not bound or _array_of(bound[0].value) == "":
            continue
        first, table = bound[0], _array_of(bound[0].value)
        if (
            first.how != "assign"
            or first.index is not None
            or not all(_same_rows(b, name) for b in bound[1:])
        ):
            continue
        for statement, call, of, to in moves:
            after = line_of(statement) > line_of(first.statement) or to != of
            beside = program.parents[statement] is program.parents[first.statement]
            if (
                of == table
                and after
                and beside
                and not _set_back(scope, name, to, statement)
                and _goes_with(program, scope, name, to, line_of(statement))
            ):
                yield (
                    call,
                    (
                        f"{to} gets other rows, or another order, by {last_name(call.func)}, and"
                        f" {name} of line {line_of(first.statement)} keeps the old one"
                    ),
                )
                return


def _moves(program: Program, scope: Scope) -> Iterator[tuple[ast.stmt, ast.Call, str, str]]:
    """Statements that put a table's rows in another order or leave some out: statement, call, the
    table, the name that it has then.
    """
    for node in own_nodes(scope.node):
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            inner: ast.expr | None = node.value
            while isinstance(inner, ast.Call) and (
                method(inner) or last_name(inner.func) == "shuffle"
            ):
                if (
                    program.resolve(inner.func) == "sklearn.utils.shuffle"
                    and len(inner.args) == 1
                    and isinstance(inner.args[0], ast.Name)
                ):
                    yield node, inner, inner.args[0].id, node.targets[0].id
                if (
                    method(inner) in MOVES
                    and _of_rows(inner)
                    and isinstance(of := _first(inner), ast.Name)
                ):
                    yield node, inner, of.id, node.targets[0].id
                    break
                inner = receiver(inner)
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and is_true(keyword(node.value, "inplace"))
        ):
            of = receiver(node.value)
            if method(node.value) in MOVES and _of_rows(node.value) and isinstance(of, ast.Name):
                yield node, node.value, of.id, of.id


def _first(call: ast.Call) -> ast.expr | None:
    """The table at the head of a chain of methods, none of which aggregates."""
    inner: ast.expr | None = call
    while isinstance(inner, ast.Call) and method(inner) in MOVES | {
        "reset_index",
        "drop",
        "copy",
        "fillna",
        "set_index",
        "assign",
        "rename",
        "astype",
    }:
        inner = receiver(inner)
    return inner


def _of_rows(call: ast.Call) -> bool:
    return constant(keyword(call, "axis")) not in (1, "columns")


def _array_of(value: ast.expr) -> str:
    """The table of one of whose columns an array is made, whose rows no index can bring back:
    `df["y"].to_numpy()`, `df.pop("y").values`.
    """
    made = False
    node: ast.expr | None = value
    while True:
        if isinstance(node, ast.Attribute) and node.attr in ARRAYS:
            made, node = True, node.value
        elif (
            isinstance(node, ast.Call)
            and method(node) in ARRAYS | SAME_ROWS
            and last_name(node.func) not in MAKERS
        ):
            made, node = made or method(node) in ARRAYS, receiver(node)
        elif isinstance(node, ast.Call) and last_name(node.func) in MAKERS and node.args:
            made, node = True, node.args[0]
        else:
            break
    if not made:
        return ""
    if isinstance(node, ast.Call) and method(node) == "pop":
        return dotted(receiver(node))
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(constant(node.slice), str)
    ):
        return node.value.id
    column = (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr not in ("index", "columns", "shape", "T")
    )
    return (
        node.value.id
        if column and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        else ""
    )


def _same_rows(bound: Binding, name: str) -> bool:
    """Whether a later value of a name is its own, as another type."""
    return name in names_read(bound.value) and not nodes_of(bound.value, ast.Subscript)


def _set_back(scope: Scope, name: str, table: str, move: ast.stmt) -> bool:
    """Whether the array goes by an index of the moved table, is put into a table, or belongs to
    what the move reads.
    """
    if name in names_read(move):
        return True
    for node in walk(scope.node):
        if (
            isinstance(node, ast.Subscript)
            and dotted(node.value) == name
            and {table, "index"} & ({*names_read(node.slice)} | {last_name(node.slice)})
        ):
            return True
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Subscript) for t in node.targets)
            and name in names_read(node.value)
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and method(node) in ("assign", "insert", "join", "merge")
            and name in names_read(node)
        ):
            return True
    return False


def _goes_with(program: Program, scope: Scope, name: str, table: str, line: int) -> bool:
    """Whether the array and rows of the moved table are elements of one tuple that is returned, or
    arguments of one call that takes rows and labels.
    """
    rows = {table}
    for other, bound in scope.bindings.items():
        if other != name and any(
            line_of(b.statement) > line and table in values_read(b.value) and b.index is None
            for b in bound
        ):
            rows |= {other} if all(line_of(b.statement) > line for b in bound) else set()
    for node in own_nodes(scope.node):
        if line_of(node) <= line:
            continue
        given: list[ast.expr] = []
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            given = node.value.elts
        elif isinstance(node, ast.Call) and (
            method(node) in ("fit", "split")
            or last_name(node.func) in PAIRED
            or program.callees_by_name(node, scope)
        ):
            given = node.args
        bare = [_whole(g) for g in given]
        if name in bare and rows & {b for b in bare if b != name}:
            return True
    return False


PAIRED = {"TensorDataset", "train_test_split", "zip"}


def _whole(node: ast.expr) -> str:
    """The name of which a value is all rows: itself, a type of it, or columns."""
    while True:
        if isinstance(node, ast.Call) and last_name(node.func) in MAKERS and node.args:
            node = node.args[0]
        elif (
            isinstance(node, ast.Call)
            and method(node) in ARRAYS | SAME_ROWS | {"drop"}
            and (of := receiver(node)) is not None
        ):
            node = of
        elif (isinstance(node, ast.Attribute) and node.attr in ARRAYS) or (
            isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Name, ast.List))
        ):
            node = node.value
        else:
            return node.id if isinstance(node, ast.Name) else ""
