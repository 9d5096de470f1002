"""Arrays and tensors of one dimension, by what they are made of."""

from __future__ import annotations

import ast

from training.review.program import Program, Scope
from training.review.syntax import constant, dotted, keyword, last_name, method, receiver

KEEPS = {
    "float", "to", "astype", "numpy", "to_numpy", "double", "clone", "log", "abs", "copy", "values",
    "sin", "cos", "exp", "sqrt",
}  # fmt: skip
MAKES = {
    "tensor", "as_tensor", "from_numpy", "FloatTensor", "array", "asarray", "float32", "log1p",
    "log", "sin", "cos", "exp", "sqrt", "abs",
}  # fmt: skip
DRAWS = {"randn", "rand", "zeros", "ones", "arange", "linspace"}
DEPTH = 6


def is_flat(
    program: Program, node: ast.expr | None, scope: Scope, depth: int = 0, index: int | None = None
) -> bool:
    """Whether a value has certainly one dimension: a column by its name, `x[:, 0]`, as many random
    numbers, and what is computed of these alone.
    """
    if node is None or depth > DEPTH:
        return False
    match node:
        case ast.Subscript(slice=ast.Constant(value=str())):
            return True
        case ast.Subscript(slice=ast.Tuple(elts=[ast.Slice(), last])):
            return isinstance(constant(last), int) and not isinstance(constant(last), bool)
        case ast.Subscript(slice=ast.Name() | ast.Slice()):
            return is_flat(program, node.value, scope, depth + 1, index)
        case ast.BinOp():
            sides = [s for s in (node.left, node.right) if not isinstance(s, ast.Constant)]
            return bool(sides) and all(is_flat(program, s, scope, depth + 1) for s in sides)
        case ast.Attribute(attr="values"):
            return is_flat(program, node.value, scope, depth + 1)
        case ast.Name() | ast.Attribute():
            bound = program.bindings_of(node, scope)
            same = len(bound) == 1 and bound[0].how == "assign"
            return same and is_flat(
                program, bound[0].value, bound[0].scope, depth + 1, bound[0].index
            )
        case ast.Call():
            return _of_call(program, node, scope, depth, index)
    return False


def _of_call(program: Program, call: ast.Call, scope: Scope, depth: int, index: int | None) -> bool:
    name, last = program.resolve(call.func), last_name(call.func)
    if last == "train_test_split" and index is not None and index // 2 < len(call.args):
        return is_flat(program, call.args[index // 2], scope, depth + 1)
    if name.startswith("sklearn.datasets.") and index == 1:
        return keyword(call, "n_targets") is None and (
            last.startswith("make_") or keyword(call, "return_X_y") is not None
        )
    if index is not None:
        return False
    if name.partition(".")[0] in ("torch", "numpy"):
        if last in DRAWS:
            return (
                len(call.args) == 1
                and not isinstance(call.args[0], (ast.Tuple, ast.List, ast.Starred))
                and "shape" not in dotted(call.args[0])
            )
        return (
            last in MAKES and bool(call.args) and is_flat(program, call.args[0], scope, depth + 1)
        )
    return method(call) in KEEPS and is_flat(program, receiver(call), scope, depth + 1)
