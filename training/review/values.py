"""Tensors of a program: last values of names, activations that made them, losses that take them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.lookups import made_names
from training.review.program import WRAPPERS, Program, Scope, argument
from training.review.roles import is_model
from training.review.syntax import (
    constant,
    defaults,
    dotted,
    keyword,
    method,
    once,
    own_nodes_of,
    receiver,
)

NAMES = 4  # through which a number is followed
ACTIVATIONS = {
    "softmax": "softmax", "Softmax": "softmax", "softmax2d": "softmax",
    "log_softmax": "log_softmax", "LogSoftmax": "log_softmax", "sigmoid": "sigmoid",
    "Sigmoid": "sigmoid", "logsigmoid": "log_sigmoid", "LogSigmoid": "log_sigmoid",
    "expit": "sigmoid", "Linear": "linear", "linear": "linear", "relu": "relu", "ReLU": "relu",
    "argmax": "argmax", "tanh": "tanh", "Tanh": "tanh", "softplus": "softplus",
    "Softplus": "softplus",
}  # fmt: skip
PASSED_ON = {
    "squeeze", "unsqueeze", "view", "reshape", "flatten", "float", "to", "double", "contiguous",
    "transpose", "permute", "cpu", "cuda", "t", "clone",
}  # fmt: skip
MODULE_LOSSES = {
    "CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll", "CTCLoss": "ctc", "BCELoss": "bce",
    "BCEWithLogitsLoss": "bce_logits", "KLDivLoss": "kl", "MSELoss": "mse", "L1Loss": "l1",
    "SmoothL1Loss": "l1", "HuberLoss": "l1",
}  # fmt: skip
FUNCTION_LOSSES = {
    "cross_entropy": "cross_entropy", "nll_loss": "nll", "ctc_loss": "ctc",
    "binary_cross_entropy": "bce", "binary_cross_entropy_with_logits": "bce_logits", "kl_div": "kl",
    "mse_loss": "mse", "l1_loss": "l1", "smooth_l1_loss": "l1", "huber_loss": "l1",
}  # fmt: skip


class LossCall(NamedTuple):
    """A computed loss: its kind, its scores and its targets."""

    call: ast.Call
    kind: str
    scores: ast.expr
    target: ast.expr | None
    scope: Scope


@once
def loss_calls(program: Program) -> tuple[LossCall, ...]:
    """Return every computed loss whose kind is certain."""
    return tuple(_loss_calls(program))


def _loss_calls(program: Program) -> Iterator[LossCall]:
    for call, kind in loss_kinds(program).items():
        scores = keyword(call, "log_probs" if kind == "ctc" else "input", 0)
        if scores is not None:
            yield LossCall(
                call,
                kind,
                scores,
                keyword(call, "targets" if kind == "ctc" else "target", 1),
                program.scope(call),
            )


@once
def loss_kinds(program: Program) -> dict[ast.Call, str]:
    """Return the loss of each call of the file that computes one."""
    return {
        call: kind
        for call in program.all_calls
        if (kind := loss_kind(program, call, program.scope(call)))
    }


def loss_kind(program: Program, call: ast.Call, scope: Scope) -> str:
    """Return the loss that a call computes; empty for other calls and if two are possible."""
    name = program.resolve(call.func)
    if name.startswith("torch."):
        return FUNCTION_LOSSES.get(name.rpartition(".")[2], "")
    if made_names(program).isdisjoint(MODULE_LOSSES):
        return ""
    kinds = {
        MODULE_LOSSES.get(o.last, "")
        for o in program.origins(call.func, scope)
        if o.name.startswith("torch.nn.")
    }
    return kinds.pop() if len(kinds) == 1 else ""


def value_of(program: Program, node: ast.expr, scope: Scope) -> ast.expr:
    """Return the only value of a name; any other node unchanged."""
    bound = program.bindings_of(node, scope) if isinstance(node, ast.Name) else []
    return (
        bound[0].value
        if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None
        else node
    )


def reaching(program: Program, node: ast.Name, scope: Scope) -> list[ast.expr]:
    """Return the values that a name may hold at its place; none if one is a tuple's element."""
    found = reaching_elements(program, node, scope)
    return [value for value, _ in found] if all(index is None for _, index in found) else []


def reaching_elements(
    program: Program, node: ast.Name, scope: Scope
) -> list[tuple[ast.expr, int | None]]:
    """Return the values that a name may hold at its place.

    These are the last assignment before it, and earlier ones if that one is in a branch. Empty
    for a parameter or a loop's target. An element of a tuple is given as the tuple and the index.
    """
    bound = scope.bindings.get(node.id)
    if not bound:
        return []
    before = [b for b in bound if _line(program, b.statement) < (node.lineno, node.col_offset)]
    found: list[tuple[ast.expr, int | None]] = []
    around = set(program.ancestors(node)) if before else set()
    for binding in sorted(before, key=lambda b: _line(program, b.statement), reverse=True):
        if program.statement(node) is binding.statement or _in_other_arm(
            program, binding.statement, node
        ):
            continue
        if binding.how != "assign":
            return []
        found.append((binding.value, binding.index))
        branches = [
            a for a in program.ancestors(binding.statement) if isinstance(a, (ast.If, ast.Try))
        ]
        if all(b in around for b in branches):
            return found
    return found if node.id not in scope.parameters else []


def _in_other_arm(program: Program, a: ast.AST, b: ast.AST) -> bool:
    """Return whether two places are in different branches of one `if` that is in no loop."""
    above = [a, *program.ancestors(a)]
    branches = [n for n in above if isinstance(n, ast.If)]
    if not branches:
        return False
    paths = [above, [b, *program.ancestors(b)]]
    for branch in (n for n in branches if n in paths[1]):
        arms = [any(s in path for s in branch.orelse) for path in paths]
        inside = [any(s in path for s in (*branch.body, *branch.orelse)) for path in paths]
        looped = any(isinstance(n, (ast.For, ast.While)) for n in program.ancestors(branch))
        if (
            all(inside) and arms[0] != arms[1] and not looped
        ):  # in a loop the other branch may have run in an earlier iteration
            return True
    return False


def _line(program: Program, node: ast.AST) -> tuple[int, int]:
    statement = program.statement(node)
    return statement.lineno, statement.col_offset


def activation(
    program: Program, node: ast.expr | None, scope: Scope, depth: int = 0, index: int | None = None
) -> str:
    """Return the operation that made a tensor: `softmax`, `log_softmax`, `sigmoid`, `linear`…

    Empty if it is not certain. `index`: the element, if the expression is a tuple.
    """
    if node is None or depth > 8:
        return ""
    match node:
        case ast.Name():
            found = {
                activation(program, value, scope, depth + 1, i if index is None else index)
                for value, i in reaching_elements(program, node, scope)
            }
            if not found and (over := _iterated(node, scope)) is not None:
                return activation(program, over, scope, depth + 1)
            return found.pop() if len(found) == 1 else ""
        case ast.Tuple() if index is not None and index < len(node.elts):
            return activation(program, node.elts[index], scope, depth + 1)
        case ast.Subscript(slice=ast.Slice() | ast.Tuple() | ast.Name()):
            return activation(program, node.value, scope, depth + 1, index)
        case ast.Subscript(slice=ast.Constant(value=int(at))):
            return activation(program, node.value, scope, depth + 1, at)
        case ast.Call():
            return _of_call(program, node, scope, depth, index)
    return ""


def _iterated(node: ast.Name, scope: Scope) -> ast.expr | None:
    """Return the tensor whose rows a name holds in a loop, also through `zip` and `enumerate`."""
    bound = scope.bindings.get(node.id, ())
    loop = bound[0].statement if len(bound) == 1 and bound[0].how == "loop" else None
    return (
        _part(loop.target, loop.iter, node.id)
        if isinstance(loop, (ast.For, ast.comprehension))
        else None
    )


def _part(target: ast.expr, over: ast.expr, name: str) -> ast.expr | None:
    if isinstance(target, ast.Name):
        return over if target.id == name else None
    if (
        not isinstance(target, ast.Tuple)
        or not isinstance(over, ast.Call)
        or dotted(over.func) not in ("zip", "enumerate")
    ):
        return None
    parts = over.args if dotted(over.func) == "zip" else [ast.Constant(0), *over.args[:1]]
    return next(
        (
            found
            for t, p in zip(target.elts, parts, strict=False)
            if (found := _part(t, p, name)) is not None
        ),
        None,
    )


def _of_call(program: Program, node: ast.Call, scope: Scope, depth: int, index: int | None) -> str:
    name = program.resolve(node.func)
    last = name.rpartition(".")[2]
    if name.startswith("torch."):
        if (
            last == "exp"
            and node.args
            and activation(program, node.args[0], scope, depth + 1) == "log_softmax"
        ):
            return "softmax"
        if (
            last == "log"
            and node.args
            and activation(program, node.args[0], scope, depth + 1) == "softmax"
        ):
            return "log_softmax"
        return ACTIVATIONS.get(last, "") if last[:1].islower() else ""
    attribute = method(node)
    if attribute in PASSED_ON and receiver(node) is not None:
        return activation(program, receiver(node), scope, depth + 1)
    if (
        attribute in ("log_softmax", "softmax", "sigmoid", "argmax")
        and dotted(receiver(node)) != "self"
    ):
        return attribute
    if attribute == "log" and activation(program, receiver(node), scope, depth + 1) == "softmax":
        return "log_softmax"
    if (
        attribute == "exp"
        and activation(program, receiver(node), scope, depth + 1) == "log_softmax"
    ):
        return "softmax"
    return _of_module(program, node, scope, depth, index)


def _of_module(
    program: Program, node: ast.Call, scope: Scope, depth: int, index: int | None
) -> str:
    """Return the last operation of the called network, without wrappers."""
    made = program.origins(node.func, scope)
    if not made and isinstance(node.func, ast.Name) and depth < 8:
        only = [owner for owner in program.module_classes if "forward" in program.methods[owner]]
        here = len(only) == 1 and bool(
            program.calls_of(only[0].name)
        )  # else the network comes from elsewhere
        owner = program.module_named(node.func.id) or (only[0] if here else None)
        return (
            class_activation(program, owner, depth + 1, index)
            if owner is not None and is_model(program, node.func, scope)
            else ""
        )
    found = {
        module_activation(program, o.call, o.name, o.scope, depth + 1, index)
        for o in made
        if o.last not in WRAPPERS
    }
    return found.pop() if len(found) == 1 else ""


def module_activation(
    program: Program,
    call: ast.Call,
    name: str,
    scope: Scope,
    depth: int = 0,
    index: int | None = None,
) -> str:
    """Return the last operation of a module, given the call that makes it."""
    owner = program.classes.get(name)
    if owner is not None:
        return class_activation(program, owner, depth + 1, index)
    last = name.rpartition(".")[2]
    if last == "Sequential" and call.args and depth < 8:
        final = call.args[-1]
        if isinstance(final, ast.Call):
            final_name = program.resolve(final.func) or dotted(final.func)
            return module_activation(program, final, final_name, scope, depth + 1)
        return ""
    return ACTIVATIONS.get(last, "") if name.startswith("torch.nn.") else ""


def class_activation(
    program: Program, owner: ast.ClassDef, depth: int = 0, index: int | None = None
) -> str:
    """Return the last operation of a class's `forward`, if all its returns agree."""
    forward = program.find_method(owner, "forward")
    if forward is None or depth > 8:
        return ""
    returned = [n.value for n in own_nodes_of(forward.node, ast.Return)]
    found = {activation(program, value, forward, depth + 1, index) for value in returned}
    return found.pop() if len(found) == 1 else ""


def number(program: Program, node: ast.expr | None, scope: Scope, depth: int = 0) -> float | None:
    """Return the number at a node: a literal, a name bound once, or an unchanged default.

    Differences and integer quotients of such numbers also count.
    """
    value = constant(node)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.FloorDiv)):
        left, right = (
            number(program, node.left, scope, depth),
            number(program, node.right, scope, depth),
        )
        if left is None or right is None:
            return None
        return left - right if isinstance(node.op, ast.Sub) else left // right if right else None
    if not isinstance(node, ast.Name) or depth > NAMES:
        return None
    if node.id in scope.parameters:
        passed = any(
            argument(call, scope, node.id) is not None for call, _ in program.call_sites[scope]
        )
        return (
            None if passed else number(program, defaults(scope.node).get(node.id), scope, depth + 1)
        )
    bound = program.bindings_of(node, scope)
    return (
        number(program, bound[0].value, bound[0].scope, depth + 1)
        if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None
        else None
    )
