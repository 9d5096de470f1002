"""Rule BH540: rows that are mixed with others, and labels that are not, or the other way round."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.syntax import constant, last_name, own_nodes, walk
from training.review.values import loss_calls

DRAWS = {"randperm", "permutation"}


class Mix(NamedTuple):
    """`share * rows + (1 - share) * rows[order]`, as written: the sum, the rows, the share of them as they are, that of the others, and the order."""

    node: ast.BinOp
    rows: str
    own: str
    others: str
    order: str


@rule(
    "BH540",
    "labels-not-mixed",
    "error",
    title="Rows are mixed with others, and their labels are not",
    why="Of a row that is three tenths of one class and seven tenths of another the network is told that it is all of the first, or seven tenths of it: most of what it sees is labelled wrongly.",
    remedy="mix the losses by the same shares: `lam * loss(scores, y) + (1 - lam) * loss(scores, y[order])`",
    bad="""
        import torch
        from torch.nn import functional as F

        def mixed_loss(model, x, y, lam):
            order = torch.randperm(len(x))
            scores = model(lam * x + (1 - lam) * x[order])
            return lam * F.cross_entropy(scores, y) + (1 - lam) * F.cross_entropy(scores, y)
        """,
    good="""
        import torch
        from torch.nn import functional as F

        def mixed_loss(model, x, y, lam):
            order = torch.randperm(len(x))
            scores = model(lam * x + (1 - lam) * x[order])
            return lam * F.cross_entropy(scores, y) + (1 - lam) * F.cross_entropy(scores, y[order])
        """,
)
def labels_not_mixed(subject: Subject) -> Iterator[Place]:
    """Rows and the same rows in a drawn order are added by two shares; labels that came with them meet a loss, or are returned, and the order is used for
    nothing else, or their shares are the other way round.
    """
    program = subject.program
    if not DRAWS & program.called_names:
        return
    for scope in program.scopes:
        mixes = [m for n in own_nodes(scope.node) if isinstance(n, ast.BinOp) and (m := _mix(n)) is not None and _is_drawn(program, scope, m.order)]
        if not mixes:
            continue
        of_rows = mixes[0]
        labels = _beside(program, scope, of_rows.rows)
        uses = [n for n in walk(scope.node) if isinstance(n, ast.Name) and n.id == of_rows.order and isinstance(n.ctx, ast.Load)]
        elsewhere = [n for n in uses if not _indexes(program, n, of_rows.rows)]
        if not elsewhere:
            told = next((n for n in _told(program, scope) if n in labels), None)
            if told is not None:
                yield of_rows.node, f"{of_rows.rows} is mixed with its rows in another order, and {told} stays as it is"
            continue
        for node, own in _label_shares(program, scope, of_rows, labels):
            if own == of_rows.others != of_rows.own:
                yield node, f"{of_rows.rows} goes in by {of_rows.own}, and what belongs to it by {own}, the share of the other rows"


def _factors(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    return (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else None


def _is_rest(share: ast.expr, of: ast.expr) -> bool:
    """Whether it is one minus the other."""
    one_less = isinstance(share, ast.BinOp) and isinstance(share.op, ast.Sub) and constant(share.left) in (1, 1.0)
    return one_less and ast.dump(share.right) == ast.dump(of)  # type: ignore[attr-defined]


def _mix(node: ast.BinOp) -> Mix | None:
    """The sum of rows and of the same rows in another order, by two shares that make up one."""
    left, right = _factors(node.left), _factors(node.right)
    if not isinstance(node.op, ast.Add) or left is None or right is None:
        return None
    for own, rows in (left, left[::-1], right, right[::-1]):
        for other, moved in (right, right[::-1]) if own in left else (left, left[::-1]):
            same = isinstance(moved, ast.Subscript) and isinstance(moved.slice, ast.Name) and ast.dump(moved.value) == ast.dump(rows)
            if same and (_is_rest(own, other) or _is_rest(other, own)):
                return Mix(node, ast.unparse(rows), ast.unparse(own), ast.unparse(other), moved.slice.id)  # type: ignore[attr-defined]
    return None


def _is_drawn(program: Program, scope: Scope, order: str) -> bool:
    bound = scope.bindings.get(order, [])
    return bool(bound) and all(isinstance(b.value, ast.Call) and DRAWS & {last_name(c.func) for c in walk(b.value) if isinstance(c, ast.Call)} for b in bound)


def _indexes(program: Program, order: ast.Name, rows: str) -> bool:
    parent = program.parents[order]
    return isinstance(parent, ast.Subscript) and parent.slice is order and ast.unparse(parent.value) == rows


def _beside(program: Program, scope: Scope, rows: str) -> set[str]:
    """Names that come with the rows: out of one loader, or as parameters of the function."""
    if rows in scope.parameters and rows not in scope.bindings:
        return set(scope.parameters) - {rows, "self"}
    heads = {id(b.statement): b for b in scope.bindings.get(rows, []) if b.index is not None or b.how == "loop"}
    together = {n for n, bound in scope.bindings.items() for b in bound if id(b.statement) in heads and b.index is not None}
    return together - {rows}


def _told(program: Program, scope: Scope) -> Iterator[str]:
    """Names that are labels of a loss, or returned beside something else."""
    for loss in loss_calls(program):
        if program.scope(loss.call) is scope and isinstance(loss.target, ast.Name):
            yield loss.target.id
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2 and isinstance(node.value.elts[1], ast.Name):
            yield node.value.elts[1].id


def _label_shares(program: Program, scope: Scope, rows: Mix, labels: set[str]) -> Iterator[tuple[ast.expr, str]]:
    """By which share labels go in as they came, where others go in by the rest: as mixed labels, or as losses of either."""
    for node in own_nodes(scope.node):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add) or node is rows.node:
            continue
        mixed = _mix(node)
        if mixed is not None and mixed.order == rows.order and mixed.rows in labels:
            yield node, mixed.own
            continue
        sides = [_factors(side) for side in (node.left, node.right)]
        shares = {_of_labels(program, scope, call, rows.order, labels): ast.unparse(share) for f in sides if f for share, call in (f, f[::-1])}
        if shares.keys() >= {"own", "others"} and {shares["own"], shares["others"]} == {rows.own, rows.others}:
            yield node, shares["own"]


def _of_labels(program: Program, scope: Scope, node: ast.expr, order: str, labels: set[str]) -> str:
    """Whether a loss is given labels as they came, or those of the other rows."""
    for given in node.args[1:2] if isinstance(node, ast.Call) else ():
        bound = scope.bindings.get(given.id, []) if isinstance(given, ast.Name) else []
        value = bound[0].value if len(bound) == 1 and bound[0].how == "assign" and bound[0].index is None else given
        if isinstance(value, ast.Subscript) and last_name(value.slice) == order and isinstance(value.slice, ast.Name):
            return "others"
        if isinstance(given, ast.Name) and given.id in labels:
            return "own"
    return ""
