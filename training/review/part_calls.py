"""Calls of one function for different parts of the rows: train and test, slices of one array, what
a split gave, tables of one maker.
"""

from __future__ import annotations

import ast
from itertools import combinations
from typing import NamedTuple

from training.review.program import Program, Scope
from training.review.sides import latest, side_of, targets_of
from training.review.syntax import (
    constant,
    dotted,
    last_name,
    method,
    names_read,
    nodes_of,
    receiver,
    walk,
    words,
)

KEEPS = {
    "reset_index", "copy", "to_numpy", "tolist", "astype", "fillna", "dropna", "sort_values",
    "list", "tuple", "asarray", "array", "sample", "head", "tail", "to_list", "values", "numpy",
    "sort_index", "to_pandas",
}  # fmt: skip
SPLITS = {"train_test_split", "random_split", "split", "divide", "partition", "cut"}
BY_TIME = {
    "year", "date", "month", "week", "day", "time", "split", "fold", "season", "period", "part",
    "set", "subset", "hour", "quarter", "is_train",
}  # fmt: skip
DEPTH = 6
Given = tuple[ast.expr, ast.Call, Scope]


class Rows(NamedTuple):
    """Rows of something: what they go back to, which of them, and of which columns."""

    root: str
    which: str
    columns: str
    said: str


def parts_of(program: Program, given: list[Given]) -> str:
    """The two parts for which a function is called with this argument, or the loop over parts in
    which it is called; else empty.
    """
    for value, call, scope in given:
        if both := _in_a_loop(program, value, call, scope):
            return both
    for (a, one, at), (b, other, there) in combinations(given, 2):
        if (
            _manner(one) == _manner(other)
            and ast.unparse(a) != ast.unparse(b)
            and _apart(program, (a, one, at), (b, other, there))
        ):
            return f"{ast.unparse(a)} and {ast.unparse(b)}"
    return ""


def _manner(call: ast.Call) -> tuple[object, ...]:
    """What else a call is given that could make it another kind of call: a flag, or what the first
    call gave back.
    """
    plain = [
        a
        for a in call.args
        if isinstance(a, ast.Constant) and not (isinstance(a.value, str) and side_of(a.value))
    ]
    named = [
        (k.arg or "", ast.dump(k.value) if isinstance(k.value, ast.Constant) else "")
        for k in call.keywords
        if not side_of(str(constant(k.value)))
    ]
    return (
        len(call.args),
        tuple(
            ast.dump(a) for a in plain if not isinstance(a.value, int) or isinstance(a.value, bool)
        ),
        tuple(sorted(n for n in named if n[0])),
    )


def _apart(program: Program, a: Given, b: Given) -> bool:
    sides = [_sides(program, *g) for g in (a, b)]
    if all(len(s) == 1 for s in sides):
        return sides[0] != sides[1] and "train" in sides[0] | sides[1]
    one, other = rows_of(program, a[0], a[2]), rows_of(program, b[0], b[2])
    return (
        one is not None
        and other is not None
        and (one.root, one.columns) == (other.root, other.columns)
        and one.which != other.which
    )


def _sides(program: Program, value: ast.expr, call: ast.Call, scope: Scope) -> set[str]:
    """The sides that an argument speaks of, or else what gets the result."""
    texts = [n.value for n in nodes_of(value, ast.Constant) if isinstance(n.value, str)]
    said = {side_of(n) for n in (*names_read(value), *_attributes(value), *texts)} - {""}
    if (
        said
        or not isinstance(value, (ast.Name, ast.Subscript, ast.Call))
        or isinstance(getattr(value, "slice", None), ast.Constant)
    ):
        return said
    return {side_of(n) for n in targets_of(program, call)} - {""}


def _attributes(value: ast.expr) -> set[str]:
    return {n.attr for n in nodes_of(value, ast.Attribute)}


def rows_of(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> Rows | None:
    """Which rows of what an expression is; None where it is not a part of anything that is seen."""
    if depth > DEPTH:
        return None
    match node:
        case ast.Attribute(attr="values" | "iloc" | "loc"):
            return rows_of(program, node.value, scope, depth + 1)
        case ast.Subscript():
            return _taken(program, node, scope, depth)
        case ast.Call():
            return _made(program, node, scope, 0, depth)
        case ast.Name():
            bound = latest(program, node, scope)
            if bound is None or bound.how != "assign":
                return None
            if bound.index is None:
                return rows_of(program, bound.value, bound.scope, depth + 1)
            return (
                _made(program, bound.value, bound.scope, bound.index, depth, unpacked=True)
                if isinstance(bound.value, ast.Call)
                else None
            )
    return None


def _taken(program: Program, node: ast.Subscript, scope: Scope, depth: int) -> Rows | None:
    by = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    column = (
        ast.unparse(node.slice.elts[1])
        if isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2
        else ""
    )
    if (
        isinstance(constant(by), str)
        or isinstance(by, ast.List)
        or (isinstance(by, ast.Name) and by.id.isupper())
    ):
        inner = rows_of(program, node.value, scope, depth + 1)
        return (
            inner._replace(columns=inner.columns + ast.unparse(by)) if inner is not None else None
        )
    root = node.value
    while isinstance(root, ast.Attribute) and root.attr in ("iloc", "loc", "values"):
        root = root.value
    if not dotted(root) and not isinstance(root, ast.Subscript):
        return None
    if isinstance(by, ast.Slice):
        whole = by.lower is None and by.upper is None
        return (
            None
            if whole or by.step is not None
            else Rows(_key(program, root, scope), ast.unparse(by), column, ast.unparse(node))
        )
    if which := _masked(program, by, scope):
        return Rows(_key(program, root, scope), which, column, ast.unparse(node))
    return None


def _masked(program: Program, by: ast.expr, scope: Scope) -> str:
    """The rows that a mask takes, where it divides them by time or in two; one that asks for a kind
    of row says nothing.
    """
    if isinstance(by, ast.Name):
        bound = latest(program, by, scope)
        value = (
            bound.value
            if bound is not None and bound.how == "assign" and bound.index is None
            else None
        )
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
            return f"{ast.unparse(value)}"  # positions: `order[:cut]`
        return (
            by.id
            if isinstance(value, ast.Compare) and _by_time(value)
            else f"+{by.id}"
            if value is not None and isinstance(value, ast.Compare)
            else ""
        )
    if isinstance(by, ast.UnaryOp) and isinstance(by.op, ast.Invert):
        return "~" + ast.unparse(by.operand)
    if isinstance(by, ast.Subscript) and isinstance(by.slice, ast.Slice):
        return ast.unparse(by)
    return ast.unparse(by) if isinstance(by, ast.Compare) and _by_time(by) else ""


def _by_time(test: ast.Compare) -> bool:
    said = {w for n in walk(test) for t in (_text(n),) if t for w in words(t)}
    return isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.NotEq)) or bool(
        said & BY_TIME
    )


def _text(node: ast.AST) -> str:
    return (
        last_name(node)
        if isinstance(node, (ast.Name, ast.Attribute))
        else str(constant(node))
        if isinstance(constant(node), str)
        else ""
    )


def _made(
    program: Program,
    call: ast.Call,
    scope: Scope,
    index: int,
    depth: int,
    *,
    unpacked: bool = False,
) -> Rows | None:
    """Rows that a call gives: those that it was given, those of a split, or those that a function
    of the file makes up.
    """
    name, of = last_name(call.func), receiver(call)
    if unpacked and words(name) & SPLITS | ({name} & SPLITS) and not isinstance(of, ast.Constant):
        return Rows(
            f"split {id(call)} {index // 2 if len(call.args) > 1 else 0}",
            str(index),
            "",
            ast.unparse(call),
        )
    if name in KEEPS and not unpacked:
        inner = (
            of
            if method(call) and not program.resolve(call.func)
            else call.args[0]
            if call.args
            else None
        )
        return rows_of(program, inner, scope, depth + 1) if inner is not None else None
    own = program.callees(call, scope)
    if (
        own
        and not any(
            isinstance(constant(a), str) for a in (*call.args, *(k.value for k in call.keywords))
        )
        and (call.args or call.keywords)
    ):
        return Rows(f"made {id(own[0])} {index}", ast.unparse(call), "", ast.unparse(call))
    return None


def _key(program: Program, root: ast.expr, scope: Scope) -> str:
    bound = latest(program, root, scope) if isinstance(root, ast.Name) else None
    return (
        f"{ast.unparse(root)}@{getattr(bound.statement, 'lineno', 0) if bound is not None else 0}"
    )


def _in_a_loop(program: Program, value: ast.expr, call: ast.Call, scope: Scope) -> str:
    """`{name: encode(rows) for name, rows in parts.items()}`."""
    for around in program.ancestors(call):
        loops = [around] if isinstance(around, ast.For) else getattr(around, "generators", [])
        for loop in loops:
            if names_read(value) & names_read(loop.target) and (
                both := _parts_gone_through(program, loop.iter, scope)
            ):
                return both
    return ""


def _parts_gone_through(program: Program, over: ast.expr, scope: Scope) -> str:
    while isinstance(over, ast.Call) and last_name(over.func) in (
        "enumerate",
        "items",
        "values",
        "zip",
        "list",
        "tqdm",
    ):
        inner = receiver(over) if method(over) else over.args[0] if over.args else None
        if inner is None:
            return ""
        over = inner
    literal = _literal(program, over, scope)
    if not isinstance(literal, ast.Dict):
        return ""
    said = {side_of(str(constant(k))) for k in literal.keys if k is not None} - {""}
    texts = [ast.unparse(v) for v in literal.values]
    return " and ".join(texts) if "train" in said and said & {"val", "test"} else ""


def _literal(program: Program, over: ast.expr, scope: Scope, depth: int = 0) -> ast.expr:
    """The dict that a name stands for."""
    bound = latest(program, over, scope) if isinstance(over, ast.Name) and depth <= 2 else None
    if bound is not None and bound.how == "assign" and bound.index is None:
        return _literal(program, bound.value, bound.scope, depth + 1)
    return over
