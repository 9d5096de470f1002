"""Masks that nothing reads, for the rule of unread arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject
from training.review.program import Program, Scope, argument
from training.review.syntax import (
    calls,
    constant,
    last_name,
    names_read,
    own_nodes_of,
    words,
)

MASKS = {"mask", "masks", "known", "seen", "padding", "censored", "exclude", "excluded"}


FLAGS = {
    "return", "path", "paths", "use", "with", "has", "is", "num", "size", "mode", "same", "idx",
    "ids", "id",
}  # fmt: skip


REDUCED = {
    "softmax", "mean", "sum", "cross_entropy", "scaled_dot_product_attention", "matmul", "bmm",
    "einsum", "max", "topk", "argsort", "sort", "baddbmm",
}  # fmt: skip


def mask_never_read(subject: Subject) -> Iterator[Place]:
    """A parameter that is called a mask, or known pairs, is read nowhere in its function; a caller
    gives it, and no other function of that name takes it.
    """
    program = subject.program
    for scope in program.scopes:
        node = scope.node
        if not isinstance(node, ast.FunctionDef) or (
            node.decorator_list
            and any(last_name(d) in ("abstractmethod", "overload") for d in node.decorator_list)
        ):
            continue
        masks = [
            p
            for p in scope.parameters
            if MASKS & words(p)
            and not FLAGS & words(p)
            and p != "padding"
            and not p.startswith("_")
        ]
        if not masks:
            continue
        read = names_read(node)
        unread = [p for p in masks if p not in read]
        if not unread or not _computes(node) or "locals" in read or _one_of_several(program, scope):
            continue
        for name in unread:
            site = next(
                (
                    c
                    for c, _ in program.call_sites[scope]
                    if (given := argument(c, scope, name)) is not None and constant(given) is None
                ),
                None,
            )
            if site is not None and not isinstance(argument(site, scope, name), ast.Constant):
                yield (
                    node,
                    f"{name} is given in line {site.lineno}, and {node.name} does not read it",
                )


def _computes(node: ast.FunctionDef) -> bool:
    """Whether a function sums up, weighs or ranks something that a mask could leave out, and gives
    back a value.
    """
    returns = any(
        n.value is not None and not isinstance(n.value, ast.Constant)
        for n in own_nodes_of(node, ast.Return)
    )
    over = any(isinstance(n.op, ast.MatMult) for n in own_nodes_of(node, ast.BinOp))
    return returns and (
        over
        or any(
            last_name(c.func) in REDUCED or "loss" in words(last_name(c.func)) for c in calls(node)
        )
    )


def _one_of_several(program: Program, scope: Scope) -> bool:
    """Whether there are others of that name or with that signature, which are called in its
    place.
    """
    node = scope.node
    if not isinstance(node, ast.FunctionDef):
        return False
    alike = [
        s
        for s in program.scopes
        if isinstance(s.node, ast.FunctionDef)
        and s is not scope
        and (s.node.name == node.name or s.parameters == scope.parameters)
    ]
    named = any(n.id == node.name and not _is_called(program, n) for n in program.nodes[ast.Name])
    return bool(alike) or named


def _is_called(program: Program, name: ast.Name) -> bool:
    above = program.parents[name]
    return isinstance(above, ast.Call) and above.func is name
