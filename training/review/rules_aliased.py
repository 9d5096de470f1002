"""Rule BH481: labels that are another name of the inputs, which are changed in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.program import Scope
from training.review.syntax import last_name, method, own_nodes, receiver, words

LABELS = {"target", "targets", "label", "labels", "truth", "gold", "y"}
CHANGES = {"masked_fill_", "masked_scatter_", "index_fill_", "copy_", "scatter_", "index_put_", "random_", "bernoulli_"}


@rule(
    "BH481",
    "labels-change-with-inputs",
    "error",
    title="Labels are the very tensor that is masked in place",
    why="An assignment copies nothing: what is written over the inputs is written over the labels too, so that the network is asked for the mask itself, and the loss falls to nothing.",
    remedy="`labels = tokens.clone()` before the tokens are masked",
    bad="""
        import torch

        def masked(tokens, mask_id):
            labels = tokens
            chosen = torch.rand(tokens.shape) < 0.15
            tokens[chosen] = mask_id
            return tokens, labels, chosen
        """,
    good="""
        import torch

        def masked(tokens, mask_id):
            labels = tokens.clone()
            chosen = torch.rand(tokens.shape) < 0.15
            tokens[chosen] = mask_id
            return tokens, labels, chosen
        """,
)
def labels_change_with_inputs(subject: Subject) -> Iterator[Place]:
    """`labels = tokens`, then `tokens[chosen] = …` or a method that changes tokens in place, neither name is given another value in between, and labels are read."""
    for scope in subject.program.scopes:
        for name, bindings in scope.bindings.items():
            for binding in bindings:
                other = binding.value.id if isinstance(binding.value, ast.Name) and binding.how == "assign" and binding.index is None else ""
                if not other or bool(LABELS & words(name)) is bool(LABELS & words(other)):
                    continue
                labels, inputs = (name, other) if LABELS & words(name) else (other, name)
                start = getattr(binding.statement, "lineno", 0)
                change = next((c for c in _changes(scope, inputs) if c.lineno > start), None)
                if change is not None and not _given_anew(scope, (name, other), start, change.lineno) and _read(scope, labels, change.lineno):
                    yield change, f"{inputs} is changed in place, and with it {labels}, which is the same since line {start}"


def _changes(scope: Scope, name: str) -> list[ast.expr]:
    """Where some places of a tensor, which a mask or an index chooses, get other values, in order."""
    loops = {n for n, bound in scope.bindings.items() if any(b.how == "loop" for b in bound)}
    found: list[ast.expr] = []
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and last_name(node.value) == name and isinstance(node.value, ast.Name):
            if not isinstance(node.slice, (ast.Constant, ast.Slice)) and last_name(node.slice) not in loops:
                found.append(node)
        elif isinstance(node, ast.Call) and method(node) in CHANGES and isinstance(of := receiver(node), ast.Name) and of.id == name:
            found.append(node)
    return sorted(found, key=lambda n: n.lineno)


def _given_anew(scope: Scope, names: tuple[str, ...], start: int, end: int) -> bool:
    return any(start < getattr(b.statement, "lineno", 0) < end for n in names for b in scope.bindings.get(n, ()))


def _read(scope: Scope, name: str, line: int) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n.lineno > line for n in own_nodes(scope.node))
