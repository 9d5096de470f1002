"""Windows that a function cuts of a series, a step apart, and so overlapping."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Binding, Program, Scope, argument
from training.review.sides import dividing, is_random_order
from training.review.splitting import splits
from training.review.syntax import (
    calls,
    constant,
    last_name,
    method,
    nodes_of,
    own_nodes_of,
    receiver,
    walk,
)
from training.review.values import number

DEPTH = 4


def random_parts(program: Program) -> Iterator[tuple[ast.expr, Scope, list[ast.expr]]]:
    """Rows that are split at random: by scikit-learn, or taken by the parts of an order that was
    drawn.
    """
    yield from splits(program)
    for members in dividing(program):
        kind, key = members[0].family
        if (
            kind == "slice"
            and isinstance(key, str)
            and is_random_order(program, key, members[0].scope)
        ):
            yield members[0].node, members[0].scope, [members[0].rows]


def cut_into_windows(program: Program, rows: ast.expr | None, scope: Scope, depth: int = 0) -> str:
    """The function of this file that made rows by cutting overlapping windows; empty where none
    did.
    """
    if depth > DEPTH or rows is None:
        return ""
    if isinstance(rows, ast.Call):
        function = program.callees_by_name(rows, scope)
        if function is None and isinstance(
            rows.func, (ast.Call, ast.Name)
        ):  # `Segmenter()(recordings)`
            owners = [
                program.classes[o.name]
                for o in program.origins(rows.func, scope)
                if o.name in program.classes
            ]
            function = program.find_method(owners[0], "__call__") if owners else None
            if function is not None and _overlap(program, function):
                return owners[0].name
        elif function is not None and _overlap(program, function):
            return function.name
        through = last_name(rows.func) in (
            "from_numpy",
            "tensor",
            "as_tensor",
            "array",
            "asarray",
            "TensorDataset",
            "stack",
            "float",
            "astype",
            "Subset",
        )
        return (
            cut_into_windows(program, rows.args[0], scope, depth + 1)
            if through and rows.args
            else ""
        )
    if isinstance(rows, (ast.ListComp, ast.List)):
        return (
            "a comprehension"
            if isinstance(rows, ast.ListComp) and _cuts(program, rows, scope)
            else ""
        )
    if not isinstance(rows, ast.Name):
        return ""
    bound = program.bindings_of(rows, scope)
    if bound and _begins_empty(bound):
        return "a loop" if _appends_cuts(program, rows.id, bound[0].scope) else ""
    if bound:
        return (
            cut_into_windows(program, bound[0].value, bound[0].scope, depth + 1)
            if len(bound) == 1 and bound[0].how == "assign"
            else ""
        )
    if rows.id not in scope.parameters:
        return ""
    made = {
        cut_into_windows(program, argument(call, scope, rows.id), caller, depth + 1)
        for call, caller in program.call_sites[scope]
    }
    return made.pop() if len(made) == 1 else ""


def _begins_empty(bound: list[Binding]) -> bool:
    """Whether a name is that of a list which is empty at first: `xs, ys = [], []`."""
    value = bound[0].value
    return len(bound) == 1 and isinstance(value, ast.List) and not value.elts


def _appends_cuts(program: Program, name: str, scope: Scope) -> bool:
    """Whether a loop over a range appends such slices to a list."""
    for loop in own_nodes_of(scope.node, ast.For):
        added = [c for c in calls(loop) if method(c) == "append" and last_name(receiver(c)) == name]
        if any(isinstance(n, ast.Slice) for c in added for n in walk(c)) and _cuts(
            program, loop, scope
        ):
            return True
    return False


def cuts_when_made(program: Program, owner: ast.ClassDef) -> bool:
    """Whether the rows of a data set are such slices, which it cuts when it is made."""
    made = program.methods[owner].get("__init__")
    return (
        made is not None
        and any(
            any(method(c) == "append" and bool(nodes_of(c, ast.Slice)) for c in calls(n))
            for n in own_nodes_of(made.node, ast.For)
        )
        and _cuts(program, made.node, made)
    )


def _overlap(program: Program, function: Scope) -> bool:
    """Whether a function gives back slices that begin at every number of a range and are longer
    than its step, or what `unfold` cuts so.
    """
    if not any(n.value is not None for n in own_nodes_of(function.node, ast.Return)):
        return False
    return _cuts(program, function.node, function)


def _cuts(program: Program, within: ast.AST, function: Scope) -> bool:
    """Whether there are such slices in a function or a comprehension."""
    for node in walk(within):
        if isinstance(node, ast.Call) and method(node) == "unfold" and len(node.args) == 3:
            size, stride = (_setting(program, a, function) for a in node.args[1:])
            if size is not None and stride is not None and size > stride:
                return True
        if (
            not isinstance(node, (ast.For, ast.comprehension))
            or not isinstance(node.target, ast.Name)
            or not isinstance(node.iter, ast.Call)
        ):
            continue
        if last_name(node.iter.func) != "range" or not node.iter.args:
            continue
        step = _setting(program, node.iter.args[2], function) if len(node.iter.args) == 3 else 1
        for cut in nodes_of(within, ast.Slice):
            width = _width(cut, node.target.id) or _width_by_name(cut, node.target.id, function)
            long = _setting(program, width, function) if width is not None else None
            if (
                width is not None
                and step is not None
                and (long > step if long is not None else step == 1)
            ):
                return True
    return False


def _setting(program: Program, node: ast.expr, scope: Scope) -> float | None:
    """What is known of a number, also as the default of the only field of that name in the file's
    classes, where nothing sets that field.
    """
    if not isinstance(node, ast.Attribute):
        return number(program, node, scope)
    own = program.bindings_of(node, scope)
    if own:
        return (
            number(program, own[0].value, own[0].scope)
            if len(own) == 1 and own[0].how == "assign" and own[0].index is None
            else None
        )
    fields = [
        s.value
        for c in program.classes.values()
        for s in c.body
        if isinstance(s, ast.AnnAssign) and last_name(s.target) == node.attr
    ]
    given = any(k.arg == node.attr for call in program.all_calls for k in call.keywords)
    stored = any(
        n.attr == node.attr and isinstance(n.ctx, ast.Store) for n in program.nodes[ast.Attribute]
    )
    value = constant(fields[0]) if len(fields) == 1 and not given and not stored else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _width(cut: ast.Slice, start: str) -> ast.expr | None:
    """`w` of `series[i : i + w]`, for an `i` of that name."""
    if not (
        isinstance(cut.lower, ast.Name)
        and cut.lower.id == start
        and isinstance(cut.upper, ast.BinOp)
        and isinstance(cut.upper.op, ast.Add)
    ):
        return None
    first, second = cut.upper.left, cut.upper.right
    if isinstance(first, ast.Name) and first.id == start:
        return second
    return first if isinstance(second, ast.Name) and second.id == start else None


def _width_by_name(cut: ast.Slice, start: str, function: Scope) -> ast.expr | None:
    """The same where the end has a name of its own: `stop = i + w`, `series[i:stop]`."""
    bound = function.bindings.get(cut.upper.id, []) if isinstance(cut.upper, ast.Name) else []
    return (
        _width(ast.Slice(cut.lower, bound[0].value), start)
        if len(bound) == 1 and isinstance(bound[0].value, ast.expr)
        else None
    )
