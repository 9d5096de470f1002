"""Tensors that have the dimensions of another one, up to the size of the last."""

from __future__ import annotations

import ast

from training.review.program import Program, Scope
from training.review.syntax import method, receiver
from training.review.values import reaching

KEEPING_LAYERS = {
    "Linear", "LayerNorm", "RMSNorm", "Dropout", "ReLU", "GELU", "SiLU", "Tanh", "Sigmoid",
    "LeakyReLU", "ELU", "Identity",
}  # fmt: skip
KEEPING_FUNCTIONS = {
    "relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "dropout", "layer_norm",
    "softmax", "linear", "normalize",
}  # fmt: skip
KEEPING_METHODS = {
    "relu", "tanh", "sigmoid", "float", "contiguous", "to", "half", "bfloat16", "softmax", "clone",
    "detach",
}  # fmt: skip
DEPTH = 5


def same_dimensions(
    program: Program, node: ast.expr | None, scope: Scope, depth: int = 0
) -> list[ast.Name]:
    """The names of all tensors in sight that have the dimensions of an expression in their order,
    itself included; the last dimension may have another size.
    """
    match node:
        case ast.Name():
            values = reaching(program, node, scope) if depth < DEPTH else []
            behind = (
                same_dimensions(program, values[0], scope, depth + 1) if len(values) == 1 else []
            )
            return [node, *(n for n in behind if n.id != node.id)]
        case ast.BinOp(op=ast.Add() | ast.Mult() | ast.Sub()):
            return same_dimensions(program, node.left, scope, depth + 1)
        case ast.Call(args=[first, *_]) if _keeps(program, node, scope):
            return same_dimensions(program, first, scope, depth + 1)
        case ast.Call() if method(node) in KEEPING_METHODS and not program.resolve(node.func):
            return same_dimensions(program, receiver(node), scope, depth + 1)
    return []


def _keeps(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call is that of a layer or function that changes no dimension but the last."""
    if program.is_torch(call.func, *KEEPING_FUNCTIONS):
        return True
    made = program.origins(call.func, scope)
    return bool(made) and all(
        o.name.startswith("torch.nn.") and o.last in KEEPING_LAYERS for o in made
    )
