"""Outputs of a network whose first dimension is the batch: made of its input layer by layer, in a
class that is given batches.
"""

from __future__ import annotations

import ast

from training.review.kinds import is_model
from training.review.program import Origin, Program, Scope
from training.review.syntax import (
    calls,
    constant,
    dotted,
    identifiers,
    keyword,
    last_name,
    method,
    receiver,
)

ACTIVATIONS = {
    "relu", "relu_", "leaky_relu", "gelu", "silu", "elu", "selu", "tanh", "sigmoid", "dropout",
    "mish", "softplus", "hardswish", "normalize",
}  # fmt: skip
# Layers that keep the first dimension where it is, whatever else they do.
KEEP = {
    *(
        "Linear",
        "LazyLinear",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "BatchNorm1d",
        "BatchNorm2d",
        "BatchNorm3d",
        "LayerNorm",
        "GroupNorm",
        "Dropout",
        "Dropout2d",
    ),
    *(
        "ReLU",
        "LeakyReLU",
        "GELU",
        "SiLU",
        "ELU",
        "SELU",
        "Tanh",
        "Sigmoid",
        "Sequential",
        "ModuleList",
        "ModuleDict",
        "Flatten",
        "MaxPool1d",
        "MaxPool2d",
    ),
    *(
        "AvgPool1d",
        "AvgPool2d",
        "AdaptiveAvgPool1d",
        "AdaptiveAvgPool2d",
        "AdaptiveMaxPool2d",
        "Identity",
    ),
}
OF_BATCHES = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Flatten"}
DEEPEST = 12


def is_output_of_batches(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a value in `forward` is made of its input by layers that keep the batch in front, and
    the input has one.
    """
    return (
        scope.name == "forward"
        and scope.owner is not None
        and _in_front(program, node, scope)
        and _given_batches(program, scope)
    )


def _in_front(program: Program, node: ast.expr | None, scope: Scope, depth: int = 0) -> bool:
    if depth > DEEPEST or node is None:
        return False
    if isinstance(node, ast.Name):
        before = [
            b
            for b in scope.bindings.get(node.id, ())
            if program.statement(b.statement).lineno < node.lineno
        ]
        if not before:
            return node.id in scope.parameters[1:2]
        values = [b for b in before if b.how == "assign" and b.index is None]
        return len(values) == len(before) and all(
            _in_front(program, b.value, scope, depth + 1) for b in values
        )
    if not isinstance(node, ast.Call):
        return False
    if method(node) in ACTIVATIONS and not program.resolve(node.func):
        return _in_front(program, receiver(node), scope, depth + 1)
    given = node.args[0] if node.args else None
    if program.is_torch(node.func, *ACTIVATIONS):
        return _in_front(program, given, scope, depth + 1)
    if program.is_torch(node.func, "flatten"):
        return constant(keyword(node, "start_dim", 1)) == 1 and _in_front(
            program, given, scope, depth + 1
        )
    if method(node) == "flatten":
        return constant(keyword(node, "start_dim", 0)) == 1 and _in_front(
            program, receiver(node), scope, depth + 1
        )
    made = (
        program.origins(node.func, scope)
        if dotted(node.func).startswith("self.")
        else _entries(program, node.func, scope)
    )
    layers = bool(made) and all(o.name.startswith("torch.nn.") and o.last in KEEP for o in made)
    return layers and len(node.args) == 1 and _in_front(program, given, scope, depth + 1)


def _entries(program: Program, layer: ast.expr, scope: Scope) -> tuple[Origin, ...]:
    """What made the list of layers that a loop goes through."""
    bound = scope.bindings.get(layer.id, []) if isinstance(layer, ast.Name) else []
    over = bound[0].value if len(bound) == 1 and bound[0].how == "loop" else None
    return (
        program.origins(over, scope)
        if over is not None and dotted(over).startswith("self.")
        else ()
    )


def _given_batches(program: Program, forward: Scope) -> bool:
    """Whether the class counts on batches, or is called with what a loader gives."""
    owner = forward.owner
    if owner is None:
        return False
    if any(program.is_torch(c.func, *OF_BATCHES) for c in calls(owner)):
        return True
    if any(
        last_name(c.func) == "flatten" and 1 in [constant(a) for a in c.args]
        for c in calls(forward.node)
    ):
        return True
    for call in program.all_calls:
        loops = [a for a in program.ancestors(call) if isinstance(a, ast.For)]
        if any(
            "loader" in " ".join(identifiers(a.iter)).lower() or _is_loader(program, a.iter)
            for a in loops
        ):
            within = program.scope(call)
            if is_model(program, call.func, within) and any(
                o.name == owner.name for o in program.origins(call.func, within)
            ):
                return True
    return False


def _is_loader(program: Program, over: ast.expr) -> bool:
    return any(o.last == "DataLoader" for o in program.origins(over, program.scope(over)))
