"""In which direction a score gets better, by its name and by what it is computed from."""

from __future__ import annotations

import ast

from training.review.program import Program, Scope, argument
from training.review.syntax import (
    constant,
    identifiers,
    last_name,
    method,
    own_nodes_of,
    receiver,
    words,
)
from training.review.values import reaching_elements

RISES = {
    "acc", "accuracy", "f1", "auc", "auroc", "auprc", "iou", "miou", "dice", "recall", "precision",
    "bleu", "psnr", "ssim", "ndcg", "mrr", "kappa", "r2", "top1",
}  # fmt: skip
FALLS = {
    "loss", "losses", "error", "err", "mse", "mae", "rmse", "perplexity", "ppl", "nll", "wer",
    "cer", "fid", "bce", "rmsle",
}  # fmt: skip
TURNED = {
    "neg", "negative", "minus", "inv", "inverse", "reward", "improvement", "reduction", "drop",
    "delta", "gain",
}  # fmt: skip
OTHER = {"max": "min", "min": "max", "": ""}


def direction(program: Program, node: ast.expr | None, scope: Scope, depth: int = 0) -> str:
    """`max` where a greater value is better, `min` where a smaller one is; empty where nothing says
    so, or two things contradict each other.
    """
    match node:
        case ast.UnaryOp(op=ast.USub()):
            return OTHER[direction(program, node.operand, scope, depth + 1)]
        case ast.BinOp(op=ast.Sub()) if isinstance(constant(node.left), (int, float)):
            return OTHER[direction(program, node.right, scope, depth + 1)]
        case ast.BinOp(op=ast.Div()):
            return direction(program, node.left, scope, depth + 1)
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() as asked]) if {
            "argmax",
            "pred",
            "preds",
            "predicted",
            "prediction",
            "predictions",
        } & identifiers(node):
            return "max" if isinstance(asked, ast.Eq) else "min"  # how many are right
        case ast.Subscript(slice=ast.Constant(value=str())):
            return _of_name(str(constant(node.slice)))
        case ast.Name() | ast.Attribute():
            return _of_value(program, node, scope, depth)
        case ast.Call():
            return _of_call(program, node, scope, depth)
    return ""


def _of_name(name: str) -> str:
    found = words(name.replace("/", "_").replace("-", "_"))
    if found & TURNED or bool(found & RISES) == bool(found & FALLS):
        return ""
    return "max" if found & RISES else "min"


def _of_value(program: Program, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> str:
    """By the name; where the value is turned round before it gets that name, nothing is known."""
    values = (
        [v for v, index in reaching_elements(program, node, scope) if index is None]
        if isinstance(node, ast.Name)
        else []
    )
    behind = (
        {direction(program, v, scope, depth + 1) for v in values} - {""} if depth < 4 else set()
    )
    if not values and isinstance(node, ast.Name) and node.id in scope.parameters and depth < 4:
        given = [(argument(c, scope, node.id), caller) for c, caller in program.call_sites[scope]]
        behind = {
            direction(program, v, caller, depth + 1) for v, caller in given if v is not None
        }  # each caller has to say
    named = (
        ""
        if _adds_up_losses(node, scope)
        else _of_name(last_name(node)) or _counted(program, node, scope, depth)
    )
    if named:
        return named if behind <= {named} else ""
    return behind.pop() if len(behind) == 1 and not words(last_name(node)) & TURNED else ""


def _adds_up_losses(node: ast.expr, scope: Scope) -> bool:
    """Whether a name is that of an accumulator of losses, whatever `acc` is short for."""
    added = [
        n
        for n in own_nodes_of(scope.node, ast.AugAssign)
        if isinstance(n.target, ast.Name) and n.target.id == last_name(node)
    ]
    return any(
        (FALLS | {"criterion"}) & words(name) for n in added for name in identifiers(n.value)
    )


def _counted(program: Program, node: ast.expr, scope: Scope, depth: int) -> str:
    """By what is added to a name, where that is told by more than its name: `hits +=
    (scores.argmax(1) == labels).sum().item()`.
    """
    added = [
        n.value
        for n in own_nodes_of(scope.node, ast.AugAssign)
        if isinstance(n.target, ast.Name) and n.target.id == last_name(node)
    ]
    found = (
        {
            direction(program, value, scope, depth + 1)
            for value in added
            if any(isinstance(n, ast.Compare) for n in ast.walk(value))
        }
        if depth < 4
        else set()
    )
    return found.pop() if len(found) == 1 else ""


def _of_call(program: Program, call: ast.Call, scope: Scope, depth: int) -> str:
    """By the function's name, or by what a function of this file returns; of `.item()` and the like
    by what it is called on.
    """
    if method(call) in ("item", "mean", "sum", "cpu", "detach", "float") and not program.resolve(
        call.func
    ):
        return direction(program, receiver(call), scope, depth + 1)
    if last_name(call.func) == "float" and len(call.args) == 1:
        return direction(program, call.args[0], scope, depth + 1)
    function = program.callees_by_name(call, scope)
    if function is not None and depth < 4:
        returned = [n.value for n in own_nodes_of(function.node, ast.Return) if n.value is not None]
        found = {direction(program, value, function, depth + 1) for value in returned}
        known = found.pop() if len(found) == 1 else ""
        named = _of_name(function.name)
        return (known if named in ("", known) else "") if known else named
    return _of_name(last_name(call.func))
