"""What makes a layer."""

from __future__ import annotations

import ast

from training.review.program import Program
from training.review.syntax import (
    calls,
    dotted,
)

STATELESS = {
    "ReLU", "GELU", "SiLU", "ELU", "LeakyReLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax",
    "Identity", "Flatten", "Unflatten", "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d",
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "Upsample", "ZeroPad2d", "PixelShuffle", "Softplus",
    "Hardswish", "CosineSimilarity", "PairwiseDistance", "ReLU6", "Mish", "Unfold", "Fold",
    "ConstantPad1d", "ConstantPad2d", "ReflectionPad2d", "Hardtanh", "Softsign", "LogSigmoid",
    "CELU", "SELU", "GLU", "Threshold", "Tanhshrink", "Softmin", "Softmax2d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "UpsamplingBilinear2d", "UpsamplingNearest2d",
}  # fmt: skip


def is_layer(program: Program, node: ast.AST | None) -> bool:
    """Whether an expression makes a module with parameters or state."""
    if not isinstance(node, ast.Call):
        return False
    name = program.resolve(node.func)
    last = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and last[:1].isupper():
        return (
            not name.startswith("torch.nn.attention.")
            and last not in STATELESS
            and not last.endswith("Loss")
            and ".utils." not in name
        )
    owner = program.classes.get(dotted(node.func))
    return owner is not None and program.is_module(owner) and _learns(program, owner)


def _learns(program: Program, owner: ast.ClassDef) -> bool:
    """Whether a network of this file holds anything of torch that may have parameters."""
    made = [
        b
        for known in program.bases(owner)
        for bound in program.attributes[known].values()
        for b in bound
    ]
    return any(
        is_layer(program, c) for b in made for c in calls(b.value) if dotted(c.func) != owner.name
    )
