"""Windows that a function cuts of a series, a step apart, and so overlapping."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.program import Program, Scope, argument
from training.review.sides import dividing, is_random_order
from training.review.splitting import splits
from training.review.syntax import constant, last_name, method, own_nodes, walk
from training.review.values import number

DEPTH = 4


def random_parts(program: Program) -> Iterator[tuple[ast.expr, Scope, list[ast.expr]]]:
    """Rows that are split at random: by scikit-learn, or taken by the parts of an order that was drawn."""
    yield from splits(program)
    for members in dividing(program):
        kind, key = members[0].family
        if kind == "slice" and isinstance(key, str) and is_random_order(program, key, members[0].scope):
            yield members[0].node, members[0].scope, [members[0].rows]


def cut_into_windows(program: Program, rows: ast.expr | None, scope: Scope, depth: int = 0) -> str:
    """The function of this file that made rows by cutting overlapping windows; empty where none did."""
    if depth > DEPTH or rows is None:
        return ""
    if isinstance(rows, ast.Call):
        function = program.callees_by_name(rows, scope)
        if function is not None and _overlap(program, function):
            return function.name
        through = last_name(rows.func) in ("from_numpy", "tensor", "as_tensor", "array", "asarray", "TensorDataset", "stack", "float", "astype", "Subset")
        return cut_into_windows(program, rows.args[0], scope, depth + 1) if through and rows.args else ""
    if isinstance(rows, (ast.ListComp, ast.List)):
        return "a comprehension" if isinstance(rows, ast.ListComp) and _cuts(program, rows, scope) else ""
    if not isinstance(rows, ast.Name):
        return ""
    bound = program.bindings_of(rows, scope)
    if bound:
        return cut_into_windows(program, bound[0].value, bound[0].scope, depth + 1) if len(bound) == 1 and bound[0].how == "assign" else ""
    if rows.id not in scope.parameters:
        return ""
    made = {cut_into_windows(program, argument(call, scope, rows.id), caller, depth + 1) for call, caller in program.call_sites[scope]}
    return made.pop() if len(made) == 1 else ""


def _overlap(program: Program, function: Scope) -> bool:
    """Whether a function gives back slices that begin at every number of a range and are longer than its step, or what `unfold` cuts so."""
    if not any(isinstance(n, ast.Return) and n.value is not None for n in own_nodes(function.node)):
        return False
    return _cuts(program, function.node, function)


def _cuts(program: Program, within: ast.AST, function: Scope) -> bool:
    """Whether there are such slices in a function or a comprehension."""
    for node in walk(within):
        if isinstance(node, ast.Call) and method(node) == "unfold" and len(node.args) == 3:
            size, stride = (_setting(program, a, function) for a in node.args[1:])
            if size is not None and stride is not None and size > stride:
                return True
        if not isinstance(node, (ast.For, ast.comprehension)) or not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call):
            continue
        if last_name(node.iter.func) != "range" or not node.iter.args:
            continue
        step = number(program, node.iter.args[2], function) if len(node.iter.args) == 3 else 1
        for cut in (n for n in walk(within) if isinstance(n, ast.Slice)):
            width = _width(cut, node.target.id)
            long = number(program, width, function) if width is not None else None
            if width is not None and step is not None and (long > step if long is not None else step == 1):
                return True
    return False


def _setting(program: Program, node: ast.expr, scope: Scope) -> float | None:
    """What is known of a number, also as the default of the only field of that name in the file's classes, where nothing sets that field."""
    if not isinstance(node, ast.Attribute):
        return number(program, node, scope)
    fields = [s.value for c in program.classes.values() for s in c.body if isinstance(s, ast.AnnAssign) and last_name(s.target) == node.attr]
    given = any(k.arg == node.attr for call in program.all_calls for k in call.keywords)
    stored = any(isinstance(n, ast.Attribute) and n.attr == node.attr and isinstance(n.ctx, ast.Store) for n in program.nodes[ast.Attribute])
    value = constant(fields[0]) if len(fields) == 1 and not given and not stored else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _width(cut: ast.Slice, start: str) -> ast.expr | None:
    """`w` of `series[i : i + w]`, for an `i` of that name."""
    if not (isinstance(cut.lower, ast.Name) and cut.lower.id == start and isinstance(cut.upper, ast.BinOp) and isinstance(cut.upper.op, ast.Add)):
        return None
    first, second = cut.upper.left, cut.upper.right
    if isinstance(first, ast.Name) and first.id == start:
        return second
    return first if isinstance(second, ast.Name) and second.id == start else None
