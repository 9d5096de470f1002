"""Rule BH537: rows and labels of one table of which one alone was reordered or thinned out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from training.review.findings import Place, Subject, rule
from training.review.program import Program, Scope
from training.review.splitting import line_of
from training.review.syntax import (
    calls,
    constant,
    identifiers,
    keyword,
    last_name,
    method,
    nodes_of,
    own_nodes,
    receiver,
    words,
)
from training.review.values import loss_calls, loss_kind

BY_ROW = {
    "sample",
    "dropna",
    "drop_duplicates",
    "sort_values",
    "query",
    "sort_index",
    "nlargest",
    "nsmallest",
}
THROUGH = {
    "transform", "fit_transform", "tensor", "as_tensor", "from_numpy", "array", "asarray",
    "FloatTensor", "LongTensor", "ascontiguousarray",
}  # fmt: skip
LABELS = {
    "y", "ys", "yb", "label", "labels", "target", "targets", "event", "events", "outcome",
    "outcomes",
}  # fmt: skip
TOGETHER = {"TensorDataset", "zip", "train_test_split", "fit"}
DRAWS = {"randperm", "randint", "permutation", "choice"}
DEPTH = 8


class Made(NamedTuple):
    """Where rows come from: the name that they go back to, where it got its value, and what was
    done to rows on the way.
    """

    root: str
    line: int
    changes: tuple[str, ...]


@rule("BH537")
def rows_and_labels_apart(subject: Subject) -> Iterator[Place]:
    """Two values that are returned or used together go back to one name, and rows were changed on
    the way to one of them alone, by no common index; or two arrays that are cut alike elsewhere are
    cut differently in one pair, or a loss is given the scores of drawn rows and the labels of
    others; or, seen in a run, labels are those of other rows of the table than the rows beside
    them.
    """
    program = subject.program
    yield from _by_other_slices(program)
    yield from _of_other_rows(program)
    yield from _as_many_of_the_first(program)
    if (
        "pandas" not in program.modules_imported
        and "polars" not in program.modules_imported
        and not BY_ROW & program.called_names
    ):
        return
    for scope in program.scopes:
        for node, first, second in _pairs(scope):
            one, two = (
                _made(program, first, scope, line_of(node)),
                _made(program, second, scope, line_of(node)),
            )
            if (
                one is None
                or two is None
                or (one.root, one.line) != (two.root, two.line)
                or bool(one.changes) is bool(two.changes)
            ):
                continue
            changed, left = (first, second) if one.changes else (second, first)
            done = ", ".join(one.changes or two.changes)
            yield (
                node,
                f"rows of {_shown(changed)} went through {done}, those of {_shown(left)} did not",
            )


def _by_other_slices(program: Program) -> Iterator[Place]:
    """`x[600:750], y[600:750]` in one pair, and `x[750:], y[600:750]` in another of the same
    function.
    """
    pairs: dict[tuple[Scope, str, str], list[tuple[ast.expr, str, str]]] = {}
    for node in program.nodes[ast.Tuple]:
        match node:
            case ast.Tuple(
                elts=[ast.Subscript(value=ast.Name(id=a)), ast.Subscript(value=ast.Name(id=b))],
                ctx=ast.Load(),
            ) if a != b:
                one, two = (e.slice for e in node.elts if isinstance(e, ast.Subscript))
                if isinstance(one, ast.Slice) and isinstance(two, ast.Slice):
                    pairs.setdefault((program.scope(node), a, b), []).append(
                        (node, ast.unparse(one), ast.unparse(two))
                    )
    for (_, a, b), found in pairs.items():
        alike = [one for _, one, two in found if one == two]
        for place, of_a, of_b in found:
            if of_a != of_b and len(alike) > 1 and of_b in alike:
                yield place, f"rows [{of_a}] of {a} stand beside rows [{of_b}] of {b}"


def _of_other_rows(program: Program) -> Iterator[Place]:
    """`loss(net(x[rows]), y[: len(rows)])` or `y[torch.randperm(len(rows))]`, where `rows` are
    drawn.
    """
    for loss in loss_calls(program):
        target, scope = loss.target, loss.scope
        if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
            continue
        rows = [
            n.slice
            for c in calls(loss.scores)
            for n in c.args
            if isinstance(n, ast.Subscript)
            and isinstance(n.slice, ast.Name)
            and isinstance(n.value, ast.Name)
        ]
        drawn = [r for r in rows if any(_draws(b.value) for b in program.bindings_of(r, scope))]
        counted = isinstance(target.slice, ast.Slice) and target.slice.lower is None
        again = isinstance(target.slice, ast.Call) and last_name(target.slice.func) in DRAWS
        if drawn and len(drawn) == len(rows) and (counted or again):
            yield (
                target,
                (
                    f"the scores are those of rows {drawn[0].id}, the labels those of rows"
                    f" {ast.unparse(target.slice)}"
                ),
            )


def _as_many_of_the_first(program: Program) -> Iterator[Place]:
    """`x[rows]` beside `y[: len(rows)]` or `y[order[: len(rows)]]`, in a loss of one's own or a
    pair of rows and labels.
    """
    pairs: list[tuple[list[ast.expr], ast.Call | None]] = [
        (n.elts, None) for n in program.nodes[ast.Tuple]
    ]
    pairs += [
        (c.args, c) for c in program.all_calls if words(last_name(c.func)) & {"loss", "criterion"}
    ]
    for sides, loss in pairs:
        for side in sides[1:]:
            counted = _counted_by(side)
            if not counted:
                continue
            rows = {
                n.slice.id
                for s in sides
                for n in nodes_of(s, ast.Subscript)
                if isinstance(n.slice, ast.Name)
            }
            own = (
                words(_root(side)) & LABELS
                if loss is None
                else not loss_kind(program, loss, program.scope(loss))
            )
            if counted in rows and own:
                yield (
                    side,
                    f"rows {counted} stand beside as many of the first ones: {ast.unparse(side)}",
                )
                break


def _counted_by(node: ast.expr) -> str:
    """`rows` of `y[: len(rows)]`, or of `y[order[: len(rows)]]`."""
    inner = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(inner, ast.Subscript):
        inner = inner.slice
    end = inner.upper if isinstance(inner, ast.Slice) and inner.lower is None else None
    return (
        last_name(end.args[0])
        if isinstance(end, ast.Call) and last_name(end.func) == "len" and len(end.args) == 1
        else ""
    )


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return last_name(node)


def _draws(value: ast.expr) -> bool:
    return any(last_name(c.func) in DRAWS for c in calls(value))


def _shown(node: ast.expr) -> str:
    """What is written, without the call that makes a tensor of it."""
    while isinstance(node, ast.Call) and last_name(node.func) in THROUGH and node.args:
        node = node.args[0]
    return ast.unparse(node)


def _pairs(scope: Scope) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """Two values that stand side by side: returned together, or given to what goes over both at
    once.
    """
    for node in own_nodes(scope.node):
        if (
            isinstance(node, ast.Return)
            and isinstance(node.value, ast.Tuple)
            and len(node.value.elts) == 2
        ):
            yield node, node.value.elts[0], node.value.elts[1]
        elif (
            isinstance(node, ast.Call) and last_name(node.func) in TOGETHER and len(node.args) >= 2
        ):
            yield node, node.args[0], node.args[1]


def _made(program: Program, node: ast.expr, scope: Scope, line: int, depth: int = 0) -> Made | None:
    """Where a value of rows comes from; None where that is not seen, or rows are taken by
    an index.
    """
    if depth > DEPTH:
        return None
    match node:
        case ast.Name():
            before = [b for b in scope.bindings.get(node.id, ()) if line_of(b.statement) < line]
            if not before:
                return Made(node.id, 0, ())
            last = max(before, key=lambda b: line_of(b.statement))
            if (
                last.how != "assign"
                or last.index is not None
                or any(
                    isinstance(a, (ast.If, ast.For, ast.While))
                    for a in program.ancestors(last.statement)
                )
            ):
                return None
            return _made(program, last.value, scope, line_of(last.statement), depth + 1) or Made(
                node.id, line_of(last.statement), ()
            )
        case ast.Subscript():
            if "index" in identifiers(node) or last_name(node.value) in ("loc", "iloc", "at"):
                return None
            filtered = isinstance(node.slice, (ast.Compare, ast.UnaryOp)) or (
                isinstance(node.slice, ast.BinOp)
                and isinstance(node.slice.op, (ast.BitAnd, ast.BitOr))
            )
            return None if filtered else _made(program, node.value, scope, line, depth + 1)
        case ast.Attribute(attr="values" | "T"):
            return (
                _made(program, node.value, scope, line, depth + 1)
                if node.attr == "values"
                else None
            )
        case ast.Call():
            return _of_call(program, node, scope, line, depth)
    return None


def _of_call(program: Program, node: ast.Call, scope: Scope, line: int, depth: int) -> Made | None:
    name, target = last_name(node.func), receiver(node)
    if name in THROUGH:
        return _made(program, node.args[0], scope, line, depth + 1) if node.args else None
    if target is None or program.resolve(node.func) or "index" in identifiers(node):
        return None
    if name in (
        "reset_index",
        "astype",
        "to_numpy",
        "copy",
        "drop",
        "fillna",
        "float",
        "long",
        "clip",
        "reshape",
        "ravel",
        "pop",
    ):
        return (
            None
            if name == "drop"
            and keyword(node, "columns") is None
            and constant(keyword(node, "axis")) not in (1, "columns")
            else _made(program, target, scope, line, depth + 1)
        )
    if method(node) in BY_ROW and constant(keyword(node, "axis")) not in (1, "columns"):
        of = _made(program, target, scope, line, depth + 1)
        return None if of is None else Made(of.root, of.line, (*of.changes, name))
    return None
