"""Features of a row that are computed of its own label."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    last_name,
    method,
    nodes_of,
    receiver,
    walk,
    words,
)
from training.review.whole import LABEL_WORDS

WINDOWS = {"rolling", "ewm", "expanding"}
RUNNING = {"cumsum", "cummax", "cumprod"}
MOVED = {"shift", "diff", "pct_change", "roll"}
TAKEN_BY = {
    "to_numpy",
    "astype",
    "reshape",
    "tensor",
    "as_tensor",
    "array",
    "asarray",
    "from_numpy",
}


def own_label_in_window(program: Program) -> Iterator[tuple[ast.expr, str]]:
    """`df["mean"] = df["sales"].rolling(3).mean()` where `sales` of the same row is the label: a
    window that ends at the row holds it.

    So does a running sum, `groups["sales"].cumsum()`, from which the row's own value is not taken.
    """
    if not (WINDOWS | RUNNING) & program.called_names:
        return
    labels, lists = _labels(program), _lists(program)
    read = _read_as_label(program) if not _shifted(program) else set()
    for node in program.nodes[ast.Assign]:
        target = node.targets[0] if len(node.targets) == 1 else None
        if not isinstance(target, ast.Subscript):
            continue
        feature = constant(target.slice)
        known = labels | {
            n for n in read if any(feature in listed and n not in listed for listed in lists)
        }
        parts = [node.value, *_behind(program, node.value)] if known else []
        window = next(
            (c for p in parts for c in calls(p) if method(c) in WINDOWS | RUNNING),
            None,
        )
        called = {last_name(c.func) for p in parts for c in calls(p)}
        if (
            window is None
            or called & MOVED
            or any(k.arg == "closed" for k in window.keywords)
            or not isinstance(target.value, ast.Name)
        ):
            continue
        label = next(
            (
                n
                for n in sorted(known)
                if any(n in _columns(p) for p in parts if any(w is window for w in walk(p)))
            ),
            None,
        )
        if (
            label is None
            or feature in known
            or (isinstance(feature, str) and label in labels and _elsewhere(program, feature, node))
        ):
            continue
        if any(
            isinstance(n, ast.BinOp) and isinstance(n.op, ast.Sub) and label in _columns(n.right)
            for p in parts
            for n in walk(p)
        ):
            continue  # the sum of all rows before: `cumsum() - own`
        yield (
            window,
            (
                f"the window ends at the row itself, and {label!r} of the same row is the label:"
                " shift it by one row first"
            ),
        )


def _behind(program: Program, value: ast.expr) -> list[ast.expr]:
    """What the names of an expression hold that are bound once, to a running sum or a window."""
    names = {n.id: n for n in nodes_of(value, ast.Name)}
    bound = [
        b
        for n in names.values()
        for b in [program.bindings_of(n, program.scope(n))]
        if len(b) == 1 and b[0].how == "assign" and b[0].index is None
    ]
    return [
        b[0].value for b in bound if any(method(c) in WINDOWS | RUNNING for c in calls(b[0].value))
    ]


def _lists(program: Program) -> list[set[str]]:
    """The lists of columns that are written in the file."""
    lists = [
        n.elts
        for n in (*program.nodes[ast.List], *program.nodes[ast.Tuple])
        if isinstance(n, (ast.List, ast.Tuple))
    ]
    return [
        {str(constant(e)) for e in elements}
        for elements in lists
        if len(elements) > 1 and all(isinstance(constant(e), str) for e in elements)
    ]


def _labels(program: Program) -> set[str]:
    """Columns that are left out of the features, and read by themselves as the label, and those
    which they are made of; none where it is of a later row.
    """
    found = set() if _shifted(program) else _left_out(program) & _read_as_label(program)
    for node in program.nodes[ast.Assign] if found else ():  # `table["target"] = frame["load"]`
        target, value = node.targets[0], node.value
        if (
            isinstance(target, ast.Subscript)
            and isinstance(value, ast.Subscript)
            and constant(target.slice) in found
            and isinstance(constant(value.slice), str)
        ):
            found = found | {str(constant(value.slice))}
    return found


def _shifted(program: Program) -> bool:
    """Whether a row's label may be of a later row."""
    for call in program.all_calls:
        by = (
            call.args[0]
            if call.args
            else next((k.value for k in call.keywords if k.arg == "periods"), None)
        )
        if method(call) == "shift" and not (_is_column(receiver(call))):
            return True  # the whole table, or features of it, are shifted
        if last_name(call.func) in ("shift", "roll") and isinstance(by, ast.UnaryOp):
            return True
    for slice_ in program.nodes[ast.Slice]:  # windows of rows before the label
        bounds = [slice_.lower, slice_.upper]
        if (
            isinstance(bounds[0], (ast.BinOp, ast.Name))
            and isinstance(bounds[1], (ast.BinOp, ast.Name))
            and _moves(program, bounds)
        ):
            return True
    return False


def _moves(program: Program, bounds: list[ast.expr | None]) -> bool:
    """Whether a stretch of rows is one of many, not one side of a split: a bound is computed, or
    goes along with a loop.
    """
    names = [n for b in bounds if b is not None for n in nodes_of(b, ast.Name)]
    looped = any(b.how == "loop" for n in names for b in program.bindings_of(n, program.scope(n)))
    passed = any(n.id in program.scope(n).parameters for n in names)
    return looped or passed or any(isinstance(b, ast.BinOp) for b in bounds)


def _left_out(program: Program) -> set[str]:
    found: set[object] = set()
    for node in program.nodes[ast.comprehension]:
        for test in node.ifs:
            if (
                isinstance(test, ast.Compare)
                and isinstance(test.ops[0], ast.NotEq)
                and isinstance(test.left, ast.Name)
            ):
                found.add(constant(test.comparators[0]))
            elif (
                isinstance(test, ast.Compare)
                and isinstance(test.ops[0], ast.NotIn)
                and isinstance(test.left, ast.Name)
            ):
                listed = test.comparators[0]
                found |= (
                    {constant(e) for e in listed.elts}
                    if isinstance(listed, (ast.List, ast.Tuple, ast.Set))
                    else set()
                )
    for call in program.methods_of("drop", "difference", "pop"):
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "columns")]
        lists = [g.elts if isinstance(g, (ast.List, ast.Tuple)) else [g] for g in given]
        found |= {constant(e) for elements in lists if len(elements) == 1 for e in elements}
    return {c for c in found if isinstance(c, str)}


def _read_as_label(program: Program) -> set[str]:
    """Columns by themselves that are given a name of labels, or made an array or a tensor."""
    found: set[str] = set()
    for node in (*program.nodes[ast.Assign], *program.nodes[ast.Return]):
        if not isinstance(node, (ast.Assign, ast.Return)) or node.value is None:
            continue
        named = {
            w
            for t in getattr(node, "targets", ())
            for n in nodes_of(t, ast.Name)
            for w in words(n.id)
        } & LABEL_WORDS
        for part in walk(node.value):
            if (
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name)
                and getattr(program.parents[part], "attr", "") in TAKEN_BY | {"values"}
            ):
                found.add(part.attr)
            listed = part.slice if isinstance(part, ast.Subscript) else None
            column = (
                constant(listed.elts[0])
                if isinstance(listed, ast.List) and len(listed.elts) == 1
                else constant(listed)
            )
            if isinstance(column, str) and (
                named
                or (
                    isinstance(above := program.parents[part], ast.Attribute)
                    and above.attr in TAKEN_BY | {"values"}
                )
            ):
                found.add(column)
    return found | {str(constant(c.args[0])) for c in program.methods_of("pop") if c.args}


def _is_column(node: ast.expr | None) -> bool:
    """Whether it is one column of a table, perhaps within groups or windows of it."""
    while isinstance(node, ast.Call) and method(node):
        node = receiver(node)
    if isinstance(node, ast.Subscript):
        return isinstance(constant(node.slice), str)
    return isinstance(node, ast.Attribute) and bool(dotted(node))


def _columns(value: ast.expr) -> set[str]:
    """The columns that an expression reads."""
    return {str(constant(n.slice)) for n in nodes_of(value, ast.Subscript)} | identifiers(value)


def _elsewhere(program: Program, feature: str, statement: ast.Assign) -> bool:
    """Whether a column is given another value, taken apart or left out elsewhere: its name stands
    anywhere but in a list of columns.
    """
    for node in program.nodes[ast.Constant]:
        if node.value == feature and program.statement(node) is not statement:
            above = program.parents[node]
            around = program.parents[above]
            listed = isinstance(above, ast.List) and isinstance(
                around, (ast.Assign, ast.Subscript, ast.BinOp)
            )
            if not listed:
                return True
    return False
